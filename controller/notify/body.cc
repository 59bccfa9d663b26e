#include "controller/notify/body.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <boost/json.hpp>
#include <cmath>

#include "base/errors.h"

namespace gnomon::notify {
namespace {

std::string hmac_sha256(const std::string& key, const std::string& text) {
  std::array<unsigned char, 32> digest{};
  unsigned size = 0;
  const unsigned char* done =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(), &size);
  GNOMON_ASSERT(done != nullptr && size == digest.size());
  std::string hex;
  for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

std::string quoted(const std::string& text) {
  return boost::json::serialize(boost::json::string(text));
}

// As the receivers of a webhook see it: no end is known, or the moment is soon over.
double shown_end(const Alert& alert) {
  return alert.lasting ? alert.ends_at : alert.starts_at + kHoldSeconds;
}

}  // namespace

std::string rfc3339(double seconds) {
  if (seconds == 0) return "0001-01-01T00:00:00Z";
  const auto milliseconds = static_cast<int64_t>(std::llround(seconds * 1000));
  std::string text =
      fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}", fmt::gmtime(std::time_t{milliseconds / 1000}),
                  milliseconds % 1000);
  // As Go writes it.
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + "Z";
}

std::string fingerprint(const std::map<std::string, std::string>& labels) {
  uint64_t hash = 14695981039346656037u;
  const auto add = [&](const std::string& text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
    hash = (hash ^ 255u) * 1099511628211u;
  };
  for (const auto& [name, value] : labels) {
    add(name);
    add(value);
  }
  return fmt::format("{:016x}", hash);
}

std::string page_of(const Alert& alert, const std::string& external_url) {
  const auto run = alert.labels.find("run_id");
  if (external_url.empty() || run == alert.labels.end()) return external_url;
  return fmt::format("{}{}#{}", external_url, external_url.ends_with('/') ? "" : "/", run->second);
}

std::string webhook_body(const Alert& alert, const std::string& receiver,
                         const std::string& delivery, const std::string& external_url) {
  std::map<std::string, std::string> annotations = alert.annotations;
  annotations["delivery"] = delivery;
  const char* status = alert.resolved() ? "resolved" : "firing";
  const std::string& alertname = alert.labels.at("alertname");
  const std::string& run = alert.labels.at("run");
  const boost::json::object labels = boost::json::value_from(alert.labels).as_object();
  const boost::json::object noted = boost::json::value_from(annotations).as_object();
  const boost::json::object one = {{"status", status},
                                   {"labels", labels},
                                   {"annotations", noted},
                                   {"startsAt", rfc3339(alert.starts_at)},
                                   {"endsAt", rfc3339(shown_end(alert))},
                                   {"generatorURL", page_of(alert, external_url)},
                                   {"fingerprint", fingerprint(alert.labels)}};
  return boost::json::serialize(boost::json::object{
      {"version", "4"},
      {"groupKey", fmt::format("{{}}:{{alertname={}, run={}}}", quoted(alertname), quoted(run))},
      {"truncatedAlerts", 0},
      {"status", status},
      {"receiver", receiver},
      {"groupLabels", {{"alertname", alertname}, {"run", run}}},
      {"commonLabels", labels},
      {"commonAnnotations", noted},
      {"externalURL", external_url},
      {"alerts", boost::json::array{one}}});
}

std::string signature(const std::string& body, int64_t time,
                      const std::vector<std::string>& secrets) {
  std::string value = fmt::format("t={}", time);
  for (const std::string& secret : secrets) {
    value += ",v1=" + hmac_sha256(secret, fmt::format("{}.{}", time, body));
  }
  return value;
}

}  // namespace gnomon::notify

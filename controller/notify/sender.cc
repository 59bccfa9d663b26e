#include "controller/notify/sender.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/version.h"
#include "controller/notify/body.h"

namespace gnomon::notify {
namespace {

// An answer without an end must fill neither memory nor time.
constexpr size_t kBodyRead = 64 << 10;
constexpr size_t kBodyKept = 512;

Answer answer_of(HttpResult result) {
  HttpResponse& response = result.response;
  response.body.resize(std::min(response.body.size(), kBodyKept));
  return {result.ticket, response.status, std::move(result.error), std::move(response.body),
          static_cast<double>(response.retry_after)};
}

}  // namespace

std::string Answer::words() const {
  if (status == 0) return error;
  std::string shown = body.substr(0, 200);
  std::ranges::replace_if(
      shown, [](unsigned char c) { return c < ' ' || c >= 0x7f; }, ' ');
  return shown.empty() ? fmt::format("status {}", status)
                       : fmt::format("status {}: {}", status, shown);
}

uint64_t Sender::post(const Receiver& receiver, const std::string& body,
                      const std::string& delivery, double time) {
  const uint64_t ticket = next_ticket_++;
  HttpCall call{
      .url = receiver.url,
      .user_agent = fmt::format("gnomond/{}", kVersion),
      .body = body,
      .timeout = std::chrono::milliseconds(static_cast<int64_t>(receiver.timeout_seconds * 1000)),
      .answer_bytes_max = kBodyRead,
      .proxies_of_environment = true};
  if (!delivery.empty()) call.headers.push_back("X-Gnomon-Delivery: " + delivery);
  if (!receiver.secrets.empty()) {
    call.headers.push_back("X-Gnomon-Signature: " +
                           signature(body, static_cast<int64_t>(time), receiver.secrets));
  }
  if (!receiver.authorization.empty()) {
    call.headers.push_back("Authorization: " + receiver.authorization);
  }
  if (!receiver.ca_file.empty() && receiver.url.starts_with("https")) {
    try {
      call.tls = std::make_shared<const TlsPem>(read_client_tls({"", "", receiver.ca_file}));
    } catch (const TlsFileError& error) {
      unsent_.push_back({.ticket = ticket, .error = error.what()});
      return ticket;
    }
  }
  transfers_.start(ticket, std::move(call));
  return ticket;
}

std::vector<Answer> Sender::wait(std::chrono::milliseconds longest) {
  if (!unsent_.empty()) return std::exchange(unsent_, {});
  std::vector<Answer> answers;
  for (HttpResult& result : transfers_.wait(longest)) {
    answers.push_back(answer_of(std::move(result)));
  }
  return answers;
}

}  // namespace gnomon::notify

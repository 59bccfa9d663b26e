#include "controller/notify/sender.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "base/named_file.h"
#include "base/version.h"
#include "controller/notify/body.h"

namespace gnomon::notify {
namespace {

constexpr size_t kBodyKept = 512;
constexpr size_t kBodyRead = 64 << 10;
constexpr double kConnectSecondsMax = 10;
constexpr long kIdleConnectionsMax = 16;

// Once, before any handle.
void begin_curl() {
  static const CURLcode begun = ::curl_global_init(CURL_GLOBAL_DEFAULT);
  GNOMON_ASSERT(begun == CURLE_OK);
}

long timeout_ms(double seconds) { return std::max(1L, static_cast<long>(seconds * 1000)); }

// Where Alertmanager takes alerts; its address may be given with that or without.
std::string target_of(const Receiver& receiver) {
  constexpr std::string_view kAlerts = "/api/v2/alerts";
  if (receiver.format != "alertmanager" || receiver.url.ends_with(kAlerts)) return receiver.url;
  const bool slash = receiver.url.ends_with('/');
  return receiver.url + std::string(kAlerts.substr(slash ? 1 : 0));
}

}  // namespace

struct Sender::Transfer {
  CURL* easy = ::curl_easy_init();
  curl_slist* headers = nullptr;
  std::string sent;
  Answer answer;
  size_t read = 0;
  bool too_long = false;
  std::array<char, CURL_ERROR_SIZE> error{};
  std::string unreadable;  // why the file of authorities is

  Transfer() { GNOMON_ASSERT(easy != nullptr); }
  ~Transfer() {
    ::curl_easy_cleanup(easy);
    ::curl_slist_free_all(headers);
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  template <typename Value>
  void set(CURLoption option, Value value) {
    GNOMON_ASSERT(::curl_easy_setopt(easy, option, value) == CURLE_OK);
  }
  void add_header(const std::string& line) {
    curl_slist* longer = ::curl_slist_append(headers, line.c_str());
    GNOMON_ASSERT(longer != nullptr);
    headers = longer;
  }

  // Believes these authorities and no others. libcurl would read the file itself, and wait for
  // whoever writes into a pipe that has taken its place.
  void believe(const std::string& ca_file) {
    std::string pem;
    try {
      pem = read_named_file(ca_file, kPemFileBytesMax);
    } catch (const Error& failure) {
      unreadable = failure.what();
      pem = "nobody";  // no certificate: the handshake fails
    }
    curl_blob blob{pem.data(), pem.size(), CURL_BLOB_COPY};
    set(CURLOPT_CAINFO_BLOB, &blob);
    // Debian's libcurl believes this folder besides.
    set(CURLOPT_CAPATH, static_cast<const char*>(nullptr));
  }

  // An answer without an end must fill neither memory nor time.
  static size_t take(char* data, size_t, size_t size, void* user) {
    auto& self = *static_cast<Transfer*>(user);
    self.read += size;
    if (self.answer.body.size() < kBodyKept) {
      self.answer.body.append(data, std::min(size, kBodyKept - self.answer.body.size()));
    }
    self.too_long = self.read > kBodyRead;
    return self.too_long ? 0 : size;
  }

  Answer end(CURLcode result) {
    long status = 0;
    ::curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    if (result == CURLE_OK || too_long) answer.status = static_cast<int>(status);
    if (answer.status == 0) {
      answer.error = !unreadable.empty() ? unreadable
                     : error[0] != '\0'  ? error.data()
                                         : ::curl_easy_strerror(result);
    }
    curl_off_t retry_after = 0;
    if (::curl_easy_getinfo(easy, CURLINFO_RETRY_AFTER, &retry_after) == CURLE_OK) {
      answer.retry_after = static_cast<double>(retry_after);
    }
    return std::move(answer);
  }
};

std::string Answer::words() const {
  if (status == 0) return error;
  std::string shown = body.substr(0, 200);
  std::ranges::replace_if(
      shown, [](unsigned char c) { return c < ' ' || c >= 0x7f; }, ' ');
  return shown.empty() ? fmt::format("status {}", status)
                       : fmt::format("status {}: {}", status, shown);
}

Sender::Sender() {
  begin_curl();
  multi_ = ::curl_multi_init();
  GNOMON_ASSERT(multi_ != nullptr);
  ::curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, kIdleConnectionsMax);
}

Sender::~Sender() {
  for (auto& [ticket, transfer] : transfers_) ::curl_multi_remove_handle(multi_, transfer->easy);
  transfers_.clear();
  ::curl_multi_cleanup(multi_);
}

uint64_t Sender::post(const Receiver& receiver, const std::string& body,
                      const std::string& delivery, double time) {
  auto transfer = std::make_unique<Transfer>();
  Transfer& t = *transfer;
  t.sent = body;
  t.answer.ticket = next_ticket_++;
  t.add_header("Content-Type: application/json");
  t.add_header("Expect:");
  if (!delivery.empty()) t.add_header("X-Gnomon-Delivery: " + delivery);
  if (!receiver.secrets.empty()) {
    t.add_header("X-Gnomon-Signature: " +
                 signature(body, static_cast<int64_t>(time), receiver.secrets));
  }
  if (!receiver.authorization.empty()) t.add_header("Authorization: " + receiver.authorization);
  t.set(CURLOPT_URL, target_of(receiver).c_str());
  t.set(CURLOPT_HTTPHEADER, t.headers);
  t.set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(t.sent.size()));
  t.set(CURLOPT_POSTFIELDS, t.sent.c_str());
  t.set(CURLOPT_USERAGENT, fmt::format("gnomond/{}", kVersion).c_str());
  t.set(CURLOPT_PROTOCOLS_STR, "http,https");
  t.set(CURLOPT_FOLLOWLOCATION, 0L);
  t.set(CURLOPT_NOSIGNAL, 1L);
  t.set(CURLOPT_QUICK_EXIT, 1L);
  t.set(CURLOPT_TIMEOUT_MS, timeout_ms(receiver.timeout_seconds));
  t.set(CURLOPT_CONNECTTIMEOUT_MS,
        timeout_ms(std::min(receiver.timeout_seconds, kConnectSecondsMax)));
  if (!receiver.ca_file.empty() && receiver.url.starts_with("https")) t.believe(receiver.ca_file);
  t.set(CURLOPT_WRITEFUNCTION, &Transfer::take);
  t.set(CURLOPT_WRITEDATA, static_cast<void*>(&t));
  t.set(CURLOPT_ERRORBUFFER, t.error.data());
  t.set(CURLOPT_PRIVATE, static_cast<void*>(&t));
  GNOMON_ASSERT(::curl_multi_add_handle(multi_, t.easy) == CURLM_OK);
  const uint64_t ticket = t.answer.ticket;
  transfers_.emplace(ticket, std::move(transfer));
  return ticket;
}

std::vector<Answer> Sender::wait(std::chrono::milliseconds longest) {
  std::vector<Answer> answers;
  const auto collect = [&] {
    int running = 0;
    ::curl_multi_perform(multi_, &running);
    int left = 0;
    while (const CURLMsg* message = ::curl_multi_info_read(multi_, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode result = message->data.result;
      Transfer* transfer = nullptr;
      ::curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
      ::curl_multi_remove_handle(multi_, transfer->easy);
      answers.push_back(transfer->end(result));
      transfers_.erase(answers.back().ticket);
    }
  };
  collect();
  if (answers.empty()) {
    ::curl_multi_poll(multi_, nullptr, 0, static_cast<int>(longest.count()), nullptr);
    collect();
  }
  return answers;
}

void Sender::wake() { ::curl_multi_wakeup(multi_); }

}  // namespace gnomon::notify

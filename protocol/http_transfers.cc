#include "protocol/http_transfers.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <system_error>

#include "base/errors.h"

namespace gnomon {
namespace {

constexpr size_t kHeadBytesMax = 64 << 10;
constexpr std::chrono::milliseconds kConnectMax = std::chrono::seconds(10);
// libcurl takes no connection that was idle for 118 s.
constexpr std::chrono::seconds kIdleMax(110);

// Once, before any handle.
void begin_curl() {
  static const CURLcode begun = ::curl_global_init(CURL_GLOBAL_DEFAULT);
  GNOMON_ASSERT(begun == CURLE_OK);
}

// 0 would be no limit.
long timeout_of(std::chrono::milliseconds time) {
  return std::max(1L, static_cast<long>(time.count()));
}

// The target in `<target>; rel="next"`, which is all that gnomond says in a Link header.
std::string next_of(std::string_view link) {
  const size_t end = link.find(">; rel=\"next\"");
  return link.starts_with('<') && end != std::string_view::npos
             ? std::string(link.substr(1, end - 1))
             : std::string();
}

}  // namespace

struct HttpTransfers::Transfer {
  HttpCall call;
  HttpResult result;
  CURL* easy = ::curl_easy_init();
  curl_slist* headers = nullptr;
  size_t head_bytes = 0;
  bool head_is_whole = false;
  bool head_too_long = false;
  bool body_too_long = false;
  std::array<char, CURL_ERROR_SIZE> error{};

  Transfer(uint64_t ticket, HttpCall given) : call(std::move(given)), result{ticket} {
    GNOMON_ASSERT(easy != nullptr);
    set_request();
    set_limits();
    if (call.url.starts_with("https:")) set_tls();
  }
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
  void set_blob(CURLoption option, const std::string& text) {
    curl_blob blob{const_cast<char*>(text.data()), text.size(), CURL_BLOB_NOCOPY};
    if (!text.empty()) set(option, &blob);
  }
  // OpenSSL's own programs do as much.
  void set_from_environment(CURLoption option, const char* variable) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value != '\0') set(option, value);
  }
  void add_header(const std::string& line) {
    curl_slist* longer = ::curl_slist_append(headers, line.c_str());
    GNOMON_ASSERT(longer != nullptr);
    headers = longer;
  }

  void set_request() {
    // A header without a value is one that libcurl would add by itself.
    add_header("Expect:");
    add_header(call.body.empty() ? "Content-Type:" : "Content-Type: application/json");
    for (const std::string& each : call.headers) add_header(each);
    set(CURLOPT_URL, call.url.c_str());
    if (!call.target.empty()) set(CURLOPT_REQUEST_TARGET, call.target.c_str());
    set(CURLOPT_HTTPHEADER, headers);
    set(CURLOPT_USERAGENT, call.user_agent.c_str());
    if (!call.body.empty() || call.method == "POST" || call.method == "PUT") {
      set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call.body.size()));
      set(CURLOPT_POSTFIELDS, call.body.c_str());
    }
    set(CURLOPT_CUSTOMREQUEST, call.method.c_str());
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    if (!call.proxies_of_environment) set(CURLOPT_PROXY, "");
    if (call.new_connection) set(CURLOPT_FRESH_CONNECT, 1L);
  }

  void set_limits() {
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_QUICK_EXIT, 1L);
    set(CURLOPT_TIMEOUT_MS, timeout_of(call.timeout));
    set(CURLOPT_CONNECTTIMEOUT_MS, timeout_of(std::min(call.timeout, kConnectMax)));
    set(CURLOPT_HEADERFUNCTION, &Transfer::on_header);
    set(CURLOPT_HEADERDATA, static_cast<void*>(this));
    set(CURLOPT_WRITEFUNCTION, &Transfer::on_body);
    set(CURLOPT_WRITEDATA, static_cast<void*>(this));
    set(CURLOPT_ERRORBUFFER, error.data());
  }

  void set_tls() {
    set(CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
    // A resumed session would pass by authorities that have changed since.
    set(CURLOPT_SSL_SESSIONID_CACHE, 0L);
    if (!call.ciphers.empty()) set(CURLOPT_SSL_CIPHER_LIST, call.ciphers.c_str());
    if (call.tls) {
      set_blob(CURLOPT_SSLCERT_BLOB, call.tls->certificate);
      set_blob(CURLOPT_SSLKEY_BLOB, call.tls->key);
      set_blob(CURLOPT_CAINFO_BLOB, call.tls->ca);
    }
    if (call.tls && !call.tls->ca.empty()) {
      // Debian's libcurl trusts this folder besides.
      set(CURLOPT_CAPATH, static_cast<const char*>(nullptr));
      return;
    }
    set_from_environment(CURLOPT_CAINFO, "SSL_CERT_FILE");
    set_from_environment(CURLOPT_CAPATH, "SSL_CERT_DIR");
  }

  // What they return, if not `size`, ends the transfer.
  static size_t on_header(char* data, size_t, size_t size, void* user) {
    auto& self = *static_cast<Transfer*>(user);
    const std::string_view line(data, size);
    if (line.starts_with("HTTP/")) self.head_is_whole = false;
    if (line == "\r\n" || line == "\n") self.head_is_whole = true;
    self.head_bytes += size;
    self.head_too_long = self.head_bytes > kHeadBytesMax;
    return self.head_too_long ? 0 : size;
  }
  static size_t on_body(char* data, size_t, size_t size, void* user) {
    auto& self = *static_cast<Transfer*>(user);
    std::string& body = self.result.response.body;
    const uint64_t room = self.call.answer_bytes_max - body.size();
    self.body_too_long = size > room;
    body.append(data, std::min<uint64_t>(size, room));
    return self.body_too_long ? 0 : size;
  }

  std::string words(CURLcode code) const {
    if (body_too_long) return fmt::format("an answer of more than {} bytes", call.answer_bytes_max);
    if (head_too_long)
      return fmt::format("an answer whose head has more than {} bytes", kHeadBytesMax);
    if (code == CURLE_OK) return "an answer that ends in its head";
    std::string text = error[0] != '\0' ? error.data() : ::curl_easy_strerror(code);
    long number = 0;
    ::curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &number);
    if (code == CURLE_COULDNT_CONNECT && number != 0) {
      text += fmt::format(" ({})", std::generic_category().message(static_cast<int>(number)));
    }
    return text;
  }

  HttpResult end(CURLcode code) {
    curl_off_t microseconds = 0;
    ::curl_easy_getinfo(easy, CURLINFO_PRETRANSFER_TIME_T, &microseconds);
    result.connected = microseconds > 0;
    // A connection that ends in a head is an end like any other to libcurl.
    const bool whole = code == CURLE_OK && head_is_whole;
    // So says libcurl of a line of the head that has more than 100 KB.
    head_too_long = head_too_long || code == CURLE_OUT_OF_MEMORY;
    if (!whole) result.error = words(code);
    if (!whole && !body_too_long) return std::move(result);
    HttpResponse& response = result.response;
    long status = 0;
    ::curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    response.status = static_cast<int>(status);
    curl_off_t seconds = 0;
    ::curl_easy_getinfo(easy, CURLINFO_RETRY_AFTER, &seconds);
    constexpr curl_off_t kMost = std::numeric_limits<int>::max();
    response.retry_after = static_cast<int>(std::clamp<curl_off_t>(seconds, 0, kMost));
    curl_header* link = nullptr;
    if (::curl_easy_header(easy, "Link", 0, CURLH_HEADER, -1, &link) == CURLHE_OK) {
      response.next = next_of(link->value);
    }
    return std::move(result);
  }
};

HttpTransfers::HttpTransfers(long idle_connections_max) {
  begin_curl();
  multi_ = ::curl_multi_init();
  GNOMON_ASSERT(multi_ != nullptr);
  ::curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, idle_connections_max);
}

HttpTransfers::~HttpTransfers() {
  abandon();
  ::curl_multi_cleanup(multi_);
}

void HttpTransfers::start(uint64_t ticket, HttpCall call) {
  const auto [at, added] =
      transfers_.emplace(ticket, std::make_unique<Transfer>(ticket, std::move(call)));
  GNOMON_ASSERT(added);
  at->second->set(CURLOPT_PRIVATE, static_cast<void*>(at->second.get()));
  GNOMON_ASSERT(::curl_multi_add_handle(multi_, at->second->easy) == CURLM_OK);
}

void HttpTransfers::collect(std::vector<HttpResult>& results) {
  int running = 0;
  ::curl_multi_perform(multi_, &running);
  int left = 0;
  while (const CURLMsg* message = ::curl_multi_info_read(multi_, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const CURLcode code = message->data.result;
    Transfer* transfer = nullptr;
    ::curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
    curl_socket_t socket = CURL_SOCKET_BAD;
    if (code == CURLE_OK) {
      ::curl_easy_getinfo(transfer->easy, CURLINFO_ACTIVESOCKET, &socket);
    }
    last_socket_ = socket;
    last_end_ = std::chrono::steady_clock::now();
    ::curl_multi_remove_handle(multi_, transfer->easy);
    results.push_back(transfer->end(code));
    transfers_.erase(results.back().ticket);
  }
}

std::vector<HttpResult> HttpTransfers::wait(std::chrono::milliseconds longest) {
  std::vector<HttpResult> results;
  collect(results);
  if (results.empty()) {
    ::curl_multi_poll(multi_, nullptr, 0, static_cast<int>(longest.count()), nullptr);
    collect(results);
  }
  return results;
}

void HttpTransfers::abandon() {
  for (auto& [ticket, transfer] : transfers_) ::curl_multi_remove_handle(multi_, transfer->easy);
  transfers_.clear();
  last_socket_ = CURL_SOCKET_BAD;
}

bool HttpTransfers::is_connected() const {
  if (last_socket_ == CURL_SOCKET_BAD) return false;
  if (std::chrono::steady_clock::now() - last_end_ > kIdleMax) return false;
  // What comes on an idle connection is its end.
  pollfd ended{last_socket_, POLLIN, 0};
  return ::poll(&ended, 1, 0) == 0;
}

void HttpTransfers::wake() { ::curl_multi_wakeup(multi_); }

bool Origin::is_loopback() const {
  in_addr four{};
  in6_addr six{};
  if (::inet_pton(AF_INET, host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  if (::inet_pton(AF_INET6, host.c_str(), &six) == 1) return IN6_IS_ADDR_LOOPBACK(&six);
  return host == "localhost";
}

std::optional<Origin> parse_origin(const std::string& url) {
  Origin origin{.secure = url.starts_with("https://")};
  if (!origin.secure && !url.starts_with("http://")) return std::nullopt;
  // libcurl also reads "http:///host" and "http://host:".
  const std::string_view rest = std::string_view(url).substr(origin.secure ? 8 : 7);
  if (rest.starts_with('/') || rest.ends_with(':') || rest.ends_with(":/")) return std::nullopt;
  const std::unique_ptr<CURLU, void (*)(CURLU*)> parsed(::curl_url(), ::curl_url_cleanup);
  GNOMON_ASSERT(parsed != nullptr);
  if (::curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), CURLU_DISALLOW_USER) != CURLUE_OK) {
    return std::nullopt;
  }
  const auto part = [&](CURLUPart which) -> std::string {
    char* text = nullptr;
    if (::curl_url_get(parsed.get(), which, &text, 0) != CURLUE_OK) return {};
    const std::unique_ptr<char, void (*)(void*)> owned(text, ::curl_free);
    return text;
  };
  if (part(CURLUPART_PATH) != "/" || part(CURLUPART_PORT) == "0" ||
      !(part(CURLUPART_QUERY) + part(CURLUPART_FRAGMENT)).empty()) {
    return std::nullopt;
  }
  origin.host = part(CURLUPART_HOST);
  if (origin.host.starts_with('[')) origin.host = origin.host.substr(1, origin.host.size() - 2);
  return origin;
}

}  // namespace gnomon

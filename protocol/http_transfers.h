// Requests over HTTP/1.1 by libcurl, several at a time on one thread, over connections that are
// kept. http_transfers.cc is the one place that knows libcurl. Certificates and host names are
// checked, TLS is 1.2 or newer, no redirect is followed, and nothing raises SIGPIPE.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/tls_context.h"

namespace gnomon {

struct HttpCall {
  std::string method = "POST";
  std::string url;
  std::string target = {};                // stands for the URL's path and query, byte for byte
  std::vector<std::string> headers = {};  // "Name: value"
  std::string user_agent = {};
  std::string body = {};  // JSON
  // From the start to the answer's last byte, at most 10 s of it to connect.
  std::chrono::milliseconds timeout = std::chrono::seconds(10);
  uint64_t answer_bytes_max = 0;                // of the body
  std::shared_ptr<const TlsPem> tls = nullptr;  // empty parts: the system's authorities, no key
  std::string ciphers = {};                     // of TLS 1.2; empty: OpenSSL's choice
  bool proxies_of_environment = false;          // http_proxy, https_proxy, no_proxy
  bool new_connection = false;
};

struct HttpResponse {
  int status = 0;
  std::string body;
  std::string next = {};  // of a list: the target of the request that goes on (Link, rel="next")
  int retry_after = 0;    // seconds to wait before the next try, of 429 and 503; 0: not said
};

struct HttpResult {
  uint64_t ticket = 0;
  HttpResponse response = {};  // status 0: no answer, or none that is whole
  // Empty when the answer is whole. With a status: the body is longer than it may be, and the
  // response has its beginning.
  std::string error = {};
  bool connected = false;  // there was a connection, with TLS if it has any
};

class HttpTransfers {
 public:
  // Keeps so many connections that nothing is sent over.
  explicit HttpTransfers(long idle_connections_max);
  ~HttpTransfers();
  HttpTransfers(const HttpTransfers&) = delete;
  HttpTransfers& operator=(const HttpTransfers&) = delete;

  // Begins a request. `ticket` names it and is not that of another one under way.
  void start(uint64_t ticket, HttpCall call);
  // Works on what is under way until something has ended, wake() was called or the time is over.
  std::vector<HttpResult> wait(std::chrono::milliseconds longest);
  // Ends all that is under way, and its connections, without a result.
  void abandon();
  size_t under_way() const { return transfers_.size(); }
  // True when the next request to the same place will go over the last result's connection.
  bool is_connected() const;
  // From any thread: ends a wait() under way, or else the next one.
  void wake();

 private:
  struct Transfer;
  void collect(std::vector<HttpResult>& results);

  void* multi_;
  std::map<uint64_t, std::unique_ptr<Transfer>> transfers_;
  int last_socket_ = -1;
  std::chrono::steady_clock::time_point last_end_;
};

// The start of a URL.
struct Origin {
  bool secure = false;    // https
  std::string host = {};  // without the brackets of an IPv6 address
  // True when nothing that is sent there leaves this machine.
  bool is_loopback() const;
};

// "http://127.0.0.1:7717", "https://gnomon.example/". Nothing for any other scheme, and for a URL
// with a user, a path, a query or a fragment.
std::optional<Origin> parse_origin(const std::string& url);

}  // namespace gnomon

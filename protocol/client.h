// The HTTP client that trainers, verifiers and the command line use to speak to gnomond. Blocking,
// one connection kept alive per object, not thread-safe: one object per thread.
#pragma once

#include <atomic>
#include <chrono>
#include <string>

#include "base/errors.h"
#include "protocol/client_options.h"
#include "protocol/http_transfers.h"

namespace gnomon {

// True when a request that was answered so may be taken later as it is: the controller is busy,
// full or away (408, 429, 502, 503, 504, 507), or refuses a token, which may be replaced (401,
// 403).
bool may_pass(int status);
// A request that has met so many errors of the server (5xx) that do not pass by themselves is given
// up.
inline constexpr int kServerErrorsMax = 20;

// The controller could not be reached or did not answer in time; the request may or may not have
// been carried out.
class ConnectionError : public Error {
 public:
  using Error::Error;
};

// The controller answered with an error status. what() is the problem document's title and detail.
class ApiError : public Error {
 public:
  ApiError(int status, const std::string& message, std::string title = {}, int retry_after = 0)
      : Error(message), status_(status), title_(std::move(title)), retry_after_(retry_after) {}
  int status() const { return status_; }
  // Seconds, as HttpResponse has them.
  int retry_after() const { return retry_after_; }
  // It is the token, or its absence, that is not accepted. Nothing was recorded.
  bool refuses_token() const { return status_ == 401 || status_ == 403; }
  // The problem document's; empty when the answer was none, and so not gnomond's.
  const std::string& title() const { return title_; }

 private:
  int status_;
  std::string title_;
  int retry_after_;
};

// How long the controller wants nothing more from who got this error: zero, or at most a minute.
std::chrono::milliseconds asked_pause(const std::exception& error);

class HttpClient {
 public:
  // Does not connect yet, but looks at everything that is named. Throws ConfigError (keys
  // controller, token_file, token, ca_file, certificate_file, key_file), also when a token would go
  // in the clear to another machine.
  explicit HttpClient(ClientOptions options);
  // Uses a URL like "http://127.0.0.1:7717" alone, whatever the environment says.
  explicit HttpClient(const std::string& url) : HttpClient(ClientOptions{.url = url}) {}

  // One request, reconnecting once if a kept-alive connection was found closed. Throws
  // ConnectionError, also for a certificate that does not fit. A status >= 400 is returned, not
  // thrown; after one that refuses the token the next request makes a new connection, with the
  // token as it is then.
  HttpResponse request(const std::string& method, const std::string& target,
                       const std::string& body = {},
                       std::chrono::milliseconds timeout = std::chrono::seconds(10));

  // Same, but a status >= 400 throws ApiError.
  HttpResponse checked(const std::string& method, const std::string& target,
                       const std::string& body = {},
                       std::chrono::milliseconds timeout = std::chrono::seconds(10));

  // From any thread: makes the request in flight, or else the next one, fail at once with
  // ConnectionError (for ending long polls).
  void cancel();

 private:
  HttpResult exchange(HttpCall call);

  ClientOptions options_;
  Origin origin_;
  // What the files said when the connection was made.
  std::string token_;
  std::shared_ptr<const TlsPem> tls_;
  bool token_refused_ = false;
  HttpTransfers transfers_{1};
  std::atomic<bool> cancelled_{false};
};

}  // namespace gnomon

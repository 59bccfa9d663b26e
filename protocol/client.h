// The HTTP client that trainers, verifiers and the command line use to speak to gnomond. Blocking,
// one connection kept alive per object, not thread-safe: one object per thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/errors.h"

namespace gnomon {

struct HttpResponse {
  int status = 0;
  std::string body;
  std::string next = {};  // of a list: the target of the request that goes on (Link, rel="next")
};

// The controller could not be reached or did not answer in time; the request may or may not have
// been carried out.
class ConnectionError : public Error {
 public:
  using Error::Error;
};

// The controller answered with an error status. what() is the problem document's title and detail.
class ApiError : public Error {
 public:
  ApiError(int status, const std::string& message, std::string title = {})
      : Error(message), status_(status), title_(std::move(title)) {}
  int status() const { return status_; }
  // The problem document's; empty when the answer was none, and so not gnomond's.
  const std::string& title() const { return title_; }

 private:
  int status_;
  std::string title_;
};

class HttpClient {
 public:
  // `url` like "http://127.0.0.1:7717". Throws ConfigError when it is not an http URL. Does not
  // connect yet.
  explicit HttpClient(const std::string& url);
  ~HttpClient();

  // One request, reconnecting once if a kept-alive connection was found closed. Throws
  // ConnectionError. A status >= 400 is returned, not thrown.
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
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gnomon

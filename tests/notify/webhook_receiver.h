// A receiver of webhooks on loopback, plain or in TLS, that remembers what came and answers what a
// test wants.
#pragma once

#include <boost/json.hpp>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "tests/protocol/http_test_server.h"

namespace gnomon::test {

struct Delivery {
  HttpRequest request;
  boost::json::value body;
  int status = 0;  // that it was answered with
  std::string id() const { return request.headers.at("x-gnomon-delivery"); }
  const boost::json::object& alert() const { return body.at("alerts").at(0).as_object(); }
  std::string label(const char* name) const;
  std::string annotation(const char* name) const;
};

class WebhookReceiver {
 public:
  // `answer` is given what came and how many came before; 200 when it is empty.
  using Answer = std::function<HttpReply(const Delivery&, size_t before)>;
  explicit WebhookReceiver(Answer answer = {}, HttpTestTls tls = {});

  std::string url() const { return server_.url() + "/hook"; }
  // All of them, in the order in which they came; and those that were answered with 2xx.
  std::vector<Delivery> all() const;
  std::vector<Delivery> taken() const;
  // Until so many were taken; false when that does not happen.
  bool await_taken(size_t count) const;
  HttpTestServer& server() { return server_; }

 private:
  mutable std::mutex mutex_;
  std::vector<Delivery> deliveries_;
  Answer answer_;
  HttpTestServer server_;  // last: its threads use the others
};

}  // namespace gnomon::test

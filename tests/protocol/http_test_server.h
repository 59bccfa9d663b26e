// A real HTTP server on loopback whose answers a test decides, plain or in TLS. One thread per
// connection, kept alive between requests. It can be stopped and started again on the same port,
// close without answering, or answer late.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace gnomon::test {

struct HttpRequest {
  std::string method;
  std::string target;
  std::string body = {};
  std::map<std::string, std::string> headers = {};  // names in lower case
};

struct HttpReply {
  int status = 200;
  std::string body = {};
  std::map<std::string, std::string> headers = {};
  bool chunked = false;           // the body comes without its length
  bool close_unanswered = false;  // drop the connection instead of answering
  bool close_after = false;  // answer, then close although the client would keep the connection
};

// Files of what a server shows in TLS, PEM; without a certificate it speaks plain HTTP.
struct HttpTestTls {
  std::string certificate = {};
  std::string key = {};
};

class HttpTestServer {
 public:
  using Handler = std::function<HttpReply(const HttpRequest&)>;

  // Listens at once on a free port of 127.0.0.1. `handler` is called on connection threads, also
  // concurrently.
  explicit HttpTestServer(Handler handler, HttpTestTls tls = {});
  int port() const { return port_; }
  ~HttpTestServer();

  std::string url() const;
  int connections() const { return connections_; }  // accepted so far

  // Closes every connection and the listening socket, and waits for handlers to return.
  void stop();
  // Listens again on the same port.
  void start();

  // For handlers that answer late: waits until release() or stop().
  void hold();
  void release();

 private:
  struct Connection;
  void accept_loop(int listener);
  void serve(const std::shared_ptr<Connection>& connection);
  template <typename Stream>
  void answer_all(Stream& stream);

  Handler handler_;
  HttpTestTls tls_;
  int port_ = 0;
  std::atomic<int> listener_{-1};
  std::atomic<int> connections_{0};
  std::atomic<bool> stopping_{false};
  std::thread accept_thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool released_ = false;
  std::vector<std::shared_ptr<Connection>> open_;
};

}  // namespace gnomon::test

// A small HTTP proxy on loopback, as http_proxy and https_proxy name one: plain requests and
// CONNECT. Whatever host it is asked for, it goes to the port of this machine, so that a test can
// tell who asked it from who did not.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/sockets.h"

namespace gnomon::test {

class ForwardProxy {
 public:
  // Without `willing` it answers everything with 403.
  explicit ForwardProxy(bool willing = true);
  ~ForwardProxy();
  ForwardProxy(const ForwardProxy&) = delete;
  ForwardProxy& operator=(const ForwardProxy&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  // What it was asked first on each connection: the request's line and headers.
  std::vector<std::string> asked() const;

 private:
  void accept_all();
  void serve(const FileDescriptor& client);
  // Passes on what comes until one side has gone.
  void pass_on(const FileDescriptor& client, const FileDescriptor& server) const;

  bool willing_;
  int port_ = 0;
  FileDescriptor listener_;
  std::atomic<bool> leaving_ = false;
  mutable std::mutex mutex_;
  std::vector<std::string> asked_;
  std::thread thread_;
};

}  // namespace gnomon::test

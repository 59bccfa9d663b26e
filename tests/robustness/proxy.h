// A network between clients and the daemon that loses, delays, repeats and reorders requests, cuts
// connections in the middle of a request or an answer, and is partitioned for a while. It reads
// HTTP/1.1 requests with Content-Length, which is what the clients here send.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/robustness/draw.h"
#include "tests/robustness/record.h"
#include "tests/support/sockets.h"

namespace gnomon::robustness {

class Proxy {
 public:
  // Listens on a free port of loopback. Throws SystemError.
  Proxy(Record& record, uint64_t seed);
  // Lets go of everything.
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  int port() const { return port_; }
  // Where the daemon listens now.
  void lead_to(int port) { target_ = port; }
  // Nothing passes until it is called with false.
  void partition(bool on) { partitioned_ = on; }
  // From now on everything passes as it is.
  void calm_down() { calm_ = true; }

 private:
  struct Exchange;
  void accept_all();
  void serve(FileDescriptor client, uint64_t number);
  bool pass_on(Exchange& exchange, const std::string& request, Draw& draw);
  // Sends it alone, on a connection of its own, and reads the answer, which nobody gets.
  void repeat(const std::string& request) const;
  void repeat_late(const std::string& request);
  void run_repeats();

  Record& record_;
  uint64_t seed_;
  int port_ = 0;
  FileDescriptor listener_;
  std::atomic<int> target_ = 0;
  std::atomic<bool> partitioned_ = false;
  std::atomic<bool> calm_ = false;
  std::atomic<bool> leaving_ = false;
  std::mutex mutex_;
  std::deque<std::string> late_;  // to be sent once more, in no hurry
  std::vector<std::thread> threads_;
};

}  // namespace gnomon::robustness

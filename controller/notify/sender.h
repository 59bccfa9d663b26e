// Requests to receivers, several at a time, with the proxies of the environment. One thread works
// with it; wake() is for any.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "controller/notify/receiver.h"
#include "protocol/http_transfers.h"

namespace gnomon::notify {

struct Answer {
  uint64_t ticket = 0;
  int status = 0;          // 0: there was none
  std::string error = {};  // why there was none; without the address
  std::string body = {};   // its beginning
  double retry_after = 0;  // seconds; 0 = not said
  // "status 503: ...", or the error.
  std::string words() const;
};

class Sender {
 public:
  // Begins a POST of JSON, signed and authorized as the receiver wants it; `time` is of the
  // signature, seconds since the epoch. `delivery` may be empty. Returns what the answer is known
  // by.
  uint64_t post(const Receiver& receiver, const std::string& body, const std::string& delivery,
                double time);
  // Works on what is under way until something has been answered, wake() was called, or the time is
  // over.
  std::vector<Answer> wait(std::chrono::milliseconds longest);
  size_t under_way() const { return transfers_.under_way() + unsent_.size(); }
  void wake() { transfers_.wake(); }

 private:
  HttpTransfers transfers_{16};
  uint64_t next_ticket_ = 1;
  std::vector<Answer> unsent_;  // those whose file of authorities cannot be used
};

}  // namespace gnomon::notify

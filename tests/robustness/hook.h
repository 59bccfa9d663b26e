// A receiver of the notifications of a history: it takes messages, refuses them, answers late or
// not at all, as the seed draws, and remembers what came.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/robustness/draw.h"
#include "tests/robustness/record.h"
#include "tests/support/sockets.h"

namespace gnomon::robustness {

struct Arrival {
  std::string delivery;   // X-Gnomon-Delivery
  std::string signature;  // X-Gnomon-Signature
  std::string body;
  int64_t came = 0;        // moments of one clock, which counts what happens to this receiver
  int64_t ended = 0;       // an answer after which it need not come again; 0 = none
  bool abandoned = false;  // nobody waited for the answer any more when it was read
};

class Hook {
 public:
  // Listens on a free port of loopback. Throws SystemError.
  Hook(Record& record, uint64_t seed, int number);
  // Lets go of everything.
  ~Hook();
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;

  // Its [[notify]] for gnomond; the key of its signature is in `secret_file`.
  std::string configuration(const std::string& secret_file) const;
  const std::string& name() const { return name_; }
  const std::string& minimum_severity() const { return minimum_severity_; }
  const std::string& secret() const { return secret_; }
  // From now on it takes everything at once.
  void calm_down() { calm_ = true; }
  // In the order in which they came.
  std::vector<Arrival> arrivals() const;

 private:
  void accept_all();
  void serve(FileDescriptor sender, uint64_t number);
  // False when the connection is to be cut.
  bool answer(int sender, const std::string& request, Draw& draw);
  size_t note(Arrival arrival);
  void note_end(size_t arrival);

  Record& record_;
  uint64_t seed_;
  std::string name_;
  std::string minimum_severity_;
  std::string secret_;
  int port_ = 0;
  FileDescriptor listener_;
  std::atomic<bool> calm_ = false;
  std::atomic<bool> leaving_ = false;
  mutable std::mutex mutex_;
  std::vector<Arrival> arrivals_;
  int64_t clock_ = 0;
  std::thread thread_;
};

}  // namespace gnomon::robustness

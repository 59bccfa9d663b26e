// Orderly ends: a flag that threads can wait on, and signals turned into it without handlers:
// SIGTERM, SIGINT, and SIGUSR1, which batch systems send ahead of the end and mpirun passes on at
// once.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "base/errors.h"
#include "base/signals.h"

namespace gnomon {

// Thread-safe. Once requested it stays so.
class Shutdown {
 public:
  void request();
  bool requested() const;
  // Waits until requested, `duration` at most. Returns whether it is requested.
  bool wait_for(std::chrono::milliseconds duration);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool requested_ = false;
};

// A shutdown was asked for while something could not be stored. The run can be resumed.
class Interrupted : public Error {
 public:
  using Error::Error;
};

// Blocks these signals in the calling thread and threads made later. What starts threads before
// there are EndingSignals, as MPI does, must come after it.
void block_ending_signals();

// Calls `on_signal` on a thread of its own for the first of these signals. A second one ends the
// process at once, as the system's default does. Make it before any other thread.
class EndingSignals {
 public:
  explicit EndingSignals(std::function<void(int)> on_signal);

 private:
  bool first_ = true;
  SignalListener listener_;
};

}  // namespace gnomon

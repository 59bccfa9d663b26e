// Orderly ends: a flag that threads can wait on, and SIGTERM/SIGINT turned into it without signal
// handlers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/files.h"

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

// Blocks SIGTERM and SIGINT in the calling thread (and threads made later) and calls `on_signal` on
// a thread of its own for the first one. A second one ends the process at once, as the system's
// default does. Make it before any other thread. SIGPIPE and SIGXFSZ are ignored from then on:
// writes report those errors themselves.
class SignalListener {
 public:
  explicit SignalListener(std::function<void(int)> on_signal);
  ~SignalListener();

 private:
  void listen();

  std::function<void(int)> on_signal_;
  FileDescriptor signals_;
  FileDescriptor ended_;
  std::thread thread_;
};

}  // namespace gnomon

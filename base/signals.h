// Signals without handlers: they are blocked in every thread, and one thread reads them.
#pragma once

#include <functional>
#include <span>
#include <thread>

#include "base/files.h"

namespace gnomon {

// Blocks these signals in the calling thread and in threads made later. Call it before anything
// starts a thread. A signal that comes meanwhile waits for a SignalListener.
void block_signals(std::span<const int> numbers);

// Ignores SIGPIPE and SIGXFSZ: writes report those errors themselves.
void ignore_write_signals();

// Ends the process as this signal does by default. Another thread may have it blocked.
void end_by_signal(int number);

// Blocks these signals too, and calls `on_signal` on a thread of its own for each one. They stay
// blocked when it is gone. Throws SystemError.
class SignalListener {
 public:
  SignalListener(std::span<const int> numbers, std::function<void(int)> on_signal);
  ~SignalListener();

 private:
  void listen();

  std::function<void(int)> on_signal_;
  FileDescriptor signals_;
  FileDescriptor ended_;
  std::thread thread_;
};

}  // namespace gnomon

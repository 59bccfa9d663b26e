// Wakes those who wait for something new: long polls and event streams. A waiter notes count()
// before it looks at the ledger and then waits for a ring after that count, so that nothing new can
// slip between the two.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

namespace gnomon {

class Bell {
 public:
  uint64_t count() const;
  // Calls every waiting callback once, on this thread; they must be short and must not throw.
  void ring();
  // Registers a callback for the first ring after `seen`. Returns 0, without registering, when
  // there was one already.
  uint64_t wait(uint64_t seen, std::function<void()> callback);
  // Takes a callback back; it may just be running on another thread.
  void forget(uint64_t ticket);

 private:
  mutable std::mutex mutex_;
  uint64_t count_ = 0;
  uint64_t next_ticket_ = 1;
  std::map<uint64_t, std::function<void()>> waiting_;
};

// The bells of the daemon.
struct Bells {
  Bell work;        // a replay was queued
  Bell directives;  // a directive was issued to some run
  Bell stream;      // a row was added to the stream
  void ring_all() {
    work.ring();
    directives.ring();
    stream.ring();
  }
};

}  // namespace gnomon

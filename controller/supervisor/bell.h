// Wakes those who wait for something new: long polls and event streams. A waiter notes count()
// before it looks at the ledger and then waits for a ring after that count, so that nothing new can
// slip between the two.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "controller/leases/work_board.h"
#include "controller/supervisor/stream_tail.h"

namespace gnomon {

// Something that can be waited for: `wait` registers a callback for the next time and gives a
// ticket; 0, and nothing is registered, when there is no need to wait. `forget` takes it back; the
// callback may just be running on another thread.
struct Awaited {
  std::function<uint64_t(std::function<void()>)> wait;
  std::function<void(uint64_t ticket)> forget;
};

class Bell {
 public:
  using Waiting = std::map<uint64_t, std::function<void()>>;
  // Calls many callbacks elsewhere, so that who rings (the ledger's writer) need not.
  using Carrier = std::function<void(std::shared_ptr<Waiting>)>;

  // `carrier` outlives the bell; without one, or while it is empty, ring() calls everybody itself.
  explicit Bell(const Carrier* carrier = nullptr) : carrier_(carrier) {}
  uint64_t count() const;
  // Calls every waiting callback once, on this thread while they are few, else by the carrier; they
  // must be short and must not throw.
  void ring();
  // Registers a callback for the first ring after `seen`. Returns 0, without registering, when
  // there was one already.
  uint64_t wait(uint64_t seen, std::function<void()> callback);
  // Takes a callback back; it may just be running on another thread.
  void forget(uint64_t ticket);
  // The first ring after `seen`; the bell outlives it.
  Awaited after(uint64_t seen);

 private:
  const Carrier* carrier_;
  mutable std::mutex mutex_;
  uint64_t count_ = 0;
  uint64_t next_ticket_ = 1;
  Waiting waiting_;
};

// A bell for each run, so that what happens to one wakes nobody who waits for another. A bell, once
// asked for, stays where it is.
class RunBells {
 public:
  explicit RunBells(const Bell::Carrier* carrier) : carrier_(carrier) {}
  Bell& of(int64_t run);
  void ring_all();

 private:
  const Bell::Carrier* carrier_;
  std::mutex mutex_;
  std::map<int64_t, Bell> bells_;
};

// The bells of the daemon.
struct Bells {
  Bell::Carrier carrier;          // set before the first waiter
  WorkBoard work;                 // replays that wait for a verifier
  RunBells directives{&carrier};  // a directive was issued to a run
  Bell stream{&carrier};          // a row was added to the stream
  StreamTail tail;                // the newest of these rows
  void ring_all() {
    work.wake_all();
    directives.ring_all();
    stream.ring();
  }
};

}  // namespace gnomon

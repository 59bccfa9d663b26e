// Wakes those who wait for something new: long polls and event streams. A waiter notes count()
// before it reads the ledger and then waits for a notification after that count, so that it misses
// nothing that comes between the two.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "controller/supervisor/stream_tail.h"

namespace gnomon {

// Something that can be waited for: `wait` registers a callback for the next time and gives a
// ticket; 0, and nothing is registered, when there is no need to wait. `forget` takes it back; the
// callback may just be running on another thread.
struct Awaited {
  std::function<uint64_t(std::function<void()>)> wait;
  std::function<void(uint64_t ticket)> forget;
};

class ChangeNotifier {
 public:
  using Waiting = std::map<uint64_t, std::function<void()>>;
  // Calls many callbacks on another thread, so that the caller of notify_all() (the ledger's
  // writer) need not.
  using Dispatcher = std::function<void(std::shared_ptr<Waiting>)>;

  // `dispatcher` outlives the notifier; without one, or while it is empty, notify_all() makes every
  // call itself.
  explicit ChangeNotifier(const Dispatcher* dispatcher = nullptr) : dispatcher_(dispatcher) {}
  uint64_t count() const;
  // Calls every waiting callback once, on this thread while they are few, else by the dispatcher;
  // they must be short and must not throw.
  void notify_all();
  // Registers a callback for the first notification after `seen`. Returns 0, without registering,
  // when there was one already.
  uint64_t wait(uint64_t seen, std::function<void()> callback);
  // Takes a callback back; it may just be running on another thread.
  void forget(uint64_t ticket);
  // The first notification after `seen`; the notifier outlives it.
  Awaited after(uint64_t seen);

 private:
  const Dispatcher* dispatcher_;
  mutable std::mutex mutex_;
  uint64_t count_ = 0;
  uint64_t next_ticket_ = 1;
  Waiting waiting_;
};

// A notifier for each run: a change of one run wakes nobody who waits for another. The address of a
// notifier, once asked for, stays valid.
class RunNotifiers {
 public:
  explicit RunNotifiers(const ChangeNotifier::Dispatcher* dispatcher) : dispatcher_(dispatcher) {}
  ChangeNotifier& of(int64_t run);
  void notify_all();

 private:
  const ChangeNotifier::Dispatcher* dispatcher_;
  std::mutex mutex_;
  std::map<int64_t, ChangeNotifier> notifiers_;
};

// Wakes the event streams, and keeps the newest rows for them.
class StreamNotifier : public ChangeNotifier {
 public:
  using ChangeNotifier::ChangeNotifier;
  void publish(StreamEventPtr event) {
    tail.push(std::move(event));
    notify_all();
  }

  StreamTail tail;
};

// The notifiers of the daemon.
struct ChangeNotifiers {
  ChangeNotifier::Dispatcher dispatcher;  // set before the first waiter
  RunNotifiers directives{&dispatcher};   // a directive was issued to a run
  StreamNotifier stream{&dispatcher};     // a row was added to the stream
  void notify_all() {
    directives.notify_all();
    stream.notify_all();
  }
};

}  // namespace gnomon

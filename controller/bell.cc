#include "controller/bell.h"

namespace gnomon {

uint64_t Bell::count() const {
  std::lock_guard lock(mutex_);
  return count_;
}

void Bell::ring() {
  std::map<uint64_t, std::function<void()>> waiting;
  {
    std::lock_guard lock(mutex_);
    ++count_;
    waiting.swap(waiting_);
  }
  for (auto& [ticket, callback] : waiting) {
    callback();
  }
}

uint64_t Bell::wait(uint64_t seen, std::function<void()> callback) {
  std::lock_guard lock(mutex_);
  if (count_ != seen) {
    return 0;
  }
  uint64_t ticket = next_ticket_++;
  waiting_.emplace(ticket, std::move(callback));
  return ticket;
}

void Bell::forget(uint64_t ticket) {
  std::lock_guard lock(mutex_);
  waiting_.erase(ticket);
}

}  // namespace gnomon

#include "controller/supervisor/bell.h"

#include <vector>

namespace gnomon {
namespace {

constexpr size_t kFew = 16;

}  // namespace

uint64_t Bell::count() const {
  std::lock_guard lock(mutex_);
  return count_;
}

void Bell::ring() {
  auto waiting = std::make_shared<Waiting>();
  {
    std::lock_guard lock(mutex_);
    ++count_;
    waiting->swap(waiting_);
  }
  if (waiting->size() > kFew && carrier_ != nullptr && *carrier_) {
    (*carrier_)(std::move(waiting));
    return;
  }
  for (auto& [ticket, callback] : *waiting) {
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

Awaited Bell::after(uint64_t seen) {
  return {[this, seen](std::function<void()> callback) { return wait(seen, std::move(callback)); },
          [this](uint64_t ticket) { forget(ticket); }};
}

Bell& RunBells::of(int64_t run) {
  std::lock_guard lock(mutex_);
  return bells_.try_emplace(run, carrier_).first->second;
}

void RunBells::ring_all() {
  std::vector<Bell*> all;
  {
    std::lock_guard lock(mutex_);
    for (auto& [run, bell] : bells_) all.push_back(&bell);
  }
  for (Bell* bell : all) bell->ring();
}

}  // namespace gnomon

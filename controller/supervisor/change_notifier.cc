#include "controller/supervisor/change_notifier.h"

#include <vector>

namespace gnomon {
namespace {

constexpr size_t kFew = 16;

}  // namespace

uint64_t ChangeNotifier::count() const {
  std::lock_guard lock(mutex_);
  return count_;
}

void ChangeNotifier::notify_all() {
  auto waiting = std::make_shared<Waiting>();
  {
    std::lock_guard lock(mutex_);
    ++count_;
    waiting->swap(waiting_);
  }
  if (waiting->size() > kFew && dispatcher_ != nullptr && *dispatcher_) {
    (*dispatcher_)(std::move(waiting));
    return;
  }
  for (auto& [ticket, callback] : *waiting) {
    callback();
  }
}

uint64_t ChangeNotifier::wait(uint64_t seen, std::function<void()> callback) {
  std::lock_guard lock(mutex_);
  if (count_ != seen) {
    return 0;
  }
  uint64_t ticket = next_ticket_++;
  waiting_.emplace(ticket, std::move(callback));
  return ticket;
}

void ChangeNotifier::forget(uint64_t ticket) {
  std::lock_guard lock(mutex_);
  waiting_.erase(ticket);
}

Awaited ChangeNotifier::after(uint64_t seen) {
  return {[this, seen](std::function<void()> callback) { return wait(seen, std::move(callback)); },
          [this](uint64_t ticket) { forget(ticket); }};
}

ChangeNotifier& RunNotifiers::of(int64_t run) {
  std::lock_guard lock(mutex_);
  return notifiers_.try_emplace(run, dispatcher_).first->second;
}

void RunNotifiers::notify_all() {
  std::vector<ChangeNotifier*> all;
  {
    std::lock_guard lock(mutex_);
    for (auto& [run, notifier] : notifiers_) all.push_back(&notifier);
  }
  for (ChangeNotifier* notifier : all) notifier->notify_all();
}

}  // namespace gnomon

#include "controller/daemon/bounded_posts.h"

#include <utility>

namespace gnomon {

bool BoundedPosts::post(Ledger& ledger, int64_t subject, Ledger::Write write,
                        std::function<void(std::exception_ptr)> failed) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->under_way.contains(subject)) return true;
    if (state_->under_way.size() >= most_) return false;
    state_->under_way.insert(subject);
  }
  const auto end = [state = state_, subject] {
    const std::lock_guard lock(state->mutex);
    state->under_way.erase(subject);
  };
  const bool accepted =
      ledger.post(std::move(write), [end, failed = std::move(failed)](std::exception_ptr error) {
        if (error) failed(error);
        end();
      });
  if (!accepted) end();
  return accepted;
}

}  // namespace gnomon

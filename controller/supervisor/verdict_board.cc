#include "controller/supervisor/verdict_board.h"

#include <utility>

namespace gnomon {

void VerdictBoard::set(int64_t run, decide::VerdictFacts facts) {
  const std::lock_guard lock(mutex_);
  facts_[run] = std::move(facts);
}

void VerdictBoard::forget(int64_t run) {
  const std::lock_guard lock(mutex_);
  facts_.erase(run);
  busy_until_.erase(run);
}

void VerdictBoard::trainer_busy(int64_t run, double until) {
  const std::lock_guard lock(mutex_);
  busy_until_[run] = until;
}

double VerdictBoard::busy_until(int64_t run) const {
  const auto found = busy_until_.find(run);
  return found == busy_until_.end() ? 0 : found->second;
}

std::optional<VerdictBoard::Shown> VerdictBoard::of(int64_t run, double now) const {
  const std::lock_guard lock(mutex_);
  const auto found = facts_.find(run);
  if (found == facts_.end()) return std::nullopt;
  return Shown{decide::run_verdict(found->second, now, busy_until(run)), found->second.lag_steps};
}

void VerdictBoard::each(double now, const Visit& visit) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [run, facts] : facts_) {
    visit(run, decide::verdict_kind(facts, now, busy_until(run)), facts);
  }
}

}  // namespace gnomon

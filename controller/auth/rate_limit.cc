#include "controller/auth/rate_limit.h"

#include <algorithm>

namespace gnomon {

double RateLimiter::acquire(const std::string& key, const Rate& rate, double now) {
  if (rate.per_second <= 0) return 0;
  const std::lock_guard lock(mutex_);
  auto found = full_at_.find(key);
  if (found == full_at_.end()) {
    if (full_at_.size() >= keys_max_) drop_full_buckets(now);
    found = full_at_.size() < keys_max_ ? full_at_.emplace(key, now).first
                                        : full_at_.emplace("", now).first;
  }
  const double one = 1 / rate.per_second;
  const double then = std::max(found->second, now) + one;
  const double wait = then - now - std::max(rate.burst, 1.0) * one;
  if (wait > 1e-9) return wait;
  found->second = then;
  return 0;
}

// A full bucket says the same as none.
void RateLimiter::drop_full_buckets(double now) {
  std::erase_if(full_at_, [now](const auto& each) { return each.second <= now; });
}

size_t RateLimiter::keys() const {
  const std::lock_guard lock(mutex_);
  return full_at_.size();
}

}  // namespace gnomon

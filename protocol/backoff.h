// Waiting times between attempts to reach a peer that is away: exponential with full jitter, so
// that many clients of one controller do not come back in step ("Exponential Backoff And Jitter",
// AWS Architecture Blog, 2015).
#pragma once

#include <algorithm>
#include <chrono>
#include <random>

namespace gnomon {

class Backoff {
 public:
  using Duration = std::chrono::milliseconds;

  explicit Backoff(Duration first = std::chrono::milliseconds(100),
                   Duration longest = std::chrono::seconds(10),
                   unsigned seed = std::random_device{}())
      : first_(first), longest_(longest), bound_(first), random_(seed) {}

  // The next time to wait: at least half of a bound that doubles up to `longest`, and at least
  // `asked`, up to a quarter longer.
  Duration next(Duration asked = Duration(0)) {
    const Duration bound = bound_;
    bound_ = std::min(bound_ * 2, longest_);
    return std::max(between(bound / 2, bound), between(asked, asked + asked / 4));
  }
  void reset() { bound_ = first_; }

 private:
  Duration between(Duration low, Duration high) {
    return Duration(
        std::uniform_int_distribution<Duration::rep>(low.count(), high.count())(random_));
  }

  Duration first_;
  Duration longest_;
  Duration bound_;
  std::minstd_rand random_;
};

}  // namespace gnomon

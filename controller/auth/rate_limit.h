// How many requests a second each principal may make: a token bucket for each key, kept as one time
// (the generic cell rate algorithm, ITU-T I.371). Bounded: beyond so many keys at once, new ones
// share a bucket.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <unordered_map>

namespace gnomon {

struct Rate {
  double per_second = 0;  // 0: no limit
  double burst = 1;       // requests at once, after a pause
  bool operator==(const Rate&) const = default;
};

class RateLimiter {
 public:
  explicit RateLimiter(size_t keys_max = 4096) : keys_max_(keys_max) {}

  // Takes one request of `key` at `now` (seconds of a clock that never jumps) and returns 0; or
  // takes none and returns after how many seconds one would be taken.
  double acquire(const std::string& key, const Rate& rate, double now);
  size_t keys() const;

 private:
  void drop_full_buckets(double now);

  const size_t keys_max_;
  mutable std::mutex mutex_;
  // By key, when its bucket is full again.
  std::unordered_map<std::string, double> full_at_;
};

}  // namespace gnomon

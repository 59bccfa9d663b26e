// Chance that a seed decides: each thread of a history has a stream of its own, so that what one
// draws does not depend on how fast another is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/philox.h"

namespace gnomon::robustness {

class Draw {
 public:
  Draw(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}

  uint32_t word() { return philox(seed_, stream_, next_++)[0]; }
  bool chance(double probability) { return philox_uniform(word()) < probability; }
  // Both included.
  int64_t between(int64_t from, int64_t to) {
    return from + static_cast<int64_t>(word() % static_cast<uint64_t>(to - from + 1));
  }
  template <typename Value, size_t size>
  const Value& one_of(const std::array<Value, size>& values) {
    return values[static_cast<size_t>(between(0, size - 1))];
  }

 private:
  uint64_t seed_;
  uint64_t stream_;
  uint64_t next_ = 0;
};

}  // namespace gnomon::robustness

// Timing of what a device does later than it is called, for the benchmarks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace gnomon {

// One thing to be timed: `before` runs untimed before each batch of calls of `work`.
struct BenchWork {
  std::function<void()> work;
  std::function<void()> before = [] {};
};

// Seconds of one call; or why there are none.
struct BenchTime {
  double seconds = 0;
  std::string error = {};
  bool ok() const { return error.empty(); }
};

struct BenchRounds {
  int rounds = 5;
  double least_seconds = 0.02;  // of a batch of calls, so that a clock and a start cost nothing
};

class BenchClock {
 public:
  // `memory` must outlive this.
  explicit BenchClock(Memory& memory) : memory_(memory), mark_(memory) { mark_.at_least(1); }

  // Returns when the device has done all that was asked of it.
  void wait();
  // Seconds for each of `calls` calls one after another, from a device that has nothing to do until
  // it has nothing to do again.
  double seconds(const BenchWork& work, int calls);
  // Medians over the rounds, in each of which every work has its turn, after a call that is not
  // counted. A work that throws Error has no time but its text.
  std::vector<BenchTime> medians(const std::vector<BenchWork>& works, const BenchRounds& rounds);

 private:
  Memory& memory_;
  Buffer<std::byte> mark_;
};

// Random values between −spread and spread, a block of which is repeated: its length is prime, so
// that no two rows of a matrix are alike.
void fill_random(Memory& memory, std::span<bf16> values, uint64_t key, float spread = 2);
void fill_random(Memory& memory, std::span<float> values, uint64_t key, float spread = 2);

}  // namespace gnomon

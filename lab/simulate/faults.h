// What goes wrong in one run, drawn before it begins: the same seed gives the same faults under any
// policy.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "lab/simulate/run_model.h"

namespace gnomon::simulate {

// Numbers that follow from a key and a place in a stream.
class Draw {
 public:
  Draw(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}
  double uniform();  // in (0, 1)
  double gaussian();
  double exponential();
  double log_uniform(double low, double high);

 private:
  uint64_t seed_;
  uint64_t stream_;
  uint64_t index_ = 0;
};

struct Fault {
  FaultKind kind = FaultKind::kNumerics;
  int64_t from = 0;    // first step it acts in; of what does not come again: steps ever trained
  int64_t to = 0;      // first step without it
  uint64_t sites = 0;  // guilty ones, a bit each in the model's order
  // kNumerics, kKernelBug: per cent of the loss a step; kBitFlip, kHardware, kSkippedBatch: per
  // cent at once; kOverflow, kSpike: nats, infinite = not finite; kScaleDrift: factor.
  double size = 0;

  bool acts(int64_t step) const { return step >= from && step < to; }
};

inline constexpr int64_t kNeverEnds = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kFaultsMax = 256;        // of a kind
inline constexpr double kHardwareChance = 0.002;  // of a step on a broken host to be hit

// In the order of their first steps. Steps up to twice the run's are covered, for what is done
// again.
std::vector<Fault> draw_faults(const RunModel& model, uint64_t seed);

}  // namespace gnomon::simulate

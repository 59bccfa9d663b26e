// The products of a training step alone, on memory of their own: what a step's rate is held
// against.
#pragma once

#include <memory>
#include <vector>

#include "base/stopwatch.h"
#include "lab/bench/clock.h"
#include "trainer/engine/engine.h"

namespace gnomon {

// A product of the model's step and how often a step runs it (lm_head's, made in parts of a
// micro-batch, as often as there are whole parts).
struct StepGemm {
  GemmShape shape;
  bool fp32_output = false;
  double count = 1;

  double flops() const {
    return 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
           static_cast<double>(shape.k);
  }
};

// fprop, dgrad and wgrad of every site, those that read the same input as one.
std::vector<StepGemm> gemms_of_step(const EngineConfig& config);
// The index of the largest.
size_t largest_gemm(const std::vector<StepGemm>& gemms);

// In BF16 on the CPU: oneDNN's as they are, without the scale and the pieces that the backend adds.
class PlainGemms {
 public:
  PlainGemms(const std::vector<StepGemm>& gemms, int threads);
  ~PlainGemms();

  // For one of each, from `repeats` of them.
  std::vector<Duration> durations(int repeats);
  int64_t bytes() const;

 private:
  struct Room;
  std::unique_ptr<Room> room_;
};

// In BF16 on a backend's device; its memory is given back before this returns. Throws Error.
std::vector<Duration> durations_on(Backend& backend, const std::vector<StepGemm>& gemms,
                                   const BenchRounds& rounds);

}  // namespace gnomon

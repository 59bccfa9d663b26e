// What simulated trainers and verifiers report of a run whose steps are bench_step()'s.
#pragma once

#include <chrono>

#include "protocol/records.h"

namespace gnomon::bench {

inline constexpr double kHealthyGap = 1e-4;  // nats: noise

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

CheckpointReport checkpoint_at(int64_t step);
// As a replay that finds BF16 better by `gap` (nats); the arm `same` gives the run's own numbers.
ReplayResult result_of(const Lease& lease, double gap);

}  // namespace gnomon::bench

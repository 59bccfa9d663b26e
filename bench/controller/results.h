// What simulated trainers and verifiers report of a run whose steps are bench_step()'s.
#pragma once

#include "protocol/records.h"

namespace gnomon::bench {

CheckpointReport checkpoint_at(int64_t step);
// As a replay that finds BF16 better by `gap` (nats); the arm `same` gives the run's own numbers.
ReplayResult result_of(const Lease& lease, double gap);

}  // namespace gnomon::bench

// How long a run's windows are and how far apart: what the policy asks for, or what the budget of
// verification pays, made to begin and end at checkpoints.
#pragma once

#include <cstdint>

#include "controller/decide/policy.h"
#include "controller/decide/state.h"

namespace gnomon::decide {

// In steps.
struct WindowLengths {
  int64_t unit = 1;  // the run's checkpoint interval
  int64_t steps = 1;
  int64_t every = 1;  // on average
};

// What the policy alone asks for. `checkpoint_every` of 0 counts as 1. Where checkpoints make
// windows longer than asked for, the policy's way from one to the next grows with them: the share
// of steps that are replayed is what was asked for, or less.
WindowLengths asked_lengths(const Policy& policy, int64_t checkpoint_every);
// From one window of a run in BF16 to the next: they cost no replay.
int64_t bf16_distance(const Policy& policy, const WindowLengths& lengths);
// What is in force: the cadence that was chosen by what it costs, if there is one.
WindowLengths window_lengths(const State& state, const Policy& policy);

}  // namespace gnomon::decide

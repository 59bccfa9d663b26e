// How long a run's windows are and how far apart: what the policy asks for, made to begin and end
// at checkpoints.
#pragma once

#include <cstdint>

#include "controller/decide/policy.h"

namespace gnomon::decide {

// In steps.
struct WindowLengths {
  int64_t unit = 1;  // the run's checkpoint interval
  int64_t steps = 1;
  int64_t every = 1;
};

// `checkpoint_every` of 0 counts as 1. `every` is the cadence in force where it was chosen by what
// it earns (0: the policy's). Where checkpoints make windows longer than asked for, the policy's
// way from one to the next grows with them: the share of steps that are replayed is what was asked
// for, or less.
WindowLengths window_lengths(const Policy::Window& asked, int64_t checkpoint_every, int64_t every);

}  // namespace gnomon::decide

// From checkpoints to windows: which are opened, and when.
#pragma once

#include <cstdint>

#include "controller/decide/core.h"

namespace gnomon::decide {

void handle_checkpoint(Core& core, const CheckpointCompleted& event);
// By the budget: the next window begins as soon as it can, where it would have been later.
void bring_forward(Core& core);
// A sentinel's call: a window over the steps since the change began, unless windows look there
// anyway. At most one in the distance of two windows.
void answer_sentinel(Core& core, const SentinelCall& call);
// The step's update found another state than the step before had left: says so, and has a window
// look at it.
void note_changed_state(Core& core, int64_t step);
// Where the next window may begin, once an attempt is at `step`.
int64_t first_start(const Core& core, int64_t step);

}  // namespace gnomon::decide

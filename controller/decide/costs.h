// What the run has cost, and how often verifying it pays.
#pragma once

#include "controller/decide/core.h"

namespace gnomon::decide {

void count_step(Core& core, const StepReported& step);
// The steps after `base` are gone; before the state forgets them.
void count_lost_steps(Core& core, int64_t base, bool rolled_back);
void count_replay(Core& core, const PendingReplay& replay, const ReplayFinished& result);
void count_fault(Core& core);
void count_pause(Core& core, bool paused);
// Takes another cadence when the policy leaves it to the budget and the economics, and one is
// better.
void apply_best_cadence(Core& core);

}  // namespace gnomon::decide

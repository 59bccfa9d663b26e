// What replays may cost, as a share of the compute of training, and how far apart windows are for
// it. Costs are in FP8 steps: a BF16 step costs what it takes longer, and loading a checkpoint and
// evaluating what a replay takes beyond its steps. Devices do not matter, the compute does.
#pragma once

#include <cstdint>

#include "controller/decide/policy.h"
#include "controller/decide/state.h"

namespace gnomon::decide {

// Windows are never further apart than this many times what the budget pays: a run that has
// overdrawn it is not left alone.
inline constexpr int64_t kSparsest = 4;

// One quiet window in so many is audited: replayed under the run's own plan.
inline constexpr int64_t kAuditEvery = 8;

// A shadow of `steps` steps. `overhead` is its time over that of its steps; 0 where it was not
// measured: then economics.switch_steps count.
double shadow_cost(const Policy& policy, int64_t steps, double speedup, double overhead);
// Steps from one window to the next such that shadows, the instrument's checks, audits and second
// sources take verification.budget_percent.
int64_t every_by_budget(const Policy& policy, int64_t steps, double speedup, double overhead);

void count_trained(State& state);
void count_spent(State& state, const Policy& policy, const PendingReplay& replay,
                 const ReplayFinished& result);
// Little is known of the run from now on: windows are close together again.
void begin_dense(State& state);
// Steps of a long fork, which sees damage that builds up slowly; 0 = there are none.
int64_t long_fork_steps(const Policy& policy);
// The share of the budget that is theirs pays another long fork of `steps` steps.
bool long_fork_is_paid(const State& state, const Policy& policy, int64_t steps);
// The windows that began too late for an attempt from `base` are done again: the newest one ends
// there.
void forget_windows_after(State& state, int64_t base, int64_t steps);
// Incidents have cost so much more than was earned that what has turned out to be harmless before
// is not looked into again, or seldom.
bool is_overdrawn(const State& state, const Policy& policy);
// BF16 shared a spike not longer ago than such a debt takes to be paid back.
bool was_shared_lately(const State& state, int64_t step);
// Steps until the budget pays a window of `steps` steps beside the `waiting` ones; 0: now.
int64_t steps_until_paid(const State& state, const Policy& policy, int64_t steps, int64_t waiting);

}  // namespace gnomon::decide

// Has an action worked? The windows after it stay open until their level says so: within what is
// tolerated, or not. One window can be either by chance.
#pragma once

#include <cstdint>
#include <vector>

#include "controller/decide/core.h"

namespace gnomon::decide {

inline constexpr const char* kRecoveryRule = "recovery";  // of an alarm: an action did not work

// What the windows after an action say together: nothing yet, or that they are quiet since it
// worked, or that one of them is an alarm since it was not enough.
struct RecoveryOutcome {
  std::vector<int64_t> quiet;  // ids, oldest first
  int64_t alarm = 0;           // id; 0 = none
};

// True when the window shows what an action has led to.
bool awaits_recovery(const State& state, const WindowState& window);
// Such a window raised no alarm. What is not known yet stays open.
RecoveryOutcome weigh_recovery(Core& core, int64_t window);
// A window of a run that is in BF16 shows it by itself.
void recover_in_bf16(Core& core, int64_t attempt, int64_t plan_version, int64_t start_step,
                     int64_t end_step);
// Windows that wait for more are closed.
void close_unsettled(Core& core, WindowStatus outcome);
// The same of those whose action is not in force any more.
void release_unsettled(Core& core);

}  // namespace gnomon::decide

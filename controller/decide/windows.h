// The windows that are open and the replays that are ordered for them: opening, finding, ordering,
// closing. Which windows are opened is schedule.h's, what they show is judging.h's.
#pragma once

#include "controller/decide/core.h"

namespace gnomon::decide {

inline constexpr int kPriorityTriage = 100;
inline constexpr int kPriorityAttribution = 80;
inline constexpr int kPriorityCalled = 60;  // a shadow that was called for
inline constexpr int kPriorityShadow = 50;
inline constexpr int kPriorityProbe = 30;
inline constexpr int kPriorityInstrument = 20;
inline constexpr int kPriorityLong = 10;

WindowState* find_window(State& state, int64_t id);
std::string window_name(const WindowState& window);  // "Window 12 (steps 240–260)"
// True when the open case asks for replays of this window.
bool of_case(const State& state, int64_t window);
// True when all steps of start+1..end ran under one plan.
bool one_plan(const State& state, int64_t start, int64_t end);
// The checkpoint at a step, and the first after it; null when none is known.
const KnownCheckpoint* checkpoint_at(const State& state, int64_t step);
const KnownCheckpoint* first_after(const State& state, int64_t step);
// The plan that the steps after a checkpoint ran with: a rollback's base was saved under an older
// plan.
int64_t plan_after(const State& state, const KnownCheckpoint& start);
// Only the trainer's process has it, so only the trainer can replay from it.
bool in_memory(const KnownCheckpoint& checkpoint);

WindowState& add_window(Core& core, WindowKind kind, const KnownCheckpoint& start, int64_t end_step,
                        const std::string& end_uri, int64_t plan_version);
// Orders a replay of the window; `wanted` says how, its ids and purpose are filled in. Returns its
// id.
int64_t order(Core& core, const WindowState& window, ReplayRole role, int64_t number,
              OrderReplay wanted);
int64_t order(Core& core, const WindowState& window, Arm arm, ReplayRole role,
              const std::string& plan, bool endpoints, int priority);
// Shows the numbers of a window that has been measured and is still open; else does nothing.
void show_window(Core& core, int64_t id);
// Closes and forgets a window and its unanswered replays. A window that is not there is nothing to
// do.
// `why` is said of one that was skipped or failed.
void close_window(Core& core, int64_t id, WindowStatus outcome, const std::string& why = {});
// Closes a window with its outcome once nothing is waited for in it any more.
void finish_window(Core& core, int64_t id);
// Closes incident windows that no case asks for any more.
void close_orphans(Core& core);

}  // namespace gnomon::decide

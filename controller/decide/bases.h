// Bases: the checkpoints that the run may go back to, because what led to them was verified, and
// those that must be kept.
#pragma once

#include <optional>

#include "controller/decide/core.h"

namespace gnomon::decide {

void mark_verified(Core& core, const KnownCheckpoint& checkpoint);
// A window ended quietly here; the oldest such ends are forgotten beyond the bound.
void add_quiet_end(State& state, int64_t start_step, KnownCheckpoint end);
// The same of a window that was measured, unless it lost more than is tolerated or belongs to a
// rise of the evidence: what is verified later will lie behind it.
void add_quiet_end(Core& core, const WindowState& window);
// Quiet ends become verified when nothing before them is in doubt any more.
void settle_verified(Core& core);
// Says which checkpoints must stay, if that changed, and forgets the others.
void protect(Core& core);

// The newest verified checkpoint at or before a step that the trainer has not refused.
std::optional<KnownCheckpoint> good_checkpoint(const State& state, int64_t newest);
// The oldest verified one that is still there.
std::optional<KnownCheckpoint> oldest_good_checkpoint(const State& state);
// How often a step has been gone back to.
int64_t rollbacks_to(const State& state, int64_t step);
void count_rollback(State& state, int64_t step);
// The trainer could not go back there: it is not tried again, and does not count.
void remember_refused(State& state, const PendingDirective& refused);

}  // namespace gnomon::decide

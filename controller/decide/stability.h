// Is training itself stable? The BF16 replays show it.
#pragma once

#include "controller/decide/core.h"

namespace gnomon::decide {

// Per cent that BF16's held-out loss may lie over the lowest that it has been at.
inline constexpr double kOverPercent = 10;

// A window's BF16 replay, after the window was judged to be no harm of FP8's.
void note_bf16(Core& core, const WindowState& window, const ReplayFinished& replay);
// These steps were trained in BF16, and no window shows more of it.
void note_calm_in_bf16(Core& core, int64_t start, int64_t end);
// A window's BF16 replay is not finite at its end. Where two sources say so, once is enough.
void note_diverged(Core& core, const WindowState& window, bool two_agree);
// FP8 ends better by more than the ceiling, as two sources say.
void note_parted(Core& core, const WindowState& window);
// A gap that chance explains: the open case's.
void note_chance(Core& core);
// A spike that BF16 shares.
void note_shared_spike(Core& core, const SpikeFinding& finding);
// Steps after `base` are undone.
void forget_stability_after(State& state, int64_t base);

}  // namespace gnomon::decide

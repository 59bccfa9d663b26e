// Offsets: what evaluating the same weights in FP8 costs more than in BF16, L8 − L16. It has a
// level of its own under each plan, which wanders as the run learns. A move away from it, upwards
// or downwards, says that the numbers of FP8 have changed: downwards, that the weights have adapted
// to what FP8 does wrong.
#pragma once

#include <string>

#include "controller/decide/core.h"

namespace gnomon::decide {

// Takes a window's offset into account, where it was measured. An alarm's `statistic` is the
// evidence, or by the rule `ceiling` the distance from the level in per cent of the loss; `x` is
// negative when the offset moved downwards.
GapVerdict observe_offset(Core& core, const WindowState& window);
// What such an alarm says.
std::string offset_words(const WindowState& window, const GapVerdict& verdict);
// An alarm was answered: the newest offset is the level from now on.
void restart_offset(State& state, const Measurement& newest);

}  // namespace gnomon::decide

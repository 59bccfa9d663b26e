// Damage that stays in the weights. A window sees what its own steps have added. Where windows are
// far apart, or many, a gap that is bearable in each may add up to much.
#pragma once

#include "controller/decide/core.h"

namespace gnomon::decide {

inline constexpr const char* kKeptRule = "kept";
inline bool is_kept(const WindowState& window) {
  return window.judged && window.judged->rule == kKeptRule;
}

// Counts a judged window: its gap stands for all steps since the window before it. An alarm of the
// rule `kept` when BF16's loss lies far over the lowest that it has reached, and what FP8 has added
// since then, beyond chance and by the windows of others than any one verifier, too, is half of
// that rise: what looks like training that diverges is FP8's doing. Where it is many times the
// rise, training heals it, and the rise has another cause. The statistic is what was added, the
// threshold half of the rise (in logarithms), both in per cent of the loss.
GapVerdict observe_kept(Core& core, const WindowState& window);
// True when what was counted explains such a rise of BF16's loss over its lowest, per cent.
bool explains_rise(const Core& core, double over_percent);
// The rise that such a threshold is half of, per cent.
double rise_of(double threshold_percent);
// Nothing is counted any more: BF16 is at its lowest at this step.
void restart_kept(Core& core, int64_t step);
// A verifier is not believed any more.
void forget_kept(Stability& stability, const std::string& verifier);

}  // namespace gnomon::decide

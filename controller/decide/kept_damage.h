// Damage that stays in the weights. A window sees what its own steps have added. Where windows are
// far apart, a gap that is bearable in each may add up to much between them.
#pragma once

#include <cstdint>
#include <optional>

#include "controller/decide/core.h"

namespace gnomon::decide {

inline constexpr const char* kKeptRule = "kept";

// The mean gap of the newest windows that begin at a step or after it, carried on over all steps
// since the first of them, in per cent of the loss: an upper bound, for training heals some of it.
struct KeptDamage {
  double percent = 0;
  double error_percent = 0;  // standard error
  int64_t since_step = 0;
};

// Nothing while fewer than three windows are known.
std::optional<KeptDamage> kept_damage(const State& state, int64_t since_step);

// An alarm of the rule `kept` when the window's BF16 loss lies far over the lowest that BF16 has
// reached, and kept damage since then, beyond chance, is as large: what looks like training that
// diverges is FP8's doing. The statistic is the damage, the threshold half of the rise, both in per
// cent.
GapVerdict judge_kept(const Core& core, const WindowState& window);

}  // namespace gnomon::decide

// Windows that something has shaken which is not FP8's doing: a shock that BF16 shares, or other
// tokens. What two runs make of it differs by chance, by how much nobody knows, but in either
// direction. One such window is no evidence. In many the signs of D are: a bet at even odds that D
// lies over what is tolerated, whose gains are summed up over all places where a fault may have
// begun (the Shiryaev-Roberts procedure: while the signs are even, false alarms are at least as
// many windows apart as the threshold says).
#pragma once

#include <optional>

#include "controller/decide/core.h"

namespace gnomon::decide {

inline constexpr const char* kSignsRule = "signs";

// An alarm of that rule, when the window's D makes it one.
std::optional<GapVerdict> observe_shaken(Core& core, const WindowState& window);

}  // namespace gnomon::decide

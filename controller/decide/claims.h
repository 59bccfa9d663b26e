// What a window's sources say that is no gap: the run took other tokens, or BF16 is not finite. One
// source's word is no verdict where a second one can be asked (confirm.h).
#pragma once

#include <cstdint>

#include "controller/decide/core.h"

namespace gnomon::decide {

// True when the BF16 replay is not finite at its end, from weights that were.
bool is_diverged(const ReplayFinished& replay, int64_t steps);
// The run took other tokens: on record once, until a window is quiet.
void record_other_tokens(Core& core, const WindowState& window);
// Records what nobody contradicts of a window that is closed because of it.
void record_claims(Core& core, const WindowState& window, bool two_agree);

}  // namespace gnomon::decide

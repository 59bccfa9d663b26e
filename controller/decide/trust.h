// What follows when a verifier is not believed any more: its windows are no evidence, and are
// measured again.
#pragma once

#include <string>

#include "controller/decide/core.h"

namespace gnomon::decide {

// The verifier gets no work of this run any more, and its windows are no evidence.
void distrust(Core& core, const std::string& verifier, const std::string& why, VerdictName verdict,
              int64_t window);
// What one that is not believed any more has answered in the open case is asked again.
void drop_answers(State& state, const std::string& verifier);
// What sources said of the window's BF16 replay, and what they are still asked.
void forget_witnesses(State& state, WindowState& window);
// The window's shadow is done again by somebody else; its case, if any, ends.
void measure_again(Core& core, int64_t window, const std::string& avoid = {});
// The window says nothing any more: neither for FP8 nor against it. Its case, if any, ends.
void withdraw_window(Core& core, int64_t window);

}  // namespace gnomon::decide

// A second source: a window's BF16 replay is done once more by somebody else, always where an alarm
// rests on it, and now and then where none does. Two sources that agree are believed; where they
// contradict each other a third one is asked, and whoever stands alone against two is named.
#pragma once

#include <string>

#include "controller/decide/core.h"

namespace gnomon::decide {

// After a shadow's measurement: orders a second one where that is due. True when the window is done
// with.
bool note_shadow(Core& core, int64_t window, const ReplayFinished& replay);
// A shadow that is_diverged() is one source's word. False when nobody else can be asked.
bool ask_about_divergence(Core& core, int64_t window, const ReplayFinished& replay);
// The open case rests on the window's BF16 replay: its `confirmation` is wanted.
void confirm_for_case(Core& core, int64_t window);
void handle_confirm(Core& core, int64_t window, const ReplayFinished& replay);
void confirm_failed(Core& core, int64_t window, const std::string& why);

}  // namespace gnomon::decide

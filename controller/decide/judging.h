// From a shadow's measurement to quiet or alarm.
#pragma once

#include <string>

#include "controller/decide/core.h"

namespace gnomon::decide {

void handle_shadow(Core& core, int64_t window, const ReplayFinished& replay);
void shadow_failed(Core& core, int64_t window, const std::string& why);
// The window's sources say that the run took other tokens: on record once, until a window is quiet.
void record_other_tokens(Core& core, const WindowState& window);
// Windows that were put off while a case was open are judged now.
void judge_deferred(Core& core);

}  // namespace gnomon::decide

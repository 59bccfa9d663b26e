// From a shadow's measurement to quiet or alarm.
#pragma once

#include <string>

#include "controller/decide/core.h"

namespace gnomon::decide {

void handle_shadow(Core& core, int64_t window, const ReplayFinished& replay);
void shadow_failed(Core& core, int64_t window, const std::string& why);
// Windows that were put off while a case was open are judged now.
void judge_deferred(Core& core);

}  // namespace gnomon::decide

// From a verdict against FP8 to the guilty sites: an analysis of the checkpoint ranks them, replays
// with some of them in BF16 find the smallest set that takes the damage away.
#pragma once

#include "controller/decide/core.h"

namespace gnomon::decide {

void start_attribution(Core& core);
void handle_scores(Core& core, const ReplayFinished& result);
void scores_failed(Core& core);
void handle_rescue(Core& core, int64_t prefix, const ReplayFinished& result);
void rescue_failed(Core& core, int64_t prefix);

}  // namespace gnomon::decide

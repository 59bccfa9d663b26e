// From a verdict to an action.
#pragma once

#include <string>
#include <vector>

#include "controller/decide/core.h"

namespace gnomon::decide {

// True when the next rung blames single sites, so that attribution is worth its replays.
bool next_rung_pins(const Core& core);
void respond(Core& core, VerdictName verdict, const std::vector<std::string>& sites);
// For a step that is not finite where no replay can say why: the last good checkpoint under the
// plan in force, or a hold. `why` begins the sentence.
void go_back_unexplained(Core& core, int64_t step, const std::string& why);
// A rollback was refused: further back, or held when no good checkpoint is left. At most one
// directive is issued, and no checkpoint is tried twice.
void go_further_back(Core& core, const PendingDirective& refused);

}  // namespace gnomon::decide

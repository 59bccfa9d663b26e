// From a verdict to an action.
#pragma once

#include <string>
#include <vector>

#include "controller/decide/core.h"

namespace gnomon::decide {

// True when the next rung blames single sites, so that attribution is worth its replays.
bool next_rung_pins(const Core& core);
void respond(Core& core, VerdictName verdict, const std::vector<std::string>& sites);
// A rollback was refused: further back, or held when no good checkpoint is left. At most one
// directive is issued, and no checkpoint is tried twice.
void go_further_back(Core& core, const PendingDirective& refused);

}  // namespace gnomon::decide

// What operators order: directives that are issued at once, and orders that stand until a time.
#pragma once

#include "controller/decide/core.h"

namespace gnomon::decide {

void handle_override(Core& core, const OperatorOverride& asked);
void end_overrides(Core& core);
// The trainer has resumed: a hold is over.
void finish_resume(Core& core);
// An operator's plan was not taken.
void operator_plan_failed(Core& core);
// Orders the way back from an operator's plan as soon as no other directive is open.
void restore_plan_if_due(Core& core);

}  // namespace gnomon::decide

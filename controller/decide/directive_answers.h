// What becomes of a directive: applied, rejected, or expired, and what follows from that.
#pragma once

#include <string>

#include "controller/decide/core.h"

namespace gnomon::decide {

void directive_changed(Core& core, const DirectiveChanged& event);
// A newest step in another plan than the trainer said it had taken: the directive came to nothing.
void check_promised_plan(Core& core);
// Overdue answers.
void time_out_directives(Core& core);
void withdraw_all(Core& core, const std::string& reason);

}  // namespace gnomon::decide

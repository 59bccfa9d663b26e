// What becomes of a directive: applied, rejected, or expired, and what follows from that.
#pragma once

#include <string>

#include "controller/decide/core.h"

namespace gnomon::decide {

void directive_changed(Core& core, const DirectiveChanged& event);
// Overdue answers.
void time_out_directives(Core& core);
void withdraw_all(Core& core, const std::string& reason);

}  // namespace gnomon::decide

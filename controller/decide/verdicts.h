// What follows from a verdict.
#pragma once

#include "controller/decide/core.h"

namespace gnomon::decide {

void conclude(Core& core, const Verdict& verdict);

}  // namespace gnomon::decide

// An attempt begins: what lies after its base is gone.
#pragma once

#include <cstdint>

#include "controller/decide/core.h"

namespace gnomon::decide {

void start_attempt(Core& core, const AttemptStarted& event);
// Says once when the trainer shows a plan that only a lost ledger knew.
void note_plan(Core& core, int64_t version);
// Steps after `base` are gone: with them the checkpoints, windows and suspicions that rest on them.
void forget_after(Core& core, int64_t base);

}  // namespace gnomon::decide

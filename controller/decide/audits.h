// Bit audits. Of the windows that a budget pays, some are replayed once more under the run's own
// plan. Exact replay must give the run's bits: a flipped weight that costs no loss, or a verifier
// that computes wrongly, shows here, whatever the gap says.
#pragma once

#include <string>

#include "controller/decide/core.h"

namespace gnomon::decide {

// Orders the audit of a window that was quiet, if it is its turn, or if the trainer's memory lost
// its state there: the window stays open for it. None where nobody could settle a difference, or
// where bits cannot be compared.
void order_audit(Core& core, WindowState& window);
// Other bits than the run's open a case, which finds whose they are. What is answered meanwhile by
// another case is put on record only.
void handle_audit(Core& core, int64_t window, const ReplayFinished& replay);
void audit_failed(Core& core, int64_t window, const std::string& why);

}  // namespace gnomon::decide

// Is what measures sound, and is there anybody to measure?
#pragma once

#include <string>

#include "controller/decide/core.h"

namespace gnomon::decide {

bool instrument_due(const Core& core);
// Nothing clears a broken instrument where no gap is judged: a run in BF16 leaves it behind.
void mend_instrument_in_bf16(Core& core);
void order_instrument(Core& core, WindowState& window);
void handle_instrument(Core& core, int64_t window, const ReplayFinished& replay);
void handle_instrument_elsewhere(Core& core, int64_t window, const ReplayFinished& replay);
void handle_instrument_again(Core& core, int64_t window, const ReplayFinished& replay);
void instrument_failed(Core& core, int64_t window, const std::string& why);
// A window that nobody verified.
void note_unverified(Core& core);

}  // namespace gnomon::decide

// What quiet windows lead to: probes, and FP8's way back.
#pragma once

#include <string>

#include "controller/decide/core.h"

namespace gnomon::decide {

void note_quiet(Core& core, int64_t plan_version);
bool probe_due(const Core& core);
void order_probe(Core& core, WindowState& window);
// FP8 comes back when probes have shown enough and nothing else is under way.
void return_if_due(Core& core);
// The trainer has taken the base plan again, or has refused to.
void finish_return(Core& core);
void refuse_return(Core& core);
void handle_probe(Core& core, const PendingReplay& ordered, const ReplayFinished& replay);
void probe_failed(Core& core, const PendingReplay& ordered, const std::string& why);

}  // namespace gnomon::decide

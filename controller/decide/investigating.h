// One investigation from the alarm to the verdict: asks the triage (triage.h) what it wants to know
// and orders that.
#pragma once

#include <string>

#include "controller/decide/core.h"

namespace gnomon::decide {

void open_gap_case(Core& core, const WindowState& window);
// A replay of the run's own plan gave other bits than the run's.
void open_audit_case(Core& core, const WindowState& window, const ReplayFinished& replay);
void open_drift_case(Core& core, const WindowState& window);
void suspect_step(Core& core, const SpikeFinding& finding);
// What is not finite stays so: whatever has ended without an answer (a silence, another case, a
// verifier that was wrong), it is asked about again, and the run goes back where nobody can say and
// kNonFiniteLosses losses were not finite.
void follow_non_finite(Core& core);
// Opens the case of a suspicion that had to wait, if nothing is in its way now.
void open_waiting_suspicion(Core& core);
// Orders what the triage wants to know, or ends it.
void advance_case(Core& core);
void handle_case_replay(Core& core, const PendingReplay& replay, const ReplayFinished& result);
void case_replay_failed(Core& core, const PendingReplay& replay, const std::string& why);

}  // namespace gnomon::decide

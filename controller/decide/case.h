// The one investigation that may be open: its beginning, its evidence, its end. What it asks is
// investigating.h's, what follows from its verdict is verdicts.h's.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <optional>
#include <vector>

#include "controller/decide/core.h"

namespace gnomon::decide {

void open_case(Core& core, int64_t window, TriageEvidence evidence);
// The case is over without an action: what had waited for it goes on after the event. Its window is
// closed, but not with an empty outcome.
void end_case(Core& core, WindowStatus outcome, const std::string& why = {});
RecordDecision& record_verdict(Core& core, const Verdict& verdict);
boost::json::object finding_evidence(const SpikeFinding& finding);
// Which tokens the run took instead of the data's: the hashes of its steps, as evidence.
boost::json::array batches_evidence(const std::vector<OtherBatch>& batches);
boost::json::array other_batches(const Case& investigation);
// True when the replay suffers at the step that the open case is about; nothing for other cases.
std::optional<bool> suffers_in_case(const Core& core, const WindowState& window,
                                    const ReplayFinished& replay);

}  // namespace gnomon::decide

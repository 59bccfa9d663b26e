// What `verification.on_gradient_norm = "bf16"` would have done in recorded runs.
#pragma once

#include <boost/json.hpp>
#include <vector>

#include "lab/rehearsal/recorded_runs.h"

namespace gnomon::rehearsal {

// By kind of observed run (healthy, harmless, harmful): runs; runs whose gradient norm called its
// sentinel, after the fault where there is one; of these, before any alarm; and the median of steps
// from the fault to the call.
boost::json::object gradient_switch(const std::vector<RecordedRun>& observed);

}  // namespace gnomon::rehearsal

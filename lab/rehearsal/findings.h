// What recorded runs say about the decision core: false alarms, faults caught and how soon, beside
// the rivals at equally many false alarms, verdicts, blamed sites and what was left of the harm.
#pragma once

#include <boost/json.hpp>
#include <vector>

#include "controller/decide/gap_detector.h"
#include "lab/rehearsal/trace.h"

namespace gnomon::rehearsal {

// Keys, of which those that no trace speaks of are null (docs/studies/detection/README.md).
// From the observed runs:
//   healthy_windows, false_alarms, false_alarms_high_95   without a fault
//   harmful_runs (recorded_runs.h), caught_share, median_delay_windows, p95_delay_windows,
//   mean_delay_windows (of those caught), missed
//   by_fault     kind and strength: runs, harmful, caught, mean end above BF16 and above healthy
//   rivals       by kind: false_alarms as it is set up; then at as many as `eprocess` has, all
//                without the ceiling: threshold, caught_share, delays, medians by fault. `evidence`
//                is `eprocess` without its rule for jumps, `eprocess_any` for noise of any shape
//   neighbour_correlation   of D in healthy windows next to each other, by configuration
//   gradient_switch         gradient_switch.h
//   chance_percent, chance_fp8_percent, healthy_cost_percent   by configuration
// From the enforced runs:
//   triage_accuracy, confusion, spikes_blamed_on_fp8; and what aftermath.h has
// And `runs`, a row for each run of both kinds.
// `detector`: of kind eprocess.
boost::json::object findings(const std::vector<Trace>& traces, const decide::GapSettings& detector);

}  // namespace gnomon::rehearsal

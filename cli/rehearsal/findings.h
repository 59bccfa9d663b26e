// What recorded runs say about the decision core: false alarms, faults caught and how soon, beside
// the rivals at equally many false alarms, verdicts, blamed sites and what was left of the harm.
#pragma once

#include <boost/json.hpp>
#include <vector>

#include "cli/rehearsal/trace.h"

namespace gnomon::rehearsal {

// A run is harmful when the loss that it ends with, unattended, lies above the mean of its BF16
// references by more than this, and by more than three deviations of what chance does: the same
// training from weights nudged by a rounding error ends elsewhere (`chance_percent` by
// configuration, pooled over its seeds).
inline constexpr double kHarmPercent = 0.1;
inline constexpr double kHarmDeviations = 3;

// Keys, of which those that no trace speaks of are null (docs/studies/detection/README.md):
//   healthy_windows, false_alarms, false_alarms_high_95   of the detector of the default policy
//   actions_on_healthy, healthy_runs                      of enforced runs
//   chance_percent, worse_runs (by the first limit alone)
//   harmful_runs, caught_share, median_delay_windows, p95_delay_windows, missed
//   rivals              by kind: false_alarms as it is set up; then at as many as `eprocess` has,
//   all
//                       without the ceiling: threshold, caught_share and delays, and by fault
//   triage_accuracy, confusion, spikes_blamed_on_fp8
//   guilty_site_pinned_share, mean_pinned_sites, replays_per_attribution
//   final_within_share, mean_final_percent                of enforced harmful runs, against BF16
boost::json::object findings(const std::vector<Trace>& traces);

}  // namespace gnomon::rehearsal

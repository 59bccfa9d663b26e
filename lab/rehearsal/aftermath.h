// What enforced runs say about the answers to an alarm: who was blamed and at what cost, how the
// runs ended, and what was left of FP8's speed.
#pragma once

#include <boost/json.hpp>

#include "lab/rehearsal/recorded_runs.h"

namespace gnomon::rehearsal {

// Keys:
//   healthy_runs, actions_on_healthy, accepted_on_healthy
//   guilty_site_pinned_share, mean_pinned_sites     where one site was guilty
//   replays_per_attribution     the scores' one and the rescues
//   attribution                 of those that found somebody: runs, and as means over them the FP8
//                               sites, replays, and what two rivals would have needed:
//                               plain_bisection (the same search, in the order of the layers from
//                               each site in turn) and leave_one_out (every site once)
//   ended_harmed_runs           whose fault harmed the observed run beside them, and that completed
//   final_within_share (of BF16), final_within_healthy_share (of healthy FP8), mean_final_percent,
//   mean_final_error_percent, mean_final_healthy_percent, mean_final_healthy_error_percent
//   decided_as_recorded_share   of all enforced runs: this version decides them so today
//   speedup_kept                mean over speedup_kept_runs of those (this version decides them as
//                               it was recorded), with everything paid but verification, whose
//                               cost is a matter of its cadence; an FP8 step is 1.3 times as fast
boost::json::object aftermath(const RecordedRuns& runs);

}  // namespace gnomon::rehearsal

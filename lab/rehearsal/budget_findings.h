// What runs under the default budget say about it: what verification costs, what it promises, and
// what it does not see.
#pragma once

#include <boost/json.hpp>
#include <vector>

#include "controller/decide/policy.h"
#include "lab/rehearsal/trace.h"

namespace gnomon::rehearsal {

// Keys:
//   healthy   runs, windows, false alarms, actions and calls of sentinels in runs without a fault;
//             share_percent: replays over training, median and most; the same for half of every 50
//             steps
//   harmful   runs (recorded_runs.h) of the observed role: caught, covered by the promise, of those
//             caught and caught in time; the same for half of every 50 steps
//   ends      enforced runs that were harmed and caught, and how many end within 0.5% of the
//             healthy end or within chance
//   liars     by lie: runs, named, windows of the liar until it was named; honest verifiers named
//   rivals    harmful runs caught, and false alarms, on the same windows
//   gradient_switch  gradient_switch.h
//   by_fault  kind and strength
//   runs      a row for each watched run
// `policy`: for the promise. The traces' steps are not read.
boost::json::object budget_findings(const std::vector<Trace>& traces, const decide::Policy& policy);

}  // namespace gnomon::rehearsal

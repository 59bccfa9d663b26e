// What runs under the default budget say about it: what verification costs, what it promises, and
// what it does not see.
#pragma once

#include <boost/json.hpp>
#include <vector>

#include "controller/decide/policy.h"
#include "lab/rehearsal/trace.h"

namespace gnomon::rehearsal {

// Keys:
//   cores     runs by the revision that recorded them
//   healthy   runs without a fault: alarms, actions (also those that `observe` only says), calls of
//             sentinels; share_percent: replays over training
//   harmful   runs (recorded_runs.h) of the observed role: steps to the first alarm, and to the
//             first right verdict; what the promise covered; the runs that were also recorded with
//             half of every 50 steps, both ways
//   missed    faulty runs without an alarm, harmful or not
//   ends      enforced runs that the fault harmed: how many end within 0.5% of the healthy end or
//             within chance, each alone, and in deviations of chance together; what replays cost
//   liars     by lie: runs, named, windows of the liar until it was named; honest verifiers named
//   rivals    harmful runs caught, and false alarms, on the same windows
//   by_fault  kind and strength
//   runs      a row for each watched run
// `policy`: for the promise. The traces' steps are not read.
boost::json::object budget_findings(const std::vector<Trace>& traces, const decide::Policy& policy);

}  // namespace gnomon::rehearsal

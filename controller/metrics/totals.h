// What the metrics of a run must start from, read from the ledger: counters go on where they stood
// before a restart.
#pragma once

#include "controller/decide/events.h"
#include "controller/decide/policy.h"
#include "controller/decide/state.h"
#include "controller/metrics/run_series.h"
#include "storage/ledger_connection.h"

namespace gnomon {

// A closed window's gauges: D = 100 gap / L16, so that L16 follows from the gap and D.
WindowNumbers window_numbers(const decide::CloseWindow& close, int64_t end_step);

MoneyNumbers money_numbers(const decide::State& state, const decide::Policy& policy);

// Adds steps that were not on record to the sums that load_run_totals() reads.
void add_step_totals(Connection& connection, int64_t run, const std::vector<StepReport>& steps);
RunTotals load_run_totals(Connection& connection, int64_t run);

}  // namespace gnomon

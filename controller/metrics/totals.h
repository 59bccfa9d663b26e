// What the metrics of a run must start from, read from the ledger: counters go on where they stood
// before a restart.
#pragma once

#include <map>
#include <vector>

#include "controller/decide/events.h"
#include "controller/decide/policy.h"
#include "controller/decide/state.h"
#include "controller/metrics/run_series.h"
#include "storage/ledger_connection.h"
#include "storage/ledger_runs.h"

namespace gnomon {

// A closed window's gauges: D = 100 gap / L16, so that L16 follows from the gap and D.
WindowNumbers window_numbers(const decide::CloseWindow& close);

MoneyNumbers money_numbers(const decide::State& state, const decide::Policy& policy);

// Sums over steps by their duration, as the ledger keeps them.
class StepTotals {
 public:
  void add(const StepNumbers& step);
  // Adds them to those on record and forgets them.
  void write(Connection& connection, int64_t run);

 private:
  std::map<size_t, ledger::StepTotalsRow> by_bucket_;
};

// Steps that the sums on record do not have.
void add_steps(const std::vector<StepRow>& steps, RunTotals& totals);
// All but what only the decision core's state knows: phase and money.
RunTotals load_run_totals(Connection& connection, int64_t run);

}  // namespace gnomon

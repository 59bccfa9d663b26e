// What the metrics of a run must start from, read from the ledger: counters go on where they stood
// before a restart.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "controller/decide/events.h"
#include "controller/decide/policy.h"
#include "controller/decide/state.h"
#include "controller/metrics/run_numbers.h"
#include "storage/ledger_connection.h"
#include "storage/ledger_runs.h"

namespace gnomon {

CostNumbers cost_numbers(const decide::State& state, const decide::Policy& policy);

// Sums over steps by their duration, as the ledger keeps them.
class StepTotals {
 public:
  void add(const StepNumbers& step);
  // Adds them to those on record and forgets them.
  void write(Connection& connection, int64_t run);

 private:
  std::map<size_t, ledger::StepTotalsRow> by_bucket_;
};

// The newest window that counts and the verified step, as the ledger has them now.
std::function<void(RunNumbers&)> load_standing(Connection& connection, int64_t run);
// All but what only the decision core's state knows.
RunNumbers load_run_numbers(Connection& connection, int64_t run);
// That: phase, whether it is paused, money.
void add_state(RunNumbers& numbers, const decide::State& state, const decide::Policy& policy);

}  // namespace gnomon

// Every run's decision state against the run's events: for `gnomon ledger check` and `gnomon ledger
// repair`.
#pragma once

#include <string>
#include <vector>

#include "controller/supervisor/decision_state.h"
#include "storage/ledger_connection.h"

namespace gnomon {

struct StateFinding {
  int64_t run = 0;
  std::string label;
  std::string problem;     // a sentence; empty: the state fits
  bool can_serve = false;  // with the problem too: gnomond rebuilds the state by itself
};
// Examines all runs but those being deleted, by id. Changes nothing. Outside any transaction.
std::vector<StateFinding> examine_states(Connection& connection);

struct StateRepair {
  int64_t run = 0;
  std::string label;
  std::string done;    // a sentence; empty: nothing was done
  std::string failed;  // why no state can be had; empty: it can
};
// Rebuilds the states that do not fit, and says so in the audit log. Inside a write.
std::vector<StateRepair> repair_states(Connection& connection, double now);

}  // namespace gnomon

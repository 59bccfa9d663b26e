// Runs as people and programs see them: summaries, one run with all that belongs to it, its steps,
// its layers.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "controller/api/router.h"
#include "controller/decide/decide.h"
#include "storage/ledger_connection.h"
#include "storage/ledger_runs.h"

namespace gnomon {

// What only the decision core knows of a run, kept until another state of it is written down, which
// any change that means something leads to, or its policy is another one: to read a state costs
// milliseconds, and a list of runs asks for hundreds. Thread-safe.
class PhaseCache {
 public:
  struct Phase {
    std::string phase;
    std::string mode;
  };
  Phase of(Connection& connection, const ledger::RunRow& run);

 private:
  struct Known {
    int64_t seq = -1;
    uint64_t policy = 0;  // hash
    Phase phase;
  };
  std::mutex mutex_;
  std::map<int64_t, Known> known_;
};

decide::State state_of(Connection& connection, int64_t run, const decide::Policy& policy);

std::vector<Route> run_view_routes();

}  // namespace gnomon

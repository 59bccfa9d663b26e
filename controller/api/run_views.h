// Runs as people and programs see them: summaries, one run with all that belongs to it, its steps,
// its layers.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "controller/api/router.h"
#include "controller/decide/run_verdict.h"
#include "controller/supervisor/set_aside.h"
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
    std::string set_aside = {};  // why the run is not served; empty: it is
    decide::VerdictFacts facts;
  };
  explicit PhaseCache(SetAsideRuns& set_aside) : set_aside_(set_aside) {}
  Phase of(Connection& connection, const RunRow& run);

 private:
  struct Known {
    int64_t seq = -1;
    uint64_t policy = 0;  // hash
    Phase phase;
  };
  SetAsideRuns& set_aside_;
  std::mutex mutex_;
  std::map<int64_t, Known> known_;
};

class RunCache;
std::vector<Route> run_view_routes(RunCache& runs);

}  // namespace gnomon

// Many simulated runs under several policies, on the same seeds, and what they come to in numbers.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/stopwatch.h"
#include "controller/decide/policy.h"
#include "lab/simulate/ground_truth.h"
#include "lab/simulate/run_model.h"

namespace gnomon::simulate {

struct StudyOptions {
  int64_t runs = 200;  // 1 … 100,000
  uint64_t seed = 1;   // of the first run
  int threads = 2;     // 1 … 1024
  // Called by one thread at a time, as each run ends, with the runs done of all policies.
  std::function<void(int64_t done)> progress;
};

struct StudyRuns {
  std::vector<std::vector<Tally>> by_policy;  // of each policy, in the seeds' order
  Duration duration = {};                     // of all of it
};

// The same model, policies and seed give the same tallies, whatever the number of threads. Throws
// ConfigError when a number is out of range.
StudyRuns simulate_runs(const RunModel& model, const std::vector<decide::Policy>& policies,
                        const StudyOptions& options);

// `count` in so many thousands of `of`, with a 95% interval (Wilson and Hilferty's for a Poisson
// count). The events of one run are not independent of one another, which the interval leaves out.
struct Rate {
  int64_t count = 0;
  int64_t of = 0;
  double per_thousand = 0, low = 0, high = 0;
};
Rate rate(int64_t count, int64_t of);

struct Spread {
  int64_t count = 0;
  double mean = 0, low = 0, median = 0, high = 0;  // 5th, 50th and 95th percentile
};
Spread spread(std::vector<double> values);  // those that are finite

struct FaultSummary {
  int64_t felt = 0;                   // that did anything
  int64_t harmful = 0;                // of them
  int64_t alarmed = 0, answered = 0;  // of the felt ones
  int64_t harmful_alarmed = 0, harmful_answered = 0;
  Spread delay_windows, delay_steps;  // of harmful ones that were alarmed
  double caught_share() const;        // of the harmful ones; NaN without any
};

struct Summary {
  int64_t runs = 0;
  std::map<std::string, int64_t> outcomes;
  int64_t windows = 0, healthy_windows = 0, skipped_windows = 0, failed_windows = 0, replays = 0;
  Rate false_alarms;       // per thousand healthy windows
  Rate unfounded_actions;  // per thousand windows
  int64_t alarms = 0, actions = 0, returns = 0, holds = 0, crashes = 0, verifier_deaths = 0;
  int64_t pins = 0, right_pins = 0;
  std::array<FaultSummary, kFaultKinds> faults;
  FaultSummary all_faults;
  std::array<std::array<int64_t, kVerdicts.size()>, kCauses> verdicts = {};
  int64_t judged = 0, rightly = 0;  // verdicts, and those that the cause called for
  double lost_share = 0, bf16_share = 0, pinned_share = 0;  // of the steps trained
  double verification_share = 0;  // of the time: training waited for replays
  Spread net_speedup, net_speedup_by_core, damage_percent;
  int64_t not_finite = 0;  // runs that ended so
  int64_t damaged = 0;     // runs that ended with harm
  std::vector<std::string> problems;
};

Summary summarise(const std::vector<Tally>& runs);

}  // namespace gnomon::simulate

// What trainers and verifiers say, as a pure function of the seed: a report that is sent again is
// the same report, and a history without faults has the same numbers.
#pragma once

#include <cstdint>
#include <string>

#include "protocol/records.h"

namespace gnomon::robustness {

// One run of a history.
struct RunScenario {
  uint64_t seed = 0;
  int number = 0;
  int64_t steps = 0;
  // Under plan 1, windows that end here or later have a gap that makes the core act; 0 = none.
  int64_t gap_from = 0;
  // The step of attempt 1 whose loss is infinite, at which the core acts at once; 0 = none.
  int64_t blow_up_at = 0;
  double restart_chance = 0;  // at each checkpoint
  bool asks_for_old = true;   // sends old reports again, which must be known

  std::string name() const;
};

inline constexpr int64_t kCheckpointEvery = 5;

RunRegistration registration_of(const RunScenario& scenario);
StepReport step_of(const RunScenario& scenario, int64_t attempt, int64_t step,
                   int64_t plan_version);
CheckpointReport checkpoint_of(const RunScenario& scenario, int64_t attempt, int64_t step,
                               int64_t plan_version);
TrainerNotice notice_of(const RunScenario& scenario, int64_t attempt, int64_t step);
RunFinished finish_of(const RunScenario& scenario, const std::string& outcome, int64_t step);
// Without its token. `plan_version` is the run's at the window's end.
ReplayResult result_of(const RunScenario& scenario, const ReplayTask& task, int64_t plan_version);

// The policy of all runs: windows of five steps, one after another, short leases.
std::string policy_text(double lease_ttl_seconds);

Fingerprint fingerprint();

}  // namespace gnomon::robustness

// Simulated runs as the tests need them.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "lab/simulate/stochastic_run.h"
#include "lab/simulate/study.h"

namespace gnomon::simulate {

// Every number of a tally; equal words are equal tallies, also where a number is not one.
inline std::string words(const Tally& t) {
  std::string text = fmt::format(
      "{} {} {} {} {} | {} {} {} {} {} {} {} {} {} {} {} | {} {} {} {} {} {} {} {} {} {} {} {}",
      t.outcome, t.windows, t.healthy_windows, t.skipped_windows, t.failed_windows, t.alarms,
      t.false_alarms, t.actions, t.unfounded_actions, t.returns, t.holds, t.crashes, t.replays,
      t.verifier_deaths, t.pins, t.right_pins, t.trained, t.lost, t.kept, t.bf16_steps,
      t.pinned_steps, t.seconds, t.verification_seconds, t.spare_seconds, t.damage_percent,
      t.net_speedup, t.net_speedup_by_core, t.hazard_by_core);
  for (const FaultTally& fault : t.faults) {
    text += fmt::format("\n{} {} {} {} {} {} {}", fault_kind_name(fault.kind), fault.size,
                        fault.harm_percent, fault.alarmed, fault.answered, fault.delay_windows,
                        fault.delay_steps);
  }
  for (const auto& row : t.verdicts) text += fmt::format("\n{}", fmt::join(row, " "));
  return text + fmt::format("\n{}", fmt::join(t.problems, "\n"));
}

inline RunModel with_fault(FaultKind kind, double rate, RunModel model = {}) {
  model.hazards[static_cast<size_t>(kind)] = rate;
  return model;
}

inline StudyOptions runs_of(int64_t runs, int threads = 1) {
  StudyOptions options;
  options.runs = runs;
  options.threads = threads;
  return options;
}

inline Summary played(const RunModel& model, const decide::Policy& policy, int64_t runs) {
  return summarise(simulate_runs(model, {policy}, runs_of(runs)).by_policy.front());
}

// Every step in a window, and nothing that changes with the defaults.
inline decide::Policy covering_policy() {
  decide::Policy policy;
  policy.detector.tolerance_percent = 0.1;
  policy.detector.ceiling_percent = 0.5;
  policy.detector.accept_percent = 0.25;
  policy.detector.prior_scale_percent = 0.05;
  policy.detector.burn_in_windows = 20;
  policy.window.every = policy.window.steps = 25;
  return policy;
}

}  // namespace gnomon::simulate

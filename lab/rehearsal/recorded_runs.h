// Recorded runs, sorted by what they are for, each compared with the references of its
// configuration and seed: the same training in BF16, and in FP8 without a fault.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lab/rehearsal/detection.h"
#include "lab/rehearsal/trace.h"

namespace gnomon::rehearsal {

// A fault is harmful when the run that nobody attended to ends worse than its BF16 references by
// more than this, and worse than its healthy FP8 references by more than this and by more than
// four deviations of what chance does: the same training from weights nudged by a rounding error
// ends elsewhere.
inline constexpr double kHarmPercent = 0.1;
inline constexpr double kHarmDeviations = 4;

struct RecordedRun {
  const Trace* trace = nullptr;
  RunLabel label;
  Series series;  // of observed runs
  // Per cent that the held-out loss of the last weights, in BF16, lies above the references' mean;
  // infinite for one that is not finite, nothing without references.
  std::optional<double> above_bf16;
  std::optional<double> above_fp8;
  double chance_percent = 0;  // deviation of above_fp8 by chance

  bool healthy() const { return label.fault == "none"; }
  bool generic() const { return label.origin == "generic"; }
  // What its end must lie above healthy FP8's.
  double harmful_above_percent() const;
  // By its own end: of observed runs. Throws Error without references.
  bool harmful() const;

  using Key = std::tuple<std::string, std::string, int64_t>;  // configuration, fault, seed
  Key key() const { return {label.configuration, label.fault, label.seed}; }
};

struct RecordedRuns {
  std::vector<RecordedRun> observed;
  std::vector<RecordedRun> enforced;
  // By configuration, in per cent, pooled over the seeds: deviations of the references' ends, and
  // how far the FP8 references' mean lies above the BF16 references'.
  std::map<std::string, double> chance_bf16;
  std::map<std::string, double> chance_fp8;
  std::map<std::string, double> healthy_cost;

  // True when the same fault was harmful in the observed run beside this one.
  bool harmed(const RecordedRun& enforced_run) const;
};

// The traces must outlive what is returned.
RecordedRuns sorted_out(const std::vector<Trace>& traces);

}  // namespace gnomon::rehearsal

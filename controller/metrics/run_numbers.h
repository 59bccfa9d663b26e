// What the metrics say of one run, as plain numbers: events add to them or set them, a restart
// reads them from the ledger (totals.h), and run_metrics.cc says which metric shows which number.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "controller/decide/events.h"
#include "controller/decide/run_verdict.h"
#include "controller/metrics/metric_table.h"
#include "protocol/records.h"

namespace gnomon {

inline constexpr std::array kWindowOutcomes = {"quiet", "alarm", "skipped", "failed"};
// Seconds.
inline constexpr std::array kStepBounds = {0.005, 0.01, 0.025, 0.05, 0.1,  0.25, 0.5,
                                           1.0,   2.5,  5.0,   10.0, 30.0, 60.0, 120.0};

// What FP8 under verification is worth so far; docs/economics.md.
struct CostNumbers {
  // Both empty until the speed-up of the FP8 steps is measured: the policy's word is not exported.
  std::optional<double> net_speedup;  // and before any step is kept
  std::optional<double> speedup;      // of the FP8 steps alone
  double verification_share = 0;      // of everything paid
  double hazard_per_step = 0;
  int64_t steps_lost = 0;  // by rollbacks
};

// A statistic of a tensor, or of its rounding for a GEMM.
struct TensorNumber {
  std::string site;
  std::string tensor;
  std::string gemm;  // empty: of the tensor
  double value = 0;
};

// The worst numbers of each kind, worst first, of the newest step with statistics; at most
// kWorstMax.
struct TensorNumbers {
  static constexpr size_t kWorstMax = 16;
  int64_t attempt = 0;
  int64_t step = 0;  // 0 = there are none
  std::vector<TensorNumber> underflow;
  std::vector<TensorNumber> saturation;
  std::vector<TensorNumber> sqnr;
  std::vector<TensorNumber> kurtosis;
};

struct DeviceNumbers {
  std::string host;
  DeviceHealth health;  // with the newest counts of errors that any sample had
};

struct RunNumbers {
  std::string phase = "watching";
  bool paused = false;                    // the trainer stands still by an order
  int64_t attempt = 0;                    // 0 = none has begun
  std::optional<StepReport> newest_step;  // its time is when it was reported
  double tokens = 0;
  Histogram step_seconds{kStepBounds};
  double verify_seconds = 0;
  Counts windows = zeros(kWindowOutcomes);
  Counts decisions = zeros(kDecisionKinds);
  Counts directives = zeros(kDirectiveKinds);
  Counts notices = zeros(kTrainerNoticeKinds, kOwnNoticeKinds);
  std::optional<decide::CloseWindow> newest_window;  // that was measured
  std::optional<double> offset_ratio;                // of the newest one that has it
  std::optional<int64_t> verified_step;
  std::optional<double> shadow_loss;  // at the newest verified step
  std::optional<double> paired_loss;  // the run's own there
  std::optional<CostNumbers> costs;
  std::optional<decide::VerdictKind> verdict;
  std::optional<decide::VerdictFacts> facts;
  Counts layers;  // share of each layer's GEMMs in FP8
  TensorNumbers tensors;
  std::optional<DeviceNumbers> device;
};

// Adds a step to the sums.
void count_step(RunNumbers& numbers, const StepNumbers& step);
// The same, and it is the newest one. `reported_at` in seconds since the epoch.
void record_step(RunNumbers& numbers, const StepNumbers& step, double reported_at);
// The newest window that counts, if there is one.
void record_window(RunNumbers& numbers, const std::optional<decide::CloseWindow>& window);
// Layers that are not in `shares` any more keep their last value; at most 200 are kept.
void record_layers(RunNumbers& numbers, const std::vector<std::pair<std::string, double>>& shares);
// A part of a step's statistics. Parts of older steps change nothing.
void record_statistics(RunNumbers& numbers, const StatisticsReport& report);
// Another host or device takes the place of the one before.
void record_device(RunNumbers& numbers, const std::string& host, DeviceHealth health);

// The metrics of a run, one row each. They have the label `run` besides their own.
const std::vector<MetricRow<RunNumbers>>& run_metrics();

}  // namespace gnomon

// The series of one run: created with its label, removed with the object. Gauges appear when they
// first have a value, counters stand at zero from the start.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "controller/decide/run_verdict.h"
#include "controller/metrics/device_series.h"
#include "controller/metrics/series_family.h"
#include "controller/metrics/tensor_series.h"
#include "protocol/records.h"

namespace gnomon {

template <typename Metric>
using MetricFamilyOf = SeriesFamily<Metric>;

// Families that have a `run` label, made once.
struct RunFamilies {
  explicit RunFamilies(SeriesRegistry& registry);

  MetricFamilyOf<prometheus::Gauge>&state, &paused, &step, &attempt, &plan_version, &loss,
      &shadow_loss, &paired_loss, &grad_norm, &learning_rate, &last_report, &gap, &gap_tolerance,
      &offset, &verification_lag, &verified_step, &layer_precision, &net_speedup, &speedup,
      &verification_share, &hazard, &steps_lost, &verdict, &window_every, &replays_waiting,
      &directives_unapplied, &quarantined_verifiers, &instrument_broken;
  MetricFamilyOf<prometheus::Counter>&tokens, &steps, &windows, &decisions, &directives, &notices,
      &train_seconds, &verify_seconds;
  MetricFamilyOf<prometheus::Histogram>& step_duration;
  TensorFamilies tensors;
  DeviceFamilies device;
};

// A closed window's shares of the loss; absent ones leave the gauge as it is.
struct WindowNumbers {
  int64_t window = 0;
  std::string outcome;
  std::optional<double> gap_ratio;
  std::optional<double> tolerance_ratio;
  std::optional<double> offset_ratio;
};

// What FP8 under verification is worth so far; docs/economics.md.
struct MoneyNumbers {
  // Both empty until the speed-up of the FP8 steps is measured: the policy's word is not exported.
  std::optional<double> net_speedup;  // and before any step is kept
  std::optional<double> speedup;      // of the FP8 steps alone
  double verification_share = 0;      // of everything paid
  double hazard_per_step = 0;
  int64_t steps_lost = 0;  // by rollbacks
};

// What the ledger knows about a run when the daemon starts.
struct RunTotals {
  std::string phase = "watching";
  bool paused = false;  // its trainer stands still by an order
  double tokens = 0;
  double steps = 0;
  double train_seconds = 0;
  double verify_seconds = 0;
  std::vector<double>
      step_duration_counts;  // per bucket, as in step_duration_buckets(), and one beyond
  std::map<std::string, double> windows;     // by outcome
  std::map<std::string, double> decisions;   // by kind
  std::map<std::string, double> directives;  // by kind
  std::map<std::string, double> notices;     // by kind
  std::optional<StepReport> newest_step;  // of the newest attempt; its time is when it was reported
  int64_t attempt = 0;
  std::optional<WindowNumbers> newest_window;
  std::optional<int64_t> verified_step;
  std::optional<std::pair<double, double>> shadow_and_run_loss;
  std::optional<MoneyNumbers> money;
  std::vector<std::pair<std::string, double>> layers;  // label and its share of GEMMs in FP8
  std::optional<std::pair<std::string, DeviceHealth>> health;  // of the host's GPU
};

const std::vector<double>& step_duration_buckets();  // upper bounds in seconds

class RunSeries {
 public:
  RunSeries(RunFamilies& families, const std::string& label, const RunTotals& totals);
  ~RunSeries();
  RunSeries(const RunSeries&) = delete;
  RunSeries& operator=(const RunSeries&) = delete;

  const std::string& label() const { return label_; }
  void set_phase(const std::string& phase);
  void set_paused(bool paused);
  void set_attempt(int64_t attempt);
  void step(const StepReport& report, double reported_at);
  // Labels that are not in `layers` any more keep their last value; at most 200 are kept.
  void set_layers(const std::vector<std::pair<std::string, double>>& layers);
  void set_verified_step(int64_t step);
  void set_shadow(double shadow_loss, double run_loss);
  void window(const WindowNumbers& window);       // that has ended
  void show_window(const WindowNumbers& window);  // one that stays open, or had ended at the start
  void set_money(const MoneyNumbers& money);
  void set_verdict(decide::VerdictKind kind, const decide::VerdictFacts& facts);
  void set_ended();
  void decision(const std::string& kind);
  void directive(const std::string& kind);
  void notice(const std::string& kind);
  void verify_seconds(double seconds);
  void statistics(const StatisticsReport& report) { tensors_.take(report); }
  void device_health(const std::string& host, const DeviceHealth& health) {
    device_.take(host, health);
  }

 private:
  using Labels = std::map<std::string, std::string>;
  template <typename Metric, typename... Arguments>
  Metric& add(SeriesFamily<Metric>& family, Labels labels, const Arguments&... arguments);
  void set(GaugeFamily& family, double value);
  // Without a value there is no gauge.
  void set(GaugeFamily& family, std::optional<double> value);
  void show_verdict(decide::VerdictKind kind);
  prometheus::Counter& counter(CounterFamily& family, const std::string& name,
                               const std::string& value);
  void show_newest(const StepReport& report, double reported_at);

  RunFamilies& families_;
  std::string label_;
  std::vector<std::function<void()>> removers_;
  std::map<const void*, prometheus::Gauge*> gauges_;
  std::map<GaugeFamily*, prometheus::Gauge*> passing_;  // may go again
  std::map<std::string, prometheus::Gauge*> phases_;
  std::map<decide::VerdictKind, prometheus::Gauge*> verdicts_;
  std::map<std::string, prometheus::Gauge*> layers_;
  std::map<std::string, prometheus::Counter*> counters_;
  prometheus::Counter& tokens_;
  prometheus::Counter& steps_;
  prometheus::Counter& train_seconds_;
  prometheus::Counter& verify_seconds_;
  prometheus::Histogram& step_duration_;
  int64_t shown_window_ = 0;
  TensorSeries tensors_;
  DeviceSeries device_;
};

}  // namespace gnomon

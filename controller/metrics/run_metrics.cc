#include "controller/metrics/run_numbers.h"

namespace gnomon {
namespace {

using RunMetric = MetricRow<RunNumbers>;

constexpr std::array kPhases = {"watching",  "triage",    "attribution", "containing",
                                "contained", "returning", "holding",     "ended"};

// Reads `read` of a part that may be absent.
template <class Part, class Read>
auto of(std::optional<Part> RunNumbers::*part, Read read) {
  return [=](const RunNumbers& n) {
    using Value = std::decay_t<decltype(std::invoke(read, *(n.*part)))>;
    return n.*part ? std::optional<Value>(std::invoke(read, *(n.*part))) : std::nullopt;
  };
}

template <class Read>
auto of_step(Read read) {
  return of(&RunNumbers::newest_step, read);
}

// Reads a number that not every step has.
auto of_step_if_given(std::optional<double> StepReport::*number) {
  return [number](const RunNumbers& n) {
    return n.newest_step ? (*n.newest_step).*number : std::nullopt;
  };
}

template <class Read>
auto of_costs(Read read) {
  return of(&RunNumbers::costs, read);
}

template <class Read>
auto of_facts(Read read) {
  return of(&RunNumbers::facts, read);
}

std::optional<int64_t> verification_lag(const RunNumbers& n) {
  if (!n.facts || n.facts->newest_step == 0) return std::nullopt;
  return n.facts->lag_steps;
}

WordValues verdicts(const RunNumbers& n) {
  WordValues values;
  for (const decide::VerdictKind kind : decide::kVerdictKinds) {
    values.emplace_back(decide::verdict_name(kind), n.verdict == kind ? 1 : 0);
  }
  return values;
}

std::vector<RunMetric> progress_rows() {
  return {
      RunMetric::gauge("gnomon_run_state", "1 for the run's present state, 0 for the others",
                       [](const RunNumbers& n) { return one_of(kPhases, n.phase); }, {"state"}),
      RunMetric::gauge("gnomon_run_paused", "1 while the trainer stands still by an order",
                       &RunNumbers::paused),
      RunMetric::gauge("gnomon_run_step", "newest step reported", of_step(&StepReport::step)),
      RunMetric::gauge("gnomon_run_attempt", "present attempt",
                       [](const RunNumbers& n) {
                         return n.attempt > 0 ? std::optional(n.attempt) : std::nullopt;
                       }),
      RunMetric::gauge("gnomon_run_plan_version", "plan of the newest step",
                       of_step(&StepReport::plan_version)),
      RunMetric::gauge("gnomon_run_loss", "newest training loss, nats per token",
                       of_step(&StepReport::loss)),
      RunMetric::gauge("gnomon_run_shadow_loss",
                       "BF16 shadow's training loss at the newest verified step",
                       &RunNumbers::shadow_loss),
      RunMetric::gauge("gnomon_run_paired_loss", "the run's own training loss at that same step",
                       &RunNumbers::paired_loss),
      RunMetric::gauge("gnomon_run_grad_norm", "newest gradient norm before clipping",
                       of_step_if_given(&StepReport::grad_norm)),
      RunMetric::gauge("gnomon_run_learning_rate", "newest learning rate",
                       of_step(&StepReport::learning_rate)),
      RunMetric::gauge("gnomon_run_last_report_timestamp_seconds",
                       "when the newest step report came", of_step(&StepReport::time)),
      RunMetric::gauge("gnomon_run_cast_saturated_ratio",
                       "share of values that the newest step's casts to FP8 clipped, geometric "
                       "mean over the tensors of share + 1e-6",
                       of_step_if_given(&StepReport::cast_saturated)),
      RunMetric::gauge("gnomon_run_cast_flushed_ratio",
                       "share of values that the newest step's casts to FP8 made zero, geometric "
                       "mean over the tensors of share + 1e-6",
                       of_step_if_given(&StepReport::cast_flushed)),
      RunMetric::gauge("gnomon_run_cast_peak_ratio",
                       "largest scaled value of the newest step's casts over what the format holds",
                       of_step_if_given(&StepReport::cast_peak)),
  };
}

// Those that a window's numbers name themselves.
std::vector<RunMetric> window_rows() {
  std::vector<RunMetric> rows;
  GapNumbers::describe([&]<class Access>(const char*, Access access, const Member& member) {
    using Value = std::remove_cvref_t<std::invoke_result_t<Access, const GapNumbers&>>;
    if constexpr (std::is_same_v<Value, std::optional<double>>) {
      const Gauge& gauge = member.gauge;
      if (*gauge.name == '\0') return;
      rows.push_back(RunMetric::gauge(
          gauge.name, gauge.help,
          [access, divisor = gauge.divisor](const RunNumbers& n) -> std::optional<double> {
            if (!n.newest_window) return std::nullopt;
            const std::optional<double>& value = std::invoke(access, *n.newest_window);
            return value ? std::optional(*value / divisor) : std::nullopt;
          }));
    }
  });
  return rows;
}

std::vector<RunMetric> verification_rows() {
  return {
      RunMetric::gauge("gnomon_run_offset_ratio", "newest window's offset as a share of the loss",
                       &RunNumbers::offset_ratio),
      RunMetric::gauge("gnomon_run_verification_lag_steps",
                       "newest step minus the last verified one", verification_lag),
      RunMetric::gauge("gnomon_run_verified_step", "step of the last verified checkpoint",
                       &RunNumbers::verified_step),
      RunMetric::gauge("gnomon_run_layer_precision", "share of the layer's GEMMs in FP8",
                       &RunNumbers::layers, {"layer"}),
      RunMetric::gauge(
          "gnomon_run_net_speedup_ratio",
          "measured speed over BF16 without verification, everything paid",
          [](const RunNumbers& n) { return n.costs ? n.costs->net_speedup : std::nullopt; }),
      RunMetric::gauge(
          "gnomon_run_speedup_ratio", "BF16's measured step time over FP8's",
          [](const RunNumbers& n) { return n.costs ? n.costs->speedup : std::nullopt; }),
      RunMetric::gauge("gnomon_run_verification_ratio",
                       "share of everything paid that went into verification",
                       of_costs(&CostNumbers::verification_share)),
      RunMetric::gauge("gnomon_run_hazard_per_step", "faults of FP8 per FP8 step, as learned",
                       of_costs(&CostNumbers::hazard_per_step)),
      RunMetric::gauge("gnomon_run_steps_lost", "steps that rollbacks took away",
                       of_costs(&CostNumbers::steps_lost)),
      RunMetric::gauge("gnomon_run_verdict", "1 for the run's verdict now, 0 for the others",
                       verdicts, {"verdict"}),
      RunMetric::gauge("gnomon_run_window_every_steps",
                       "steps from one window's start to the next, as in force",
                       of_facts(&decide::VerdictFacts::every_steps)),
      RunMetric::gauge("gnomon_run_replays_waiting", "replays ordered for the run and not answered",
                       of_facts(&decide::VerdictFacts::replays_waiting)),
      RunMetric::gauge("gnomon_run_directives_unapplied",
                       "directives overdue, and those refused or expired since one was applied",
                       of_facts(&decide::VerdictFacts::directives_unapplied)),
      RunMetric::gauge("gnomon_run_quarantined_verifiers",
                       "verifiers whose answers the run does not believe any more",
                       of_facts(&decide::VerdictFacts::quarantined_verifiers)),
      RunMetric::gauge("gnomon_run_instrument_broken",
                       "1 while equal BF16 replays give different bits",
                       of_facts(&decide::VerdictFacts::instrument_broken)),
  };
}

std::vector<RunMetric> counter_rows() {
  return {
      RunMetric::counter("gnomon_run_tokens_total", "tokens trained, over all attempts",
                         &RunNumbers::tokens),
      RunMetric::counter("gnomon_run_steps_total", "steps reported, over all attempts",
                         [](const RunNumbers& n) { return n.step_seconds.count(); }),
      RunMetric::counter("gnomon_run_windows_total", "windows closed", &RunNumbers::windows,
                         {"outcome"}),
      RunMetric::counter("gnomon_run_decisions_total", "decisions made", &RunNumbers::decisions,
                         {"kind"}),
      RunMetric::counter("gnomon_run_directives_total", "directives issued",
                         &RunNumbers::directives, {"kind"}),
      RunMetric::counter("gnomon_trainer_notices_total", "notices of trainers",
                         &RunNumbers::notices, {"kind"}),
      RunMetric::counter("gnomon_run_train_seconds_total", "compute spent in training steps",
                         [](const RunNumbers& n) { return n.step_seconds.sum; }),
      RunMetric::counter("gnomon_run_verify_seconds_total",
                         "compute spent in replays and evaluations", &RunNumbers::verify_seconds),
      RunMetric::histogram("gnomon_run_step_duration_seconds", "wall time of a step",
                           &RunNumbers::step_seconds),
  };
}

RunMetric rounding(const char* name, const char* help,
                   std::vector<TensorNumber> TensorNumbers::*list) {
  const auto read = [list](const RunNumbers& n, SampleWriter& out) {
    for (const TensorNumber& t : n.tensors.*list) out.add({t.gemm, t.site, t.tensor}, t.value);
  };
  return RunMetric::gauge(name, help, read, {"gemm", "site", "tensor"});
}

std::vector<RunMetric> tensor_rows() {
  return {
      rounding("gnomon_run_tensor_underflow_ratio",
               "share of nonzero elements that rounding made zero; the worst tensors",
               &TensorNumbers::underflow),
      rounding("gnomon_run_tensor_saturation_ratio",
               "share of elements beyond the format's largest; the worst tensors",
               &TensorNumbers::saturation),
      rounding("gnomon_run_tensor_sqnr_decibels", "signal to quantisation noise; the worst tensors",
               &TensorNumbers::sqnr),
      RunMetric::gauge("gnomon_run_tensor_kurtosis",
                       "kurtosis, 3 for a normal distribution; the tensors with the heaviest tails",
                       [](const RunNumbers& n, SampleWriter& out) {
                         for (const TensorNumber& t : n.tensors.kurtosis)
                           out.add({t.site, t.tensor}, t.value);
                       },
                       {"site", "tensor"}),
      RunMetric::gauge("gnomon_run_statistics_step", "newest step with tensor statistics",
                       [](const RunNumbers& n) {
                         return n.tensors.step > 0 ? std::optional(n.tensors.step) : std::nullopt;
                       }),
  };
}

// Reads `read` of the health of the run's device.
template <class Read>
auto of_device(Read read) {
  return [read](const RunNumbers& n, SampleWriter& out) {
    if (!n.device) return;
    const DeviceHealth& health = n.device->health;
    out.within({health.device, n.device->host}).add(std::invoke(read, health));
  };
}

// In another unit: times `factor`.
auto of_device(std::optional<double> DeviceHealth::*member, double factor) {
  return of_device([=](const DeviceHealth& health) {
    return health.*member ? std::optional(*(health.*member) * factor) : std::nullopt;
  });
}

template <class Number>
WordValues present(
    std::initializer_list<std::pair<const char*, const std::optional<Number>&>> numbers) {
  WordValues values;
  for (const auto& [word, number] : numbers) {
    if (number) values.emplace_back(word, static_cast<double>(*number));
  }
  return values;
}

WordValues throttled(const DeviceHealth& health) {
  WordValues values;
  if (!health.throttle_reasons) return values;
  for (const std::string_view reason : kThrottleReasons) {
    const auto now = ThrottleReason::on_record(reason);
    values.emplace_back(reason, std::ranges::count(*health.throttle_reasons, now));
  }
  return values;
}

std::vector<RunMetric> device_rows() {
  using Health = DeviceHealth;
  constexpr double kMega = 1e6;
  const std::vector<std::string> labels = {"device", "host"};
  return {
      RunMetric::gauge("gnomon_device_up", "1 if the GPU answered when it was asked last",
                       of_device([](const Health& health) { return health.error.empty(); }),
                       labels),
      RunMetric::gauge("gnomon_device_last_sample_timestamp_seconds", "when that was",
                       of_device(&Health::time), labels),
      RunMetric::gauge("gnomon_device_sm_clock_hertz", "clock of the multiprocessors",
                       of_device(&Health::sm_clock_mhz, kMega), labels),
      RunMetric::gauge("gnomon_device_memory_clock_hertz", "clock of the memory",
                       of_device(&Health::memory_clock_mhz, kMega), labels),
      RunMetric::gauge("gnomon_device_power_watts", "power drawn", of_device(&Health::power_watts),
                       labels),
      RunMetric::gauge("gnomon_device_power_limit_watts", "power that it may draw",
                       of_device(&Health::power_limit_watts), labels),
      RunMetric::gauge("gnomon_device_temperature_celsius", "temperature of the chip",
                       of_device(&Health::temperature_celsius), labels),
      RunMetric::gauge("gnomon_device_memory_used_bytes", "memory in use",
                       of_device(&Health::memory_used_bytes), labels),
      RunMetric::gauge("gnomon_device_memory_size_bytes", "memory there is",
                       of_device(&Health::memory_total_bytes), labels),
      RunMetric::gauge("gnomon_device_utilization_ratio", "share of time with a kernel",
                       of_device(&Health::utilization_percent, 1 / 100.0), labels),
      RunMetric::gauge("gnomon_device_throttled", "1 while the clock is held back for a reason",
                       of_device(throttled), {"device", "host", "reason"}),
      RunMetric::gauge("gnomon_device_remapped_rows",
                       "1 if memory rows wait to be replaced, or could not be",
                       of_device([](const Health& health) {
                         return present<bool>({{"pending", health.remapped_rows_pending},
                                               {"failure", health.remapped_rows_failure}});
                       }),
                       {"device", "host", "state"}),
      RunMetric::counter("gnomon_device_ecc_errors_total",
                         "memory errors since the driver was loaded",
                         of_device([](const Health& health) {
                           return present<int64_t>({{"corrected", health.ecc_corrected},
                                                    {"uncorrected", health.ecc_uncorrected}});
                         }),
                         {"device", "host", "kind"}),
  };
}

}  // namespace

const std::vector<MetricRow<RunNumbers>>& run_metrics() {
  static const std::vector<RunMetric> rows =
      joined<RunNumbers>({progress_rows(), window_rows(), verification_rows(), counter_rows(),
                          tensor_rows(), device_rows()});
  return rows;
}

}  // namespace gnomon

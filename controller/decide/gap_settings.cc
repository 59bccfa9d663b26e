#include "controller/decide/gap_settings.h"

#include <algorithm>
#include <cmath>

#include "controller/decide/verifier_records.h"

namespace gnomon::decide {

GapSettings gap_settings(const Policy& policy) {
  const Policy::Detector& d = policy.detector;
  GapSettings settings;
  settings.kind = d.kind;
  settings.windows_between_false_alarms = d.windows_between_false_alarms;
  settings.tolerance_percent = d.tolerance_percent;
  settings.ceiling_percent = d.ceiling_percent;
  // Without pairs nobody would ask whether it was chance.
  settings.jump_deviations = policy.triage.pairs > 0 ? d.jump_deviations : 0;
  settings.prior_scale_percent = d.prior_scale_percent;
  settings.burn_in_windows = d.burn_in_windows;
  settings.noise = d.noise;
  settings.burst = d.burst;
  settings.fixed_percent = d.fixed_percent;
  return settings;
}

GapSample gap_sample(const Core& core, const WindowState& window) {
  GapSample sample;
  if (window.measured) sample.d_percent = window.measured->d_percent.value_or(0);
  sample.floor_percent = std::sqrt(core.s.watch.instrument.mean_square);
  if (window.kind != "long") sample.most_percent = scale_most(core);
  sample.steps = static_cast<double>(window.steps);
  sample.tokens_per_step = static_cast<double>(core.s.run.tokens_per_step);
  sample.plan_version = window.plan_version;
  return sample;
}

GapSettings long_gap_settings(const Policy& policy, int64_t steps) {
  GapSettings settings = gap_settings(policy);
  const double longer = std::sqrt(static_cast<double>(steps) /
                                  static_cast<double>(std::max<int64_t>(1, policy.window.steps)));
  settings.ceiling_percent *= longer;
  settings.prior_scale_percent *= longer;
  settings.burst = false;
  settings.jump_deviations = 0;  // few forks tell little of their scale
  return settings;
}

double risen_evidence(const Policy& policy) {
  return gap_thresholds(gap_settings(policy)).suspicion / 4;
}

namespace {

// Healthy offsets grow with the logarithm of the steps: between two steps by no more than this.
double growth(const Policy& policy, double from, double to) {
  const double doublings = std::abs(std::log2((to + kYoungSteps) / (from + kYoungSteps)));
  return policy.detector.tolerance_percent * doublings;
}

}  // namespace

double offset_allowed(const Watch& watch, const Policy& policy, int64_t step) {
  const auto to = static_cast<double>(step);
  const double least = std::max(policy.detector.tolerance_percent, std::abs(watch.offset_level));
  if (watch.offset_windows == 0) return least + growth(policy, 0, to);
  // Few windows do not tell the level well.
  const double unknown = growth(policy, 0, to) / static_cast<double>(watch.offset_windows);
  return least + growth(policy, watch.offset_level_step, to) + unknown;
}

GapSettings offset_settings(const Policy& policy, double allowed_percent) {
  GapSettings settings;
  settings.windows_between_false_alarms = policy.detector.windows_between_false_alarms;
  settings.tolerance_percent = allowed_percent;
  settings.ceiling_percent = HUGE_VAL;
  settings.prior_scale_percent = policy.detector.prior_scale_percent;
  settings.burn_in_windows = 0;
  settings.correlation = 0;  // it is compared with its own level, which follows it
  settings.burst = false;
  return settings;
}

double tolerated_percent(const Core& core) {
  return std::max(core.policy.detector.tolerance_percent, core.s.watch.gap.scale.accepted_percent);
}

}  // namespace gnomon::decide

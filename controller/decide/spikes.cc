#include "controller/decide/spikes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace gnomon::decide {
namespace {

constexpr size_t kLanes = 8;
typedef double Lanes __attribute__((vector_size(kLanes * sizeof(double))));

struct Threshold {
  double expected = 0;
  double deviation = 0;
  std::optional<double> loss;
  bool by_ratio = false;
};

struct Trend {
  double next = 0;       // the line's value one step behind the last loss
  double deviation = 0;  // of the losses about the line, n − 2 degrees of freedom
};

// Ordinary least squares of the losses over their index. A mean alone would hide a spike while the
// loss still falls: the fall itself would count as noise.
Trend fit_trend(const std::vector<double>& losses) {
  const double count = static_cast<double>(losses.size());
  const double middle = (count - 1) / 2;
  double mean = 0;
  for (double loss : losses) mean += loss / count;
  double covariance = 0;
  double variance = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    const double x = static_cast<double>(i) - middle;
    covariance += x * (losses[i] - mean);
    variance += x * x;
  }
  const double slope = covariance / variance;
  double squares = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    const double residual = losses[i] - mean - slope * (static_cast<double>(i) - middle);
    squares += residual * residual;
  }
  return {mean + slope * (count - middle), std::sqrt(squares / (count - 2))};
}

Threshold spike_threshold(const SpikeState& state, const Policy::Detector& policy) {
  Threshold result;
  if (static_cast<int64_t>(state.recent.size()) >= kSpikeHistoryMin) {
    const Trend trend = fit_trend(state.recent);
    result.expected = trend.next;
    result.deviation = trend.deviation;
    result.loss = trend.next + std::max(policy.spike_sigma * trend.deviation,
                                        kSpikeRiseMin * std::abs(trend.next));
  }
  if (state.first_count >= kFirstLosses) {
    const double by_ratio = policy.spike_ratio * state.first_max;
    if (!result.loss || by_ratio < *result.loss) {
      result.loss = by_ratio;
      result.by_ratio = true;
    }
  }
  return result;
}

std::string rule_of(const Threshold& threshold, size_t history, const Policy::Detector& policy) {
  if (!threshold.loss) return "";
  if (threshold.by_ratio) {
    return fmt::format("{} times the largest of the first {} losses", policy.spike_ratio,
                       kFirstLosses);
  }
  return fmt::format("{} standard deviations and 5% above the trend of the {} steps before",
                     policy.spike_sigma, history);
}

// True only when the loss lies under the threshold for certain: not over the trend and the least
// rise. The trend is summed in lanes, in another order than fit_trend's, and the margin is wider
// than what that can change: nearly all steps end here, at a tenth of the cost.
bool calm_for_certain(const SpikeState& state, double loss, const Policy::Detector& policy) {
  constexpr double kMargin = 1e-9;
  const size_t n = state.recent.size();
  if (static_cast<int64_t>(n) < kSpikeHistoryMin) return false;
  if (state.first_count >= kFirstLosses && !(loss <= policy.spike_ratio * state.first_max)) {
    return false;
  }
  const double count = static_cast<double>(n);
  const double middle = (count - 1) / 2;
  Lanes sum = {}, moment = {}, size = {}, place;
  for (size_t lane = 0; lane < kLanes; ++lane) place[lane] = static_cast<double>(lane) - middle;
  const double* recent = state.recent.data();
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Lanes known;
    std::memcpy(&known, recent + i, sizeof known);
    sum += known;
    moment += place * known;
    size += known < 0 ? -known : known;
    place += static_cast<double>(kLanes);
  }
  for (; i < n; ++i) {
    sum[0] += recent[i];
    moment[0] += (static_cast<double>(i) - middle) * recent[i];
    size[0] += std::abs(recent[i]);
  }
  double sums = 0, moments = 0, sizes = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    sums += sum[lane], moments += moment[lane], sizes += size[lane];
  }
  const double variance = count * (count * count - 1) / 12;
  const double next = sums / count + moments / variance * (count - middle);
  return loss <= next + kSpikeRiseMin * std::abs(next) - kMargin * sizes;
}

void remember(SpikeState& state, double loss, const Threshold& threshold, int64_t history) {
  if (state.first_count < kFirstLosses) {
    state.first_max = state.first_count == 0 ? loss : std::max(state.first_max, loss);
    state.first_count += 1;
  }
  state.recent.push_back(threshold.loss ? std::min(loss, *threshold.loss) : loss);
  const int64_t excess = static_cast<int64_t>(state.recent.size()) - history;
  if (excess > 0) state.recent.erase(state.recent.begin(), state.recent.begin() + excess);
}

}  // namespace

void rewind_spikes(SpikeState& state, int64_t steps) {
  const int64_t known = static_cast<int64_t>(state.recent.size());
  const int64_t left = std::clamp<int64_t>(known - std::max<int64_t>(steps, 0), 0, known);
  state.recent.resize(static_cast<size_t>(left));
  state.silent_until = 0;
  forget_non_finite(state);
}

void forget_non_finite(SpikeState& state) {
  state.non_finite.reset();
  state.non_finite_losses = 0;
  state.non_finite_cases = 0;
  state.non_finite_shared = false;
}

std::optional<SpikeFinding> observe_step(SpikeState& state, const StepReported& step,
                                         const Policy::Detector& policy) {
  const bool finite = std::isfinite(step.loss) && std::isfinite(step.grad_norm.value_or(0));
  if (finite && calm_for_certain(state, step.loss, policy)) {
    forget_non_finite(state);
    remember(state, step.loss, {}, policy.spike_history);
    return std::nullopt;
  }
  const Threshold threshold = spike_threshold(state, policy);
  const size_t history = state.recent.size();
  SpikeFinding finding;
  finding.step = step.step;
  finding.loss = step.loss;
  finding.grad_norm = step.grad_norm;
  finding.expected = threshold.expected;
  finding.deviation = threshold.deviation;
  finding.threshold = threshold.loss;
  if (!finite) {
    state.non_finite_losses = std::isfinite(step.loss) ? 0 : state.non_finite_losses + 1;
    if (std::isfinite(step.loss)) remember(state, step.loss, threshold, policy.spike_history);
    if (state.non_finite) return std::nullopt;
    finding.kind = "non_finite";
    finding.rule = rule_of(threshold, history, policy);
    state.non_finite = finding;
    return finding;
  }
  forget_non_finite(state);
  remember(state, step.loss, threshold, policy.spike_history);
  if (!threshold.loss || step.loss <= *threshold.loss) return std::nullopt;
  const bool silent = step.step <= state.silent_until;
  state.silent_until = step.step + kSpikeCoolDownSteps;
  if (silent) return std::nullopt;
  finding.kind = "spike";
  finding.rule = rule_of(threshold, history, policy);
  return finding;
}

}  // namespace gnomon::decide

#include "controller/decide/sentinels.h"

#include <algorithm>
#include <cmath>

namespace gnomon::decide {
namespace {

constexpr double kLevelGain = 1.0 / 64;    // of a new step in the level
constexpr double kSizeWeight = 1.0 / 256;  // and in the size of errors
constexpr double kCallSlack = 0.5;         // deviations a step that the sums leave out
constexpr double kErrorMax = 4;            // deviations: one step alone does not call
constexpr double kCorrelationMax = 0.9;
constexpr double kLeastDeviation = 1e-3;  // as a share of the level: what is constant has no noise

double weight_after(int64_t count, double least) {
  return std::max(least, 1.0 / static_cast<double>(count + 1));
}

// The forecast of this step, one step on along the line.
double forecast_of(const SentinelSignal& signal, double way) {
  return signal.level + signal.slope * way;
}

void learn(SentinelSignal& signal, double forecast, double error, double way) {
  const double weight = weight_after(signal.count, kLevelGain);
  signal.level = forecast + weight * error;
  // Holt's trend with critical damping.
  if (signal.count >= 2) signal.slope += 0.5 * weight * weight * error / way;
}

void add(double& sum, int64_t& since, double deviations, int64_t step) {
  if (sum == 0) since = step;
  sum = std::max(0.0, sum + deviations - kCallSlack);
}

// Returns the sum that calls, up > 0 or down < 0; 0 = none.
double observe(SentinelSignal& signal, double value, int64_t step, double* forecast) {
  if (signal.count == 0) {
    signal.level = value;
    signal.count = 1;
    return 0;
  }
  const double way = std::log1p(1.0 / static_cast<double>(std::max<int64_t>(1, step)));
  *forecast = forecast_of(signal, way);
  const double floor = kLeastDeviation * std::max(std::abs(signal.level), 1.0);
  const double size = std::max(std::sqrt(signal.variance), floor);
  const double raw = value - *forecast;
  const double error =
      signal.count < 8 ? raw : std::clamp(raw, -kErrorMax * size, kErrorMax * size);
  // What the error before foretells of this one is no news: data in the order of a book are alike.
  const double correlation =
      signal.variance > 0 ? std::clamp(signal.covariance / signal.variance, 0.0, kCorrelationMax)
                          : 0;
  const double news = error - correlation * signal.error;
  const double spread = std::max(std::sqrt(signal.innovation), floor);
  if (signal.count >= kSentinelLearns) {
    const double deviations = std::clamp(news / spread, -kErrorMax, kErrorMax);
    add(signal.up, signal.up_since, deviations, step);
    add(signal.down, signal.down_since, -deviations, step);
  }
  const double weight = weight_after(signal.count - 1, kSizeWeight);
  signal.variance += weight * (error * error - signal.variance);
  signal.covariance += weight * (error * signal.error - signal.covariance);
  signal.innovation += weight * (news * news - signal.innovation);
  signal.error = error;
  learn(signal, *forecast, error, way);
  signal.count += 1;
  if (signal.up > kSentinelCalls) return signal.up;
  return signal.down > kSentinelCalls ? -signal.down : 0;
}

std::optional<SentinelCall> call_of(SentinelSignal& signal, const char* name, double value,
                                    int64_t step) {
  SentinelCall call;
  const double sum = observe(signal, value, step, &call.forecast);
  if (sum == 0) return std::nullopt;
  call.signal = name;
  call.up = sum > 0;
  call.since_step = call.up ? signal.up_since : signal.down_since;
  call.statistic = std::abs(sum);
  call.value = value;
  signal = {};
  return call;
}

}  // namespace

std::optional<SentinelCall> observe_signals(SentinelState& state, const StepReported& step) {
  if (!std::isfinite(step.loss)) return std::nullopt;
  std::optional<SentinelCall> call = call_of(state.loss, "loss", step.loss, step.step);
  const double norm = step.grad_norm.value_or(0);
  if (!(std::isfinite(norm) && norm > 0)) return call;
  std::optional<SentinelCall> other =
      call_of(state.grad_norm, "grad_norm", std::log(norm), step.step);
  if (call || !other) return call;
  other->forecast = std::exp(other->forecast);
  other->value = norm;
  return other;
}

}  // namespace gnomon::decide

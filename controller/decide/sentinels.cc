#include "controller/decide/sentinels.h"

#include <algorithm>
#include <cmath>

namespace gnomon::decide {
namespace {

constexpr double kLevelGain = 1.0 / 64;    // of a new step in the level
constexpr double kSizeWeight = 1.0 / 256;  // and in the size of errors
constexpr double kErrorMax = 4;            // deviations: one step alone does not call
constexpr double kCorrelationMax = 0.9;
constexpr double kLeastDeviation = 1e-3;  // as a share of the level: what is constant has no noise
constexpr double kPeakInUse = 0.25;  // a peak below it leaves two binades of each format unused

// How a signal is watched.
struct Scale {
  double least;  // deviation, in the signal's unit
  double slack;  // deviations a step that the sums leave out
};

// With current scales a healthy run's casts do the same at every step, so that the least deviation
// alone says what a change is. One tensor of 1,000 that begins to lose half of its values moves the
// logarithm of a share by ln(5e5)/1000 = 0.013: four deviations, the most that a step counts, and
// the fourth step calls. A peak that moves by less than 2% stays within the slack and never calls.
// With delayed scales all three vary, and three more signals must not make false calls common:
// their slack is wider than that of the loss.
constexpr Scale kCastShare = {0.003, 0.75};
constexpr Scale kCastPeak = {0.03, 0.75};

Scale scale_of(const SentinelSignal& signal) {
  return {kLeastDeviation * std::max(std::abs(signal.level), 1.0), 0.5};
}

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
  sum = std::max(0.0, sum + deviations);
}

// Returns the sum that calls, up > 0 or down < 0; 0 = none.
double observe(SentinelSignal& signal, const Scale& scale, double value, int64_t step,
               double* forecast) {
  if (signal.count == 0) {
    signal.level = value;
    signal.count = 1;
    return 0;
  }
  const double way = std::log1p(1.0 / static_cast<double>(std::max<int64_t>(1, step)));
  *forecast = forecast_of(signal, way);
  const double size = std::max(std::sqrt(signal.variance), scale.least);
  const double raw = value - *forecast;
  const double error =
      signal.count < 8 ? raw : std::clamp(raw, -kErrorMax * size, kErrorMax * size);
  // What the error before foretells of this one is no news: data in the order of a book are alike.
  const double square = std::max(signal.variance, scale.least * scale.least);
  const double correlation = std::clamp(signal.covariance / square, 0.0, kCorrelationMax);
  const double news = error - correlation * signal.error;
  const double spread = std::max(std::sqrt(signal.innovation), scale.least);
  if (signal.count >= kSentinelLearns) {
    const double deviations = std::clamp(news / spread, -kErrorMax, kErrorMax);
    add(signal.up, signal.up_since, deviations - scale.slack, step);
    add(signal.down, signal.down_since, -deviations - scale.slack, step);
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

std::optional<SentinelCall> call_of(SentinelSignal& signal, const char* name, const Scale& scale,
                                    double value, int64_t step) {
  SentinelCall call;
  const double sum = observe(signal, scale, value, step, &call.forecast);
  if (sum == 0) return std::nullopt;
  call.signal = name;
  call.up = sum > 0;
  call.since_step = call.up ? signal.up_since : signal.down_since;
  call.statistic = std::abs(sum);
  call.value = value;
  signal = {};
  return call;
}

// Watches the logarithm of a number, where there is one.
std::optional<SentinelCall> call_of_log(SentinelSignal& signal, const char* name,
                                        const Scale& scale, const std::optional<double>& number,
                                        int64_t step) {
  if (!number || !std::isfinite(*number) || *number <= 0) return std::nullopt;
  std::optional<SentinelCall> call = call_of(signal, name, scale, std::log(*number), step);
  if (!call) return std::nullopt;
  call->forecast = std::exp(call->forecast);
  call->value = *number;
  return call;
}

}  // namespace

bool may_be_harm(const SentinelCall& call) {
  if (call.up || call.signal == "grad_norm") return true;
  return call.signal == "cast_peak" && call.value < kPeakInUse;
}

std::optional<SentinelCall> observe_signals(SentinelState& state, const StepReported& step) {
  if (!std::isfinite(step.loss)) return std::nullopt;
  const int64_t at = step.step;
  SentinelState& s = state;
  const std::optional<SentinelCall> calls[] = {
      call_of_log(s.cast_peak, "cast_peak", kCastPeak, step.cast_peak, at),
      call_of_log(s.cast_saturated, "cast_saturated", kCastShare, step.cast_saturated, at),
      call_of_log(s.cast_flushed, "cast_flushed", kCastShare, step.cast_flushed, at),
      call_of(s.loss, "loss", scale_of(s.loss), step.loss, at),
      call_of_log(s.grad_norm, "grad_norm", scale_of(s.grad_norm), step.grad_norm, at)};
  std::optional<SentinelCall> found;
  for (const std::optional<SentinelCall>& call : calls) {
    if (call && (!found || (may_be_harm(*call) && !may_be_harm(*found)))) found = call;
  }
  return found;
}

}  // namespace gnomon::decide

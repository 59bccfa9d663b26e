// Sentinels compare the loss, the gradient norm and what casts to FP8 did in every step with their
// own forecast. They cost nothing and accuse nobody: one that calls orders a window over the steps
// since the change began.
// They see a change within some hundred steps that is large beside the noise of single steps; what
// comes slowly becomes part of the forecast.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "controller/decide/events.h"

namespace gnomon::decide {

// Steps that a forecast is learned from before its sentinel may call.
inline constexpr int64_t kSentinelLearns = 128;
// A cumulative sum over this calls. With independent Gaussian errors that happens once in millions
// of steps; the shapes of real losses make it sooner (docs/detector.md has what was measured).
inline constexpr double kSentinelCalls = 10;

// One signal: its forecast (Holt's linear trend over the logarithm of the step, for losses fall
// like a power of it), the size of its errors, and Page's cumulative sums of them, upwards and
// downwards.
struct SentinelSignal {
  int64_t count = 0;  // steps learned from
  double level = 0;
  double slope = 0;  // per unit of the step's logarithm
  double error = 0;  // of the newest forecast
  double variance = 0;
  double covariance = 0;  // of successive errors
  double innovation = 0;  // variance of the errors that the errors before do not foretell
  double up = 0;          // cumulative sums, in deviations
  double down = 0;
  int64_t up_since = 0;  // the step at which each left zero
  int64_t down_since = 0;
};

struct SentinelState {
  SentinelSignal loss;
  // Logarithms.
  SentinelSignal grad_norm;
  SentinelSignal cast_saturated;
  SentinelSignal cast_flushed;
  SentinelSignal cast_peak;
};

struct SentinelCall {
  std::string signal;  // a member of SentinelState
  bool up = true;
  int64_t since_step = 0;  // the first step of the change
  double statistic = 0;    // of kSentinelCalls
  double forecast = 0;     // of the newest step: nats, or the number itself
  double value = 0;        // and what it was
};

// False for what costs no precision: a falling loss, casts that lose fewer values, and a largest
// value that falls and still uses the format. Scales that are too small for that raise
// cast_flushed, or bring the peak below a quarter.
bool may_be_harm(const SentinelCall& call);

// Takes a step into account. A signal that has called learns anew. Steps that are not finite say
// nothing here (spikes.h). The first call that may be harm is returned, that of a cast before the
// loss that it moves.
std::optional<SentinelCall> observe_signals(SentinelState& state, const StepReported& step);

}  // namespace gnomon::decide

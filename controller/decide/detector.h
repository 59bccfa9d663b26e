// Turns replays and step reports into numbers, and numbers into "quiet" or "alarm". Two detectors:
// the paired loss gap of a window against a fixed tolerance, and a rule for spikes and non-finite
// values in the step losses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "controller/decide/events.h"
#include "controller/decide/policy.h"

namespace gnomon::decide {

// What one window says. Losses are means in nats per token on the held-out batch, evaluated in
// BF16.
struct Measurement {
  std::optional<double> gap;        // L16(w8) − L16(w16)
  std::optional<double> offset;     // L8 − L16 at the start checkpoint
  std::optional<double> d_percent;  // 100·gap / L16(w16); infinite when the run's end is not finite
  std::optional<double> reference;  // L16(w16)
  std::string unusable;             // why the window cannot be judged; empty when it can
};

// From a BF16 replay with endpoints: w8 is the run's end, w16 the replay's.
Measurement measure_shadow(const ReplayFinished& replay);
// From an FP8 replay beside a BF16 run: w8 is the replay's end and the run's end is the reference.
Measurement measure_probe(const ReplayFinished& replay);

// What the gap detector has learned from the run's quiet windows (Welford's running mean and sum of
// squares).
struct DetectorState {
  int64_t quiet_windows = 0;
  double mean_d = 0;
  double sum_squares = 0;
  double deviation() const;  // of D, per cent; 0 with fewer than two windows
};

// True when the window is an alarm. The measurement must be usable.
bool gap_alarm(const DetectorState& state, const Measurement& measured,
               const Policy::Detector& policy);
void learn_quiet(DetectorState& state, const Measurement& measured);

inline constexpr int64_t kSpikeHistoryMin = 32;  // finite losses before the spike rule may speak
inline constexpr double kSpikeRiseMin =
    0.05;  // and the least rise over the expected loss, as a share of it
inline constexpr int64_t kFirstLosses = 100;        // of the ratio rule
inline constexpr int64_t kSpikeCoolDownSteps = 32;  // after the last step over the threshold

struct SpikeState {
  std::vector<double>
      recent;  // finite losses, oldest first, clipped to the threshold of their time
  int64_t first_count = 0;
  double first_max = 0;
  int64_t silent_until = 0;          // no finding at or before this step
  bool non_finite_reported = false;  // until a finite step comes
};

struct SpikeFinding {
  std::string kind;  // spike, non_finite
  int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  double expected = 0;   // by the trend of the losses before; 0 when there were too few
  double deviation = 0;  // about that trend
  std::optional<double>
      threshold;     // loss above it is a spike; absent when there were too few losses
  std::string rule;  // for people: "7 standard deviations above the trend of the last 128 steps"
};

// The newest `steps` steps are gone (a rollback, a restart): the next ones are no later than these
// were, and would look like spikes beside them.
void rewind_spikes(SpikeState& state, int64_t steps);

// Takes one step into account. Returns a finding for a step that is not finite or a spike, once per
// episode.
std::optional<SpikeFinding> observe_step(SpikeState& state, const StepReported& step,
                                         const Policy::Detector& policy);

}  // namespace gnomon::decide

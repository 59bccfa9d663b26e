// A rule for spikes and non-finite values in the step losses. Non-finite values come first and
// never enter the history; a step is compared with the trend of the steps before it, itself
// excluded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "controller/decide/events.h"
#include "controller/decide/policy.h"

namespace gnomon::decide {

inline constexpr int64_t kSpikeHistoryMin = 32;  // finite losses before the spike rule may speak
inline constexpr double kSpikeRiseMin =
    0.05;  // and the least rise over the expected loss, as a share of it
inline constexpr int64_t kFirstLosses = 100;        // of the ratio rule
inline constexpr int64_t kSpikeCoolDownSteps = 32;  // after the last step over the threshold
inline constexpr int64_t kNonFiniteLosses = 4;      // in a row: the weights are not finite

struct SpikeFinding {
  std::string kind;  // spike, non_finite
  int64_t step = 0;
  double loss = 0;
  std::optional<double> grad_norm = {};
  double expected = 0;   // by the trend of the losses before; 0 when there were too few
  double deviation = 0;  // about that trend
  std::optional<double>
      threshold;     // loss above it is a spike; absent when there were too few losses
  std::string rule;  // for people: "7 standard deviations above the trend of the last 128 steps"
};

struct SpikeState {
  std::vector<double>
      recent;  // finite losses, oldest first, clipped to the threshold of their time
  int64_t first_count = 0;
  double first_max = 0;
  int64_t silent_until = 0;  // no finding at or before this step
  int64_t shared_step = -1;  // the newest spike that BF16 was seen to share
  // While the newest steps are not finite: the first of them, how many losses in a row were not,
  // how many cases have asked about it, and whether BF16 is not finite there either.
  std::optional<SpikeFinding> non_finite = {};
  int64_t non_finite_losses = 0;
  int64_t non_finite_cases = 0;
  bool non_finite_shared = false;
};

// The newest `steps` steps are gone (a rollback, a restart): the next ones are no later than these
// were, and would look like spikes beside them.
void rewind_spikes(SpikeState& state, int64_t steps);
void forget_non_finite(SpikeState& state);

// Takes one step into account. Returns a finding for a step that is not finite or a spike, once per
// episode.
std::optional<SpikeFinding> observe_step(SpikeState& state, const StepReported& step,
                                         const Policy::Detector& policy);

}  // namespace gnomon::decide

// Turns replays into numbers, and numbers into "quiet" or "alarm": the paired loss gap of a window
// against a fixed tolerance. The rule for step losses is in spikes.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "controller/decide/events.h"
#include "controller/decide/policy.h"
#include "controller/decide/spikes.h"

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

}  // namespace gnomon::decide

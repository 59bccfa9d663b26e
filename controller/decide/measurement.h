// Turns replays into what a window says: the gap between FP8 and BF16, and apart from it what
// evaluating in FP8 costs at equal weights.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "controller/decide/events.h"

namespace gnomon::decide {

// What one window says. Losses are means in nats per token on the held-out batch, evaluated in
// BF16.
struct Measurement {
  std::optional<double> gap;        // L16(w8) − L16(w16)
  std::optional<double> offset;     // L8 − L16 at the start checkpoint
  std::optional<double> d_percent;  // 100·gap / L16(w16); infinite when the run's end is not finite
  std::optional<double> reference;        // L16(w16)
  std::optional<double> start_loss_plan;  // L8 at the start checkpoint
  std::optional<double> gap_error;        // standard error of the gap over the held-out text, nats
  std::string unusable;                   // why the window cannot be judged; empty when it can
};

// The replay went through all its `steps` and its end was not evaluated: what is missing is the
// verifier's doing. A replay that turned non-finite has no end to evaluate.
bool end_left_out(const ReplayFinished& replay, int64_t steps);
// From a BF16 replay with endpoints: w8 is the run's end, w16 the replay's.
Measurement measure_shadow(const ReplayFinished& replay);
// From an FP8 replay beside a BF16 run: w8 is the replay's end and the run's end is the reference.
Measurement measure_probe(const ReplayFinished& replay);
Measurement without_offset(Measurement measured);

}  // namespace gnomon::decide

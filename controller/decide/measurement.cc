#include "controller/decide/measurement.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace gnomon::decide {
namespace {

// `damaged` against `reference`, both in nats per token.
Measurement compare(const std::optional<double>& damaged, const std::optional<double>& reference,
                    const char* damaged_name, const char* reference_name) {
  Measurement result;
  if (!damaged || !reference) {
    result.unusable = fmt::format("the held-out loss of {} was not measured",
                                  damaged ? reference_name : damaged_name);
    return result;
  }
  if (!std::isfinite(*reference) || *reference <= 0) {
    result.unusable = fmt::format("the held-out loss of {} is {}", reference_name, *reference);
    return result;
  }
  result.reference = *reference;
  if (std::isfinite(*damaged)) {
    result.gap = *damaged - *reference;
    result.d_percent = 100.0 * *result.gap / *reference;
    if (!std::isfinite(*result.d_percent)) result.d_percent = 100.0 * (*result.gap / *reference);
  } else {
    result.d_percent = std::numeric_limits<double>::infinity();
  }
  return result;
}

}  // namespace

bool end_left_out(const ReplayFinished& replay, int64_t steps) {
  return !replay.replay_end_loss_bf16 && std::ssize(replay.losses) == steps &&
         std::isfinite(replay.losses.back());
}

Measurement measure_shadow(const ReplayFinished& replay) {
  Measurement result = compare(replay.run_end_loss_bf16, replay.replay_end_loss_bf16,
                               "the run's end", "the BF16 replay's end");
  if (replay.start_loss_bf16 && replay.start_loss_plan && std::isfinite(*replay.start_loss_bf16) &&
      std::isfinite(*replay.start_loss_plan)) {
    const double offset = *replay.start_loss_plan - *replay.start_loss_bf16;
    // What is learned from it is a share of the loss.
    if (std::isfinite(100 * offset / result.reference.value_or(1))) {
      result.offset = offset;
      result.start_loss_plan = replay.start_loss_plan;
    }
  }
  result.gap_error = replay.gap_error;
  return result;
}

Measurement measure_probe(const ReplayFinished& replay) {
  std::optional<double> end = replay.replay_end_loss_bf16;
  // A replay that turned non-finite has no end.
  if (!end && !replay.losses.empty() && !std::isfinite(replay.losses.back()))
    end = std::numeric_limits<double>::infinity();
  return compare(end, replay.run_end_loss_bf16, "the FP8 replay's end", "the run's end");
}

Measurement without_offset(Measurement measured) {
  measured.offset.reset();
  measured.start_loss_plan.reset();
  return measured;
}

}  // namespace gnomon::decide

#include "controller/decide/detector.h"

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
  } else {
    result.d_percent = std::numeric_limits<double>::infinity();
  }
  return result;
}

}  // namespace

Measurement measure_shadow(const ReplayFinished& replay) {
  Measurement result = compare(replay.run_end_loss_bf16, replay.replay_end_loss_bf16,
                               "the run's end", "the BF16 replay's end");
  if (replay.start_loss_bf16 && replay.start_loss_plan && std::isfinite(*replay.start_loss_bf16) &&
      std::isfinite(*replay.start_loss_plan)) {
    result.offset = *replay.start_loss_plan - *replay.start_loss_bf16;
  }
  return result;
}

Measurement measure_probe(const ReplayFinished& replay) {
  return compare(replay.replay_end_loss_bf16, replay.run_end_loss_bf16, "the FP8 replay's end",
                 "the run's end");
}

double DetectorState::deviation() const {
  if (quiet_windows < 2) return 0;
  return std::sqrt(sum_squares / static_cast<double>(quiet_windows - 1));
}

bool gap_alarm(const DetectorState&, const Measurement& measured, const Policy::Detector& policy) {
  return *measured.d_percent > policy.tolerance_percent;
}

void learn_quiet(DetectorState& state, const Measurement& measured) {
  state.quiet_windows += 1;
  const double delta = *measured.d_percent - state.mean_d;
  state.mean_d += delta / static_cast<double>(state.quiet_windows);
  state.sum_squares += delta * (*measured.d_percent - state.mean_d);
}

}  // namespace gnomon::decide

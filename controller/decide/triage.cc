#include "controller/decide/triage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace gnomon::decide {
namespace {

constexpr int64_t kStepsAroundSpike = 2;  // "about the same step"
constexpr double kSpikeShare = 0.5;       // at least half as high

// The verdict of the hashes, when they may speak.
std::optional<Reproduction> compare_bits(const ReplayFinished& same) {
  if (!same.fingerprint_equal || same.compared_steps <= 0) return std::nullopt;
  Reproduction result;
  result.bitwise = true;
  result.first_mismatch_step = same.first_mismatch_step;
  result.reproduces = !same.first_mismatch_step.has_value();
  result.sentence =
      result.reproduces
          ? fmt::format("A replay under the same plan gave the same bits in all {} steps compared",
                        same.compared_steps)
          : fmt::format("A replay under the same plan on an equal machine differs from step {} on",
                        *same.first_mismatch_step);
  return result;
}

std::string why_not_bits(const ReplayFinished& same) {
  return same.fingerprint_equal ? "no step's hashes could be compared" : "the fingerprints differ";
}

bool finite(const std::optional<double>& value) { return value && std::isfinite(*value); }

}  // namespace

Reproduction compare_same_gap(const ReplayFinished& same, const Measurement& measured) {
  if (auto bits = compare_bits(same)) return *bits;
  Reproduction result;
  if (!same.replay_end_loss_bf16) {
    result.reproduces = true;
    result.sentence = fmt::format(
        "Whether it reproduces could not be seen ({}, and no end loss was measured): taken as "
        "reproducing",
        why_not_bits(same));
    return result;
  }
  const double end = *same.replay_end_loss_bf16;
  if (!measured.gap || !std::isfinite(end)) {
    result.reproduces = !std::isfinite(end);
    result.sentence =
        fmt::format("Compared by losses, not bits ({}): a replay under the same plan ended {}",
                    why_not_bits(same), std::isfinite(end) ? "finite" : "not finite as well");
    return result;
  }
  const double share = (end - *measured.reference) / *measured.gap;
  result.reproduces = share >= 0.5;
  result.sentence = fmt::format(
      "Compared by losses, not bits ({}): a replay under the same plan shows {:.0f}% of the gap",
      why_not_bits(same), std::round(100 * share) + 0.0);
  return result;
}

Reproduction compare_same_spike(const ReplayFinished& same, const SpikeFinding& finding,
                                int64_t steps_asked) {
  if (auto bits = compare_bits(same)) return *bits;
  const SpikeComparison seen = compare_spike(same, finding, steps_asked);
  Reproduction result;
  result.reproduces =
      finding.kind == "non_finite" ? seen.non_finite : seen.spikes || seen.non_finite;
  result.sentence =
      fmt::format("Compared by losses, not bits ({}): a replay under the same plan {}",
                  why_not_bits(same), result.reproduces ? "shows the same" : "does not show it");
  return result;
}

SpikeComparison compare_spike(const ReplayFinished& replay, const SpikeFinding& finding,
                              int64_t steps_asked) {
  SpikeComparison result;
  const size_t count = std::min(replay.steps.size(), replay.losses.size());
  result.non_finite = static_cast<int64_t>(count) < steps_asked;
  double highest = -HUGE_VAL;
  for (size_t i = 0; i < count; ++i) {
    const int64_t step = replay.steps[i];
    const double loss = replay.losses[i];
    if (!std::isfinite(loss)) {
      result.non_finite = true;
      continue;
    }
    if (step == finding.step) result.loss = loss;
    if (step <= finding.step && step >= finding.step - kStepsAroundSpike)
      highest = std::max(highest, loss);
  }
  if (finding.threshold && highest > *finding.threshold) result.spikes = true;
  const double rise = finding.loss - finding.expected;
  if (finding.kind == "spike" && finding.expected != 0 &&
      highest - finding.expected >= kSpikeShare * rise) {
    result.spikes = true;
  }
  return result;
}

std::string gap_verdict(const std::optional<Reproduction>& same) {
  if (!same) return "unexplained";
  return same->reproduces ? "fp8_numerics" : "transient_fault";
}

std::string spike_verdict(const SpikeFinding& finding, const std::optional<Reproduction>& same,
                          const std::optional<SpikeComparison>& bf16) {
  if (!same) return "unexplained";
  if (!same->reproduces) return "transient_fault";
  if (!bf16) return "unexplained";
  if (finding.kind == "non_finite") return bf16->non_finite ? "generic_spike" : "fp8_numerics";
  return bf16->non_finite || bf16->spikes ? "generic_spike" : "fp8_numerics";
}

bool rescue_closes_gap(const ReplayFinished& rescue, const Measurement& measured,
                       double recovered_share, double tolerance_percent) {
  if (!finite(rescue.replay_end_loss_bf16) || !finite(measured.reference)) return false;
  const double remaining =
      100 * (*rescue.replay_end_loss_bf16 - *measured.reference) / *measured.reference;
  const double d = measured.d_percent.value_or(HUGE_VAL);
  if (!std::isfinite(d)) return remaining <= tolerance_percent;
  return remaining <= std::max(recovered_share * d, std::min(tolerance_percent, d / 2));
}

bool rescue_avoids_spike(const ReplayFinished& rescue, const SpikeFinding& finding,
                         const SpikeComparison& bf16, double recovered_share, int64_t steps_asked) {
  const SpikeComparison seen = compare_spike(rescue, finding, steps_asked);
  if (seen.non_finite || !seen.loss) return false;
  if (finding.threshold && *seen.loss <= *finding.threshold) return true;
  if (finding.kind == "non_finite") return !finding.threshold.has_value();
  if (!bf16.loss) return false;
  return *seen.loss - *bf16.loss <= recovered_share * (finding.loss - *bf16.loss);
}

}  // namespace gnomon::decide

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
  result.other_batch = same.first_other_batch_step.has_value() &&
                       same.first_other_batch_step <= same.first_mismatch_step;
  if (result.other_batch) result.other_batches = same.other_batches;
  result.reproduces = !same.first_mismatch_step.has_value();
  result.sentence =
      result.reproduces
          ? fmt::format("A replay under the same plan gave the same bits ({} {} compared)",
                        same.compared_steps, same.compared_steps == 1 ? "step" : "steps")
          : fmt::format("A replay under the same plan on an equal machine differs from step {} on",
                        *same.first_mismatch_step);
  return result;
}

std::string why_not_bits(const ReplayFinished& same) {
  if (!same.fingerprint_equal) return "the fingerprints differ, or the run's replay is not exact";
  return same.compared_steps > 0 ? "no two replays give the same ones"
                                 : "no step's hashes could be compared";
}

}  // namespace

Reproduction compare_same_gap(const ReplayFinished& same, const Measurement& measured) {
  if (auto bits = compare_bits(same)) return *bits;
  return compare_gap_by_losses(same, measured);
}

Reproduction compare_gap_by_losses(const ReplayFinished& same, const Measurement& measured) {
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
  if (measured.gap && *measured.gap <= 0) {
    result.reproduces = true;
    result.sentence = fmt::format(
        "Compared by losses, not bits ({}): the window itself shows no gap, a replay under the "
        "same "
        "plan tells nothing",
        why_not_bits(same));
    return result;
  }
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
  return compare_spike_by_losses(same, finding, steps_asked);
}

Reproduction compare_spike_by_losses(const ReplayFinished& same, const SpikeFinding& finding,
                                     int64_t steps_asked) {
  const SpikeComparison seen = compare_spike(same, finding, steps_asked);
  Reproduction result;
  result.reproduces =
      finding.kind == "non_finite" ? seen.non_finite : seen.spikes || seen.non_finite;
  result.sentence =
      fmt::format("Compared by losses, not bits ({}): a replay under the same plan {}",
                  why_not_bits(same), result.reproduces ? "shows the same" : "does not show it");
  return result;
}

namespace {

constexpr int64_t kBeforeMin = 8;  // steps that say where a replay's own losses were
constexpr int64_t kBeforeMax = 32;

// What the replay's loss was before it came near the spike; nothing when it had hardly begun.
std::optional<double> own_level(const ReplayFinished& replay, int64_t near_step) {
  std::vector<double> before;
  const size_t count = std::min(replay.steps.size(), replay.losses.size());
  for (size_t i = 0; i < count; ++i) {
    const bool counts = replay.steps[i] < near_step && replay.steps[i] >= near_step - kBeforeMax;
    if (counts && std::isfinite(replay.losses[i])) before.push_back(replay.losses[i]);
  }
  if (static_cast<int64_t>(before.size()) < kBeforeMin) return std::nullopt;
  const auto middle = before.begin() + static_cast<std::ptrdiff_t>(before.size() / 2);
  std::nth_element(before.begin(), middle, before.end());
  return *middle;
}

}  // namespace

SpikeComparison compare_spike(const ReplayFinished& replay, const SpikeFinding& finding,
                              int64_t steps_asked, int64_t around) {
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
    if (step <= finding.step + around && step >= finding.step - kStepsAroundSpike - around)
      highest = std::max(highest, loss);
  }
  if (finding.threshold && highest > *finding.threshold) result.spikes = true;
  if (finding.kind == "spike" && finding.expected != 0) {
    const double rise = finding.loss - finding.expected;
    const auto own =
        around > 0 ? own_level(replay, finding.step - kStepsAroundSpike - around) : std::nullopt;
    const double level = std::min(finding.expected, own.value_or(finding.expected));
    result.spikes |= highest - level >= kSpikeShare * rise;
  }
  return result;
}

double fisher_p(int64_t hits_a, int64_t a, int64_t hits_b, int64_t b) {
  const auto log_choose = [](int64_t n, int64_t k) {
    const auto gamma = [](int64_t m) { return std::lgamma(static_cast<double>(m) + 1); };
    return gamma(n) - gamma(k) - gamma(n - k);
  };
  const int64_t hits = hits_a + hits_b;
  double p = 0;
  for (int64_t k = hits_a; k <= std::min(a, hits); ++k) {
    if (hits - k > b) continue;
    p += std::exp(log_choose(a, k) + log_choose(b, hits - k) - log_choose(a + b, hits));
  }
  return std::min(p, 1.0);
}

double rescue_limit(double d_percent, double tolerance_percent) {
  if (!std::isfinite(d_percent)) return tolerance_percent;
  const double share = std::clamp(d_percent / 10, tolerance_percent, 1.5 * tolerance_percent);
  return std::min(share, d_percent / 2);
}

std::optional<bool> rescue_recovers(const RescueLeft& left, double limit_percent) {
  constexpr double kCertainly = 3;  // standard errors of one replay
  if (left.mean_percent <= limit_percent) return true;
  if (left.replays > 1) return left.mean_percent <= limit_percent + left.error_percent;
  // Chance alone may have put it there.
  if (left.mean_percent <= limit_percent + kCertainly * left.error_percent) return std::nullopt;
  return false;
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

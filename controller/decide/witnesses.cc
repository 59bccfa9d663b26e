#include "controller/decide/witnesses.h"

#include <algorithm>
#include <cmath>

#include "controller/decide/agreement.h"
#include "controller/decide/measurement.h"
#include "controller/decide/verifier_records.h"

namespace gnomon::decide {
namespace {

constexpr double kHonestDeviations = 4;   // of D, that honest replays of one window may part by
constexpr double kUnknown = 3;            // ceilings, while it is not known what D's deviation is
constexpr double kReportsThatName = 0.6;  // per cent: six deviations of healthy windows

}  // namespace

double noise_between(const Core& core) {
  const double rms = std::sqrt(core.s.watch.instrument.mean_square);
  return std::max(core.policy.detector.tolerance_percent,
                  core.policy.instrument.ratio * std::sqrt(2.0) * rms);
}

double noise_that_names(const Core& core) {
  const GapScale& scale = core.s.watch.gap.scale;
  if (scale.freedom < kScaleFreedom)
    return std::max(noise_between(core), kUnknown * core.policy.detector.ceiling_percent);
  double deviation = std::sqrt(scale.variance);
  if (const double most = scale_most(core); most > 0) deviation = std::min(deviation, most);
  return std::max(noise_between(core), kHonestDeviations * std::sqrt(2.0) * deviation);
}

Witness witness_of(const ReplayFinished& replay) {
  Witness witness;
  witness.verifier = replay.verifier;
  witness.on_trainer = replay.on_trainer;
  if (replay.replay_end_loss_bf16) witness.measured = measure_shadow(replay);
  witness.end_hash = replay.end_hash;
  witness.fingerprint = replay.fingerprint;
  witness.fingerprint_equal = replay.fingerprint_equal;
  witness.reports_percent = reports_over(replay);
  if (replay.first_other_batch_step) witness.other_batches = replay.other_batches;
  if (replay.first_other_batch_step && witness.other_batches.empty())
    witness.other_batches.push_back({*replay.first_other_batch_step, "", ""});
  return witness;
}

std::optional<std::pair<size_t, size_t>> agreeing(const WindowState& window, double noise) {
  const std::vector<Witness>& all = window.witnesses;
  const auto agree = [&](size_t i, size_t j) {
    return compare_witnesses(all[i], all[j], noise).agrees;
  };
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = i + 1; j < all.size(); ++j) {
      bool clear = agree(i, j);
      for (size_t k = 0; k < all.size() && clear; ++k) clear = agree(i, k) == agree(j, k);
      if (clear) return {{i, j}};
    }
  }
  return std::nullopt;
}

bool reports_name(const std::optional<double>& reports_percent, double d_percent) {
  return borne_out(reports_percent, d_percent) && *reports_percent >= kReportsThatName;
}

std::optional<size_t> reported(const Core& core, const WindowState& window) {
  const std::vector<Witness>& all = window.witnesses;
  const auto d = [&](size_t i) { return all[i].measured.d_percent.value_or(0); };
  size_t highest = 0;
  for (size_t i = 1; i < all.size(); ++i) {
    if (d(i) > d(highest)) highest = i;
  }
  if (!(d(highest) > core.policy.detector.ceiling_percent) || !std::isfinite(d(highest)))
    return std::nullopt;
  if (!reports_name(all[highest].reports_percent, d(highest))) return std::nullopt;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i == highest) continue;
    // Reports that lie nearer to the other say nothing against it. Each replay's own losses count:
    // where they bear each source out, one of them lies throughout, and nobody knows which.
    const double middle = (d(i) + d(highest)) / 2;
    const auto nearer = [&](size_t of) { return all[of].reports_percent.value_or(0) >= middle; };
    if (d(i) > d(highest) / 2 || !nearer(i) || !nearer(highest)) return std::nullopt;
  }
  return highest;
}

std::optional<size_t> plausible_of_two(const Core& core, const WindowState& window) {
  if (window.witnesses.size() != 2) return std::nullopt;
  const bool first = implausible(core.s, window.witnesses[0]).empty();
  const bool second = implausible(core.s, window.witnesses[1]).empty();
  return first == second ? std::nullopt : std::optional<size_t>(first ? 0 : 1);
}

}  // namespace gnomon::decide

#include "controller/decide/kept_damage.h"

#include <algorithm>
#include <cmath>

#include "controller/decide/stability.h"
#include "controller/decide/verifier_records.h"

namespace gnomon::decide {
namespace {

constexpr int64_t kWindowsMin = 3;
constexpr double kBeyondChance = 3;  // standard errors
constexpr double kHealed = 8;        // times half of the rise: most of it has healed
constexpr size_t kSharesMax = 16;

void count(Core& core, const WindowState& window, double d_percent) {
  Kept& kept = core.s.watch.stability.kept;
  const int64_t since = std::max(kept.end_step, core.s.watch.stability.lowest_step);
  if (window.end_step() <= since) return;
  const double weight =
      static_cast<double>(window.end_step() - since) / static_cast<double>(window.steps);
  kept.end_step = window.end_step();
  auto share = std::ranges::find(kept.shares, window.verifier, &KeptShare::verifier);
  if (share == kept.shares.end()) {
    if (kept.shares.size() >= kSharesMax) return;
    kept.shares.push_back({window.verifier});
    share = std::prev(kept.shares.end());
  }
  share->windows += 1;
  share->sum += weight * d_percent;
  share->weight += weight;
  share->squares += weight * weight;
}

KeptShare all_of(const Kept& kept) {
  KeptShare all;
  for (const KeptShare& share : kept.shares) {
    all.windows += share.windows;
    all.sum += share.sum;
    all.weight += share.weight;
    all.squares += share.squares;
  }
  return all;
}

// Deviation of one window's D, per cent, as it was when BF16 was at its lowest: what is looked for
// would make it larger.
double deviation(const Core& core) {
  const GapScale& scale = core.s.watch.gap.scale;
  const double known = core.s.watch.stability.kept.deviation;
  if (known > 0) return known;
  return scale.freedom >= kScaleFreedom ? std::sqrt(scale.variance)
                                        : core.policy.detector.prior_scale_percent;
}

// Without any one verifier's windows, those of others, carried on over all steps, explain half as
// much at least: they may be later ones, where the same damage is a smaller share of a higher loss.
bool borne_out_by_others(const Kept& kept, const KeptShare& all, double half_percent) {
  return std::ranges::all_of(kept.shares, [&](const KeptShare& share) {
    const double others = all.weight - share.weight;
    return others <= 0 || (all.sum - share.sum) / others * all.weight >= half_percent / 2;
  });
}

double growth(double log_percent) { return 100 * std::expm1(log_percent / 100); }

}  // namespace

bool explains_rise(const Core& core, double over_percent) {
  const Kept& kept = core.s.watch.stability.kept;
  const KeptShare all = all_of(kept);
  const double half = 100 * std::log1p(over_percent / 100) / 2;
  return over_percent > kOverPercent && all.windows >= kWindowsMin && all.sum >= half &&
         all.sum <= kHealed * half &&
         all.sum > kBeyondChance * deviation(core) * std::sqrt(all.squares) &&
         borne_out_by_others(kept, all, half);
}

GapVerdict observe_kept(Core& core, const WindowState& window) {
  GapVerdict verdict;
  const Stability& stability = core.s.watch.stability;
  const auto& reference = window.measured->reference;
  const double d = window.measured->d_percent.value_or(NAN);
  if (window.kind != "shadow" || stability.lowest <= 0 || !reference || !std::isfinite(d))
    return verdict;
  count(core, window, d);
  const double over = 100 * (*reference - stability.lowest) / stability.lowest;
  if (!explains_rise(core, over)) return verdict;
  verdict.alarm = true;
  verdict.rule = kKeptRule;
  verdict.statistic = growth(all_of(stability.kept).sum);
  verdict.threshold = growth(100 * std::log1p(over / 100) / 2);
  core.s.watch.stability.kept.shares.clear();
  return verdict;
}

double rise_of(double threshold_percent) {
  const double factor = 1 + threshold_percent / 100;
  return 100 * (factor * factor - 1);
}

void restart_kept(Core& core, int64_t step) {
  Kept& kept = core.s.watch.stability.kept;
  kept = {};
  kept.deviation = deviation(core);
  kept.end_step = step;
}

void forget_kept(Stability& stability, const std::string& verifier) {
  std::erase_if(stability.kept.shares,
                [&](const KeptShare& share) { return share.verifier == verifier; });
}

}  // namespace gnomon::decide

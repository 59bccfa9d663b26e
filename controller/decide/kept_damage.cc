#include "controller/decide/kept_damage.h"

#include <algorithm>

#include "controller/decide/stability.h"

namespace gnomon::decide {
namespace {

constexpr int64_t kWindowsMin = 3;
constexpr double kBeyondChance = 3;  // standard errors

}  // namespace

std::optional<KeptDamage> kept_damage(const State& s, int64_t since_step) {
  const auto later = std::ranges::count_if(
      s.watch.seen, [&](const EvidenceWindow& seen) { return seen.start_step >= since_step; });
  const GapLevel level = newest_level(s.watch.gap, later);
  const auto known = static_cast<size_t>(level.windows);
  if (level.windows < kWindowsMin || s.watch.seen.size() < known) return std::nullopt;
  const EvidenceWindow& first = s.watch.seen[s.watch.seen.size() - known];
  const EvidenceWindow& last = s.watch.seen.back();
  const auto length = static_cast<double>(last.end_step - last.start_step);
  if (length <= 0) return std::nullopt;
  const double times = static_cast<double>(last.end_step - first.start_step) / length;
  return KeptDamage{level.mean_percent * times, level.error_percent * times, first.start_step};
}

GapVerdict judge_kept(const Core& core, const WindowState& window) {
  const double lowest = core.s.watch.stability.lowest;
  const auto& reference = window.measured->reference;
  GapVerdict verdict;
  if (window.kind != "shadow" || lowest <= 0 || !reference) return verdict;
  const double over = 100 * (*reference - lowest) / lowest;
  const auto kept = kept_damage(core.s, core.s.watch.stability.lowest_step);
  if (over <= kOverPercent || !kept) return verdict;
  verdict.statistic = kept->percent;
  verdict.threshold = over / 2;
  verdict.alarm = kept->percent > kBeyondChance * kept->error_percent && kept->percent >= over / 2;
  if (verdict.alarm) verdict.rule = kKeptRule;
  return verdict;
}

}  // namespace gnomon::decide

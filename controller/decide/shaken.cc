#include "controller/decide/shaken.h"

#include <array>
#include <numeric>

#include "controller/decide/gap_settings.h"

namespace gnomon::decide {
namespace {

constexpr std::array<double, 3> kStakes = {0.25, 0.5, 0.9};  // of what each bet has

}  // namespace

std::optional<GapVerdict> observe_shaken(Core& core, const WindowState& window) {
  ShakenState& state = core.s.watch.shaken;
  if (window.kind != "shadow" || !window.measured || !window.measured->d_percent)
    return std::nullopt;
  if (state.plan_version != window.plan_version || state.sums.size() != kStakes.size()) {
    state.plan_version = window.plan_version;
    state.sums.assign(kStakes.size(), 0);
  }
  const GapSettings settings = gap_settings(core.policy);
  const double limit = gap_null_percent(core.s.watch.gap.scale, settings);
  const double sign = *window.measured->d_percent > limit ? 1 : -1;
  for (size_t i = 0; i < kStakes.size(); ++i)
    state.sums[i] = (state.sums[i] + 1) * (1 + sign * kStakes[i]);
  GapVerdict verdict;
  verdict.statistic = std::accumulate(state.sums.begin(), state.sums.end(), 0.0) / kStakes.size();
  verdict.threshold = gap_thresholds(settings).alarm;
  verdict.null_percent = limit;
  verdict.rule = kSignsRule;
  verdict.alarm = verdict.statistic >= verdict.threshold;
  if (!verdict.alarm) return std::nullopt;
  state.sums.clear();
  return verdict;
}

}  // namespace gnomon::decide

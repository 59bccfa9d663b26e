#include "controller/decide/offset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/printable.h"
#include "controller/decide/evidence_windows.h"
#include "controller/decide/gap_settings.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

constexpr double kLevelWeight = 0.03;  // of a new window in the level

double percent_of(const Measurement& m) { return 100 * *m.offset / *m.reference; }

// The longer ago the level's windows are, the less they tell. One window moves the level by no more
// than is allowed.
void follow(Watch& watch, double offset, double step, double allowed) {
  watch.offset_windows += 1;
  const double since = 1 - (watch.offset_level_step + kYoungSteps) / (step + kYoungSteps);
  const double weight =
      std::max({kLevelWeight, 1.0 / static_cast<double>(watch.offset_windows), since});
  watch.offset_level += weight * std::clamp(offset - watch.offset_level, -allowed, allowed);
  watch.offset_level_step += weight * (step - watch.offset_level_step);
}

}  // namespace

GapVerdict observe_offset(Core& core, const WindowState& window) {
  Watch& watch = core.s.watch;
  const Measurement& m = *window.measured;
  const std::vector<std::string>& disputed = watch.instrument.offset_disputed;
  if (!m.offset || std::ranges::count(disputed, window.verifier) > 0) return {};
  if (watch.offset.scale.plan_version != window.plan_version) {
    watch.offset_windows = 0;
    watch.offset_level = 0;
  }
  const double offset = percent_of(m);
  const double moved = offset - watch.offset_level;
  const double allowed = offset_allowed(watch, core.policy, window.start.step);
  const double most = core.policy.detector.ceiling_percent + allowed;
  // The first one has no level, and is one.
  const double by = watch.offset_windows == 0 ? 0 : moved;
  const GapSettings settings = offset_settings(core.policy, allowed);
  GapSample sample = gap_sample(core, window);
  sample.floor_percent = sample.most_percent = 0;
  sample.d_percent = by;
  GapVerdict up = observe_gap(watch.offset, sample, settings);
  record_evidence_window(watch.offset, watch.offset_seen, window, up.statistic);
  sample.d_percent = -by;
  GapVerdict down = observe_gap(watch.offset_down, sample, settings);
  record_evidence_window(watch.offset_down, watch.offset_down_seen, window, down.statistic);
  follow(watch, offset, static_cast<double>(window.start.step), allowed);
  down.x = -std::abs(down.x);
  GapVerdict verdict = down.alarm ? down : up;
  if (!(std::abs(moved) > most)) return verdict;
  verdict.alarm = true;
  verdict.rule = "ceiling";
  verdict.statistic = std::abs(moved);
  verdict.threshold = most;
  verdict.x = std::copysign(verdict.x, moved);
  return verdict;
}

std::string offset_words(const WindowState& window, const GapVerdict& verdict) {
  const std::string rule =
      verdict.rule == "ceiling"
          ? fmt::format("{} from its level, one window may not be over {}",
                        percent(verdict.statistic), percent(verdict.threshold))
          : fmt::format("evidence {}, where {} is an alarm", plain_number(verdict.statistic),
                        plain_number(verdict.threshold));
  return fmt::format(
      "{}: evaluating in FP8 costs {:.4f} nats at equal weights, {} than it did ({}); the windows "
      "show no damage to the weights{}",
      window_name(window), *window.measured->offset, verdict.x < 0 ? "less" : "more", rule,
      verdict.x < 0 ? ", but they may have adapted to what FP8 does wrong." : ".");
}

void restart_offset(State& state, const Measurement& newest) {
  restart_gap(state.watch.offset);
  restart_gap(state.watch.offset_down);
  state.watch.offset_level_before = state.watch.offset_level;
  state.watch.offset_level = percent_of(newest);
}

}  // namespace gnomon::decide

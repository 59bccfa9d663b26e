#include "controller/decide/recovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "controller/decide/gap_settings.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

constexpr int64_t kRecoveryWindows = 5;  // then the mean decides
constexpr int64_t kHarmfulWindows = 2;   // the least that can show that an action was not enough,
constexpr double kHarmfulErrors = 2;     // so many standard errors over what is tolerated

bool follows(const Recovery& recovery, int64_t attempt, int64_t plan_version) {
  if (recovery.plan_version != plan_version) return false;
  return !recovery.by_rollback || (recovery.attempt > 0 && attempt >= recovery.attempt);
}

// The level of the windows that wait.
struct Tally {
  std::vector<int64_t> windows;  // ids, oldest first
  int64_t worst = 0;             // with the largest D
  double worst_percent = -HUGE_VAL;
  double mean_percent = 0;
  double error_percent = 0;
  int64_t start_step = 0;
  int64_t end_step = 0;
};

Tally tally_of(const Core& core) {
  Tally tally;
  double deviation = 0;
  for (const WindowState& window : core.s.windows) {
    if (!window.unsettled) continue;
    const double d = *window.measured->d_percent;
    if (tally.windows.empty()) tally.start_step = window.start.step;
    tally.windows.push_back(window.id);
    tally.end_step = window.end_step();
    tally.mean_percent += d;
    if (d > tally.worst_percent) tally.worst = window.id;
    tally.worst_percent = std::max(tally.worst_percent, d);
    deviation = gap_scale_percent(core.s.watch.gap.scale, gap_sample(core, window),
                                  gap_settings(core.policy));
  }
  const auto count = static_cast<double>(tally.windows.size());
  tally.mean_percent /= count;
  tally.error_percent = deviation / std::sqrt(count);
  return tally;
}

// The rung is held by `containment` unless the action was a rollback under the same plan.
void record_recovered(Core& core, int64_t window_id, const std::string& proof,
                      json::object evidence) {
  State& s = core.s;
  evidence["rung"] = s.recovery->rung.text();
  RecordDecision& decision = core.record(
      "recovered",
      fmt::format("Steps {}–{} after the action are quiet ({}).",
                  evidence.at("start_step").as_int64(), evidence.at("end_step").as_int64(), proof),
      evidence);
  decision.window = window_id;
  if (s.containment) {
    decision.sites = s.containment->sites;
    s.containment->recovered = true;
  }
  s.recovery.reset();
}

RecoveryOutcome recovered(Core& core, const Tally& tally) {
  const size_t count = tally.windows.size();
  const std::string level = fmt::format("D = {}", percent(tally.mean_percent));
  record_recovered(core, tally.windows.back(),
                   count == 1 ? level
                              : fmt::format("{} ± {} over {} windows", level,
                                            percent(tally.error_percent), count),
                   {{"start_step", tally.start_step},
                    {"end_step", tally.end_step},
                    {"d_percent", number(tally.mean_percent)},
                    {"error_percent", number(tally.error_percent)},
                    {"windows", count},
                    {"tolerated_percent", number(tolerated_percent(core))}});
  return {tally.windows, 0};
}

// The window that shows the most is looked into.
RecoveryOutcome not_enough(Core& core, const Tally& tally) {
  WindowState& window = *find_window(core.s, tally.worst);
  window.unsettled = false;
  GapVerdict verdict = window.judged.value_or(GapVerdict{});
  verdict.alarm = true;
  verdict.rule = kRecoveryRule;
  verdict.statistic = tally.mean_percent;
  verdict.threshold = tolerated_percent(core);
  verdict.null_percent = verdict.threshold;
  window.judged = verdict;
  window.level_percent = tally.mean_percent;
  close_unsettled(core, "alarm");
  return {{}, tally.worst};
}

template <class Chosen>
void close_unsettled(Core& core, WindowStatus outcome, const std::string& why,
                     const Chosen& chosen) {
  std::vector<int64_t> waiting;
  for (const WindowState& window : core.s.windows) {
    if (window.unsettled && chosen(window)) waiting.push_back(window.id);
  }
  for (int64_t id : waiting) {
    WindowState& window = *find_window(core.s, id);
    window.unsettled = false;
    window.outcome = outcome;
    window.why = why;
    finish_window(core, id);
  }
}

}  // namespace

bool awaits_recovery(const State& s, const WindowState& window) {
  return s.recovery && window.kind == "shadow" && window.end_step() > s.recovery->harm_step &&
         follows(*s.recovery, window.attempt, window.plan_version);
}

RecoveryOutcome weigh_recovery(Core& core, int64_t id) {
  find_window(core.s, id)->unsettled = true;
  const Tally tally = tally_of(core);
  const auto count = static_cast<int64_t>(tally.windows.size());
  const double limit = tolerated_percent(core);
  const bool enough = count >= kRecoveryWindows;
  const double mean = tally.mean_percent;
  if (mean + tally.error_percent <= limit || (enough && mean <= limit))
    return recovered(core, tally);
  const bool harmful =
      count >= kHarmfulWindows && mean - kHarmfulErrors * tally.error_percent > limit;
  if (enough || harmful) return not_enough(core, tally);
  core.explain(fmt::format(
      "{}: D = {}; the windows since the action lose {} ± {} and {} is tolerated: "
      "whether it worked is not known yet.",
      window_name(*find_window(core.s, id)), percent(*find_window(core.s, id)->measured->d_percent),
      percent(mean), percent(tally.error_percent), percent(limit)));
  return {};
}

void recover_in_bf16(Core& core, int64_t attempt, int64_t plan_version, int64_t start_step,
                     int64_t end_step) {
  const State& s = core.s;
  if (!s.recovery || !follows(*s.recovery, attempt, plan_version)) return;
  record_recovered(core, 0, "every step in BF16",
                   {{"start_step", start_step}, {"end_step", end_step}});
}

void close_unsettled(Core& core, WindowStatus outcome) {
  close_unsettled(core, outcome, "", [](const WindowState&) { return true; });
}

void release_unsettled(Core& core) {
  close_unsettled(core, "skipped", "its action is not judged any more",
                  [&](const WindowState& window) { return !awaits_recovery(core.s, window); });
}

}  // namespace gnomon::decide

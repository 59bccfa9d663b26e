#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "controller/decide/core.h"
#include "controller/decide/plans.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

json::object gap_evidence(const Core& core, const WindowState& window) {
  const Measurement& m = *window.measured;
  const DetectorState& learned = core.s.detector;
  return {{"window", window.id},
          {"start_step", window.start.step},
          {"end_step", window.end_step()},
          {"gap", m.gap ? number(*m.gap) : json::value(nullptr)},
          {"offset", m.offset ? number(*m.offset) : json::value(nullptr)},
          {"d_percent", number(*m.d_percent)},
          {"bf16_loss", number(*m.reference)},
          {"tolerance_percent", core.policy.detector.tolerance_percent},
          {"quiet_windows", learned.quiet_windows},
          {"quiet_mean_percent", number(learned.mean_d)},
          {"quiet_deviation_percent", number(learned.deviation())}};
}

// True when a spike that BF16 shares lies in the window: what follows it diverges by chance.
std::optional<int64_t> generic_spike_in(const State& s, const WindowState& window) {
  for (int64_t step : s.generic_spike_steps) {
    if (step > window.start.step && step <= window.end_step()) return step;
  }
  return std::nullopt;
}

void alarm_without_case(Core& core, const WindowState& window) {
  const std::string why = core.s.ended ? "the run has ended"
                          : window.start.step < core.s.watch_from
                              ? "it began before a person let the run go on"
                              : "the fault has already been reported";
  core.say(fmt::format("{}: D = {}, over the tolerance; {}.", window_name(window),
                       percent(*window.measured->d_percent), why));
  close_window(core, window.id, "alarm");
}

std::string alarm_words(const Core& core, const WindowState& window) {
  const Measurement& m = *window.measured;
  const std::string what =
      m.gap ? fmt::format("the FP8 run's held-out loss is {} above the BF16 replay's",
                          percent(*m.d_percent))
            : std::string("the FP8 run's held-out loss is not finite, the BF16 replay's is");
  return fmt::format("{}: {}; tolerance {}", window_name(window), what,
                     percent(core.policy.detector.tolerance_percent));
}

void muted_alarm(Core& core, const WindowState& window, const std::string& why) {
  json::object evidence = gap_evidence(core, window);
  evidence["muted"] = why;
  RecordDecision& decision =
      core.record("alarm", fmt::format("{}. Nothing follows: {}.", alarm_words(core, window), why),
                  std::move(evidence));
  decision.window = window.id;
  close_window(core, window.id, "alarm");
}

void judge_alarm(Core& core, WindowState& window) {
  State& s = core.s;
  const Measurement& m = *window.measured;
  if (const auto spike = generic_spike_in(s, window)) {
    RecordDecision& decision =
        core.record("verdict",
                    fmt::format("{} is not counted (D = {}): step {} in it spiked in BF16 too, and "
                                "what follows a spike differs "
                                "by chance.",
                                window_name(window), percent(*m.d_percent), *spike),
                    gap_evidence(core, window));
    decision.verdict = "generic_spike";
    decision.window = window.id;
    close_window(core, window.id, "skipped");
    return;
  }
  if (const std::string muted = core.muted(); !muted.empty()) {
    return muted_alarm(core, window, muted);
  }
  if (s.investigation || s.directive) {
    window.deferred = true;
    core.say(fmt::format("{} is over the tolerance (D = {}) and waits for the open case.",
                         window_name(window), percent(*m.d_percent)));
    return;
  }
  if (s.ended || s.fault_reported || core.held() || window.start.step < s.watch_from) {
    return alarm_without_case(core, window);
  }
  RecordDecision& decision =
      core.record("alarm", alarm_words(core, window) + ".", gap_evidence(core, window));
  decision.window = window.id;
  open_gap_case(core, window);
}

void judge(Core& core, WindowState& window) {
  State& s = core.s;
  const bool burn_in = window.start.step < core.policy.detector.burn_in_steps &&
                       std::isfinite(*window.measured->d_percent);
  if (!burn_in) {
    if (gap_alarm(s.detector, *window.measured, core.policy.detector))
      return judge_alarm(core, window);
    learn_quiet(s.detector, *window.measured);
  }
  s.fault_reported = false;
  const WindowState quiet = window;
  const KnownCheckpoint end{quiet.attempt, quiet.end_step(), quiet.end_uri, quiet.plan_version};
  if (s.quiet_ends.size() >= kQuietEndsMax) s.quiet_ends.erase(s.quiet_ends.begin());
  s.quiet_ends.push_back({quiet.start.step, end});
  core.say(fmt::format("{} is {} (D = {}).", window_name(quiet),
                       burn_in ? "in the burn-in and not judged" : "quiet",
                       percent(*quiet.measured->d_percent)));
  if (!quiet.probe_pending) close_window(core, quiet.id, "quiet");
  settle_verified(core);
  note_quiet(core, quiet.id, quiet.attempt, quiet.plan_version, quiet.start.step, quiet.end_step(),
             *quiet.measured);
}

}  // namespace

void take_shadow(Core& core, int64_t window_id, const ReplayFinished& replay) {
  WindowState& window = *find_window(core.s, window_id);
  window.shadow_pending = false;
  Measurement measured = measure_shadow(replay);
  if (!measured.unusable.empty()) {
    const std::string sentence =
        fmt::format("{} cannot be judged: {}.", window_name(window), measured.unusable);
    if (core.s.spikes.non_finite_reported) {
      core.say(sentence);  // of a run that is not finite any more, which was said when it happened
    } else {
      core.record("instrument", sentence, {{"window", window.id}, {"why", measured.unusable}})
          .window = window_id;
    }
    close_window(core, window_id, "failed");
    settle_verified(core);
    return;
  }
  window.measured = std::move(measured);
  judge(core, window);
}

void shadow_failed(Core& core, int64_t window_id, const std::string& why) {
  core.say(fmt::format("{} could not be verified: {}.",
                       window_name(*find_window(core.s, window_id)), why));
  close_window(core, window_id, "failed");
  settle_verified(core);
}

void judge_deferred(Core& core) {
  State& s = core.s;
  while ((!s.investigation && !s.directive) || !core.muted().empty()) {
    const auto found = std::find_if(s.windows.begin(), s.windows.end(),
                                    [](const WindowState& window) { return window.deferred; });
    if (found == s.windows.end()) return;
    found->deferred = false;
    judge_alarm(core, *found);
  }
}

}  // namespace gnomon::decide

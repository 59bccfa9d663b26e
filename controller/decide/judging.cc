#include "controller/decide/judging.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/printable.h"
#include "controller/decide/audits.h"
#include "controller/decide/bases.h"
#include "controller/decide/cadence.h"
#include "controller/decide/case.h"
#include "controller/decide/claims.h"
#include "controller/decide/confirm.h"
#include "controller/decide/costs.h"
#include "controller/decide/evidence_windows.h"
#include "controller/decide/gap_rivals.h"
#include "controller/decide/gap_settings.h"
#include "controller/decide/gap_words.h"
#include "controller/decide/instrument.h"
#include "controller/decide/investigating.h"
#include "controller/decide/kept_damage.h"
#include "controller/decide/measurement.h"
#include "controller/decide/offset.h"
#include "controller/decide/recovery.h"
#include "controller/decide/returning.h"
#include "controller/decide/schedule.h"
#include "controller/decide/shaken.h"
#include "controller/decide/stability.h"
#include "controller/decide/standing.h"
#include "controller/decide/verifier_records.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

constexpr int64_t kDeferredMax = 2;  // alarms that wait for a case; later ones add nothing

double limit_of_window(const Core& core, const WindowState& window) {
  if (window.kind == "long") return long_gap_settings(core.policy, window.steps).ceiling_percent;
  return one_window_limit(core.s.watch.gap, gap_sample(core, window), gap_settings(core.policy));
}

// What the detector made of a window.
struct Judgement {
  GapVerdict gap;
  bool drifted = false;  // the offset has moved
  GapVerdict offset;
};

// A spike that BF16 shares lies in the window: it is measured and is no evidence. That is recorded
// when the gap is one that would have led to something.
void set_aside(Core& core, const WindowState& window, int64_t spike, bool notable) {
  const std::string sentence = fmt::format(
      "{} is not counted (D = {}): step {} in it spiked in BF16 too, and what follows a spike "
      "differs by chance.",
      window_name(window), percent(*window.measured->d_percent), spike);
  if (notable) {
    RecordDecision& decision = core.record(
        "verdict", sentence, gap_evidence(window, window.judged.value_or(GapVerdict{})));
    decision.verdict = "generic_spike";
    decision.window = window.id;
  } else {
    core.explain(sentence);
  }
  close_window(core, window.id, "skipped", fmt::format("BF16 spiked at step {}, too", spike));
}

void alarm_without_case(Core& core, WindowState& window) {
  const std::string why = core.s.ended                     ? "the run has ended"
                          : core.s.watch.instrument.broken ? "the instrument is broken"
                          : window.start.step < core.s.watch_from
                              ? "it began before a person let the run go on"
                              : "the fault has already been reported";
  core.explain(fmt::format("{}: D = {}, an alarm ({}); {}.", window_name(window),
                           percent(*window.measured->d_percent), window.judged->rule, why));
  window.outcome = "alarm";
  finish_window(core, window.id);
}

void muted_alarm(Core& core, const WindowState& window, const std::string& why) {
  json::object evidence = gap_evidence(window, *window.judged);
  evidence["muted"] = why;
  RecordDecision& decision = core.record(
      "alarm", fmt::format("{}. Nothing follows: {}.", alarm_words(window), why), evidence);
  decision.window = window.id;
  note_harm(core.s, "alarm");
  close_window(core, window.id, "alarm");
}

void judge_alarm(Core& core, WindowState& window) {
  State& s = core.s;
  const Measurement& m = *window.measured;
  const bool of_signs = window.judged->rule == kSignsRule;
  if (const auto spike = of_signs ? std::nullopt : generic_spike_in(s, window)) {
    return set_aside(core, window, *spike, true);
  }
  if (const std::string muted = core.muted(); !muted.empty()) {
    return muted_alarm(core, window, muted);
  }
  if (s.investigation || s.directive) {
    const auto waiting = std::ranges::count_if(s.windows, &WindowState::deferred);
    if (waiting >= kDeferredMax) {
      core.explain(fmt::format("{} is an alarm (D = {}), as others that wait already.",
                               window_name(window), percent(*m.d_percent)));
      window.outcome = "alarm";
      return finish_window(core, window.id);
    }
    window.deferred = true;
    core.explain(fmt::format("{} is an alarm (D = {}) and waits for the open case.",
                             window_name(window), percent(*m.d_percent)));
    return;
  }
  if (s.ended || s.fault_reported || core.held() || s.watch.instrument.broken ||
      window.start.step < s.watch_from) {
    return alarm_without_case(core, window);
  }
  RecordDecision& decision =
      core.record("alarm", alarm_words(window) + ".", gap_evidence(window, *window.judged));
  decision.window = window.id;
  // What the action before has led to is answered with it.
  const int64_t id = window.id;
  close_unsettled(core, "alarm");
  open_gap_case(core, *find_window(s, id));
}

// The quantiser has drifted when equal weights evaluate otherwise in FP8 than they did, and no
// damage is seen. True when a case was made of it, which ends the window.
bool judge_drift(Core& core, const WindowState& window, const GapVerdict& verdict) {
  State& s = core.s;
  restart_offset(s, *window.measured);
  if (!core.muted().empty() || s.investigation || s.directive || s.ended || core.held()) {
    core.explain("The offset has moved; nothing follows now.");
    return false;
  }
  RecordDecision& decision =
      core.record("alarm", offset_words(window, verdict), gap_evidence(window, verdict));
  decision.window = window.id;
  open_drift_case(core, window);
  return true;
}

Judgement observe(Core& core, const WindowState& window) {
  State& s = core.s;
  const GapSample sample = gap_sample(core, window);
  Judgement result;
  if (window.kind == "long") {
    result.gap =
        observe_gap(s.watch.long_gap, sample, long_gap_settings(core.policy, window.steps));
    record_evidence_window(s.watch.long_gap, s.watch.long_seen, window,
                           gap_total(s.watch.long_gap, gap_settings(core.policy)));
    return result;
  }
  result.gap = observe_gap(s.watch.gap, sample, gap_settings(core.policy));
  record_evidence_window(s.watch.gap, s.watch.seen, window,
                         gap_total(s.watch.gap, gap_settings(core.policy)));
  const bool bursts = core.policy.detector.burst && core.policy.detector.kind == "eprocess";
  s.watch.burst_left = bursts ? result.gap.burst_left : 0;
  if (const GapVerdict kept = observe_kept(core, window); kept.alarm && !result.gap.alarm) {
    result.gap.alarm = true;
    result.gap.rule = kept.rule;
    result.gap.statistic = kept.statistic;
    result.gap.threshold = kept.threshold;
  }
  if (result.gap.suspicious) {
    bring_forward(core);
    core.explain(fmt::format("A suspicion (evidence {}): up to {} windows are taken back to back.",
                             plain_number(result.gap.statistic), result.gap.burst_left));
  }
  result.offset = observe_offset(core, window);
  result.drifted = result.offset.alarm && !result.gap.alarm && !result.gap.suspicious;
  return result;
}

bool in_burn_in(const Core& core, const WindowState& window) {
  return window.start.step < core.policy.detector.burn_in_steps &&
         std::isfinite(*window.measured->d_percent);
}

void record_quiet(Core& core, const WindowState& quiet) {
  State& s = core.s;
  s.fault_reported = false;
  clear_harm(s);
  s.trust.other_tokens = false;
  add_quiet_end(core, quiet);
  core.explain(fmt::format("{} is {} (D = {}).", window_name(quiet),
                           in_burn_in(core, quiet) ? "in the burn-in and quiet" : "quiet",
                           percent(*quiet.measured->d_percent)));
}

// Nothing is learned in the burn-in, and one window may show no more than at any time.
Judgement judge_burn_in(const Core& core, const WindowState& window) {
  const GapSettings settings = gap_settings(core.policy);
  const GapScale& scale = core.s.watch.gap.scale;
  Judgement result;
  result.gap.statistic = *window.measured->d_percent;
  result.gap.threshold = settings.ceiling_percent;
  result.gap.scale_percent = gap_scale_percent(scale, gap_sample(core, window), settings);
  result.gap.null_percent = gap_null_percent(scale, settings);
  result.gap.alarm = result.gap.statistic > settings.ceiling_percent;
  if (result.gap.alarm) result.gap.rule = "ceiling";
  return result;
}

void continue_after(Core& core, const WindowState& quiet) {
  finish_window(core, quiet.id);
  settle_verified(core);
  apply_best_cadence(core);
  if (quiet.kind != "long") note_quiet(core, quiet.plan_version);
}

// How many windows an alarm of evidence is about.
int64_t risen_windows(const Core& core, const WindowState& window) {
  if (window.kind == "long") return 1;
  const auto after = evidence_rises_after(core.s, window.id, risen_evidence(core.policy));
  if (!after) return 1;
  const int64_t count = std::ranges::count_if(
      core.s.watch.seen, [&](const EvidenceWindow& seen) { return seen.start_step >= *after; });
  return std::clamp(count, int64_t{1}, kLevelWindows);
}

// The run has taken another plan since: what the window shows was answered by that, and says
// nothing of the plan in force.
void judge_history(Core& core, WindowState& window) {
  const double d = *window.measured->d_percent;
  const bool over = !(d <= limit_of_window(core, window));
  core.explain(fmt::format("{} ran under plan {}, which is not in force any more (D = {}).",
                           window_name(window), window.plan_version, percent(d)));
  if (over) return close_window(core, window.id, "alarm");
  const WindowState quiet = window;
  record_quiet(core, quiet);
  finish_window(core, quiet.id);
}

void pass_quiet(Core& core, int64_t id) {
  const WindowState quiet = *find_window(core.s, id);
  record_quiet(core, quiet);
  continue_after(core, quiet);
}

void act_on(Core& core, const RecoveryOutcome& outcome) {
  for (int64_t id : outcome.quiet) {
    WindowState* window = find_window(core.s, id);
    if (window == nullptr) continue;
    window->unsettled = false;
    pass_quiet(core, id);
  }
  if (outcome.alarm != 0) judge_alarm(core, *find_window(core.s, outcome.alarm));
}

// Many windows that shocks have shaken say together what one does not.
bool signs_alarm(Core& core, WindowState& window) {
  const auto verdict = observe_shaken(core, window);
  if (!verdict) return false;
  window.judged = *verdict;
  window.level_percent = *window.measured->d_percent;
  return true;
}

void judge(Core& core, WindowState& window) {
  State& s = core.s;
  if (window.plan_version != s.plan_version) {
    note_measured(s, window);
    judge_history(core, window);
    return settle_verified(core);
  }
  if (const auto spike = generic_spike_in(s, window)) {
    if (signs_alarm(core, window)) return judge_alarm(core, window);
    const bool over = !(*window.measured->d_percent <= core.policy.detector.ceiling_percent);
    set_aside(core, window, *spike, over);
    return settle_verified(core);
  }
  note_measured(s, window);
  const bool burn_in = in_burn_in(core, window);
  const Judgement judged = burn_in ? judge_burn_in(core, window) : observe(core, window);
  s.watch.windows_judged += 1;
  if (!burn_in || judged.gap.alarm) window.judged = judged.gap;
  if (judged.gap.alarm) {
    const GapState& gap = window.kind == "long" ? s.watch.long_gap : s.watch.gap;
    window.level_percent = of_one_window(judged.gap)
                               ? *window.measured->d_percent
                               : newest_level(gap, risen_windows(core, window)).mean_percent;
    return judge_alarm(core, window);
  }
  if (awaits_recovery(s, window)) return act_on(core, weigh_recovery(core, window.id));
  const WindowState quiet = window;
  record_quiet(core, quiet);
  if (judged.drifted && judge_drift(core, quiet, judged.offset)) return;
  order_audit(core, window);
  continue_after(core, quiet);
}

// Not before a second source has said the same, where one was asked.
void close_or_wait(Core& core, WindowState& window, WindowStatus outcome,
                   const std::string& why = {}) {
  window.outcome = outcome;
  window.why = why;
  if (!window.confirm_pending) close_window(core, window.id, outcome);
  settle_verified(core);
}

// The run took other tokens than the replay: what parts them is not FP8's doing, and the window is
// no evidence. A gap over the ceiling goes the way of every alarm, whose triage finds the tokens
// too and goes back. True when the window is done with.
bool judge_tokens(Core& core, WindowState& window) {
  if (window.witnesses.front().other_batches.empty()) return false;
  const double d = *window.measured->d_percent;
  if (!(d <= core.policy.detector.ceiling_percent)) return false;
  if (signs_alarm(core, window)) {
    judge_alarm(core, window);
    return true;
  }
  if (!window.confirm_pending) record_other_tokens(core, window);
  close_or_wait(core, window, "skipped", "the run took other tokens");
  return true;
}

// A shock that BF16 suffers, too: over the window the held-out loss of the replay itself has risen
// by more than a spike is, and by more than FP8 adds to it. What two runs make of a shock differs
// by chance: the window is no evidence. True when the window is done with.
bool judge_shock(Core& core, WindowState& window, const ReplayFinished& replay) {
  if (!replay.start_loss_bf16 || !replay.replay_end_loss_bf16) return false;
  const double start = *replay.start_loss_bf16;
  const double rise = 100 * (*replay.replay_end_loss_bf16 - start) / start;
  const double d = *window.measured->d_percent;
  if (!(rise > 100 * kSpikeRiseMin) || !(d < rise)) return false;
  if (signs_alarm(core, window)) {
    judge_alarm(core, window);
    return true;
  }
  const std::string sentence = fmt::format(
      "{} is not counted (D = {}): over it the BF16 replay's own held-out loss has risen by {}. "
      "The "
      "learning rate or the data, not FP8; what follows such a shock differs by chance.",
      window_name(window), percent(d), percent(rise));
  if (d <= limit_of_window(core, window)) {
    core.explain(sentence);
  } else {
    RecordDecision& decision = core.record(
        "verdict", sentence,
        {{"window", window.id}, {"bf16_rise_percent", number(rise)}, {"d_percent", number(d)}});
    decision.verdict = "generic_spike";
    decision.window = window.id;
  }
  close_or_wait(core, window, "skipped",
                fmt::format("BF16's held-out loss rose by {}, too", percent(rise)));
  return true;
}

// What was decided meanwhile may have taken the ground from under an alarm that waited: evidence
// that a shared spike or a wrong verifier had given, a gap that was accepted. What its own window
// shows may be enough by itself, and is then what the alarm rests on.
bool still_alarms(const Core& core, WindowState& window) {
  if (!window.judged || !window.measured) return true;
  GapVerdict& verdict = *window.judged;
  if (verdict.rule == kRecoveryRule) return core.s.recovery.has_value();
  if (verdict.rule == kSignsRule) return true;
  const GapSettings settings = gap_settings(core.policy);
  const bool of_many = !of_one_window(verdict);
  if (of_many) {
    if (is_rival(settings.kind)) return true;
    const GapState& gap = window.kind == "long" ? core.s.watch.long_gap : core.s.watch.gap;
    if (gap_total(gap, settings) >= gap_thresholds(settings).alarm) return true;
  }
  const double d = *window.measured->d_percent;
  const double limit = limit_of_window(core, window);
  if (d <= limit) return false;
  if (of_many) {
    const bool jump = window.kind != "long" && d <= settings.ceiling_percent;
    verdict.rule = jump ? "jump" : "ceiling";
    verdict.statistic = window.level_percent = d;
    verdict.threshold = limit;
  }
  return true;
}

}  // namespace

void handle_shadow(Core& core, int64_t window_id, const ReplayFinished& replay) {
  State& s = core.s;
  WindowState& window = *find_window(s, window_id);
  window.shadow_pending = false;
  Measurement measured = measure_shadow(replay);
  if (!measured.unusable.empty()) {
    const std::string sentence =
        fmt::format("{} cannot be judged: {}.", window_name(window), measured.unusable);
    if (s.spikes.non_finite) {
      core.explain(
          sentence);  // of a run that is not finite any more, which was said when it happened
    } else {
      core.record("instrument", sentence, {{"window", window.id}, {"why", measured.unusable}})
          .window = window_id;
    }
    const WindowState failed = window;
    s.standing.unmeasured = measured.unusable;
    window.verifier = replay.verifier;
    const bool diverged = !s.spikes.non_finite && is_diverged(replay, window.steps);
    if (diverged && ask_about_divergence(core, window_id, replay))
      return close_or_wait(core, window, "failed", measured.unusable);
    close_window(core, window_id, "failed", measured.unusable);
    settle_verified(core);
    note_bf16(core, failed, replay);
    const bool missing = end_left_out(replay, failed.steps) ||
                         (replay.replay_end_loss_bf16 && !replay.run_end_loss_bf16);
    return missing ? note_unverified(core) : void();
  }
  s.watch.unverified_windows = 0;
  // What the checkpoint's plan costs, which is not the one that the window ran under.
  if (window.start.plan_version != window.plan_version) {
    measured.offset.reset();
    measured.start_loss_plan.reset();
  }
  window.measured = std::move(measured);
  window.verifier = replay.verifier;
  window.shadow_hash = replay.end_hash;
  window.shadow_fingerprint_equal = replay.fingerprint_equal;
  if (note_shadow(core, window_id, replay)) return;
  const WindowState seen = window;
  const bool set_aside = judge_tokens(core, window) || judge_shock(core, window, replay);
  if (!set_aside) {
    judge(core, window);
    note_scale(core);
    show_window(core, window_id);
  }
  note_bf16(core, seen, replay);
}

void shadow_failed(Core& core, int64_t window_id, const std::string& why) {
  const std::string sentence = fmt::format("{} could not be verified: {}.",
                                           window_name(*find_window(core.s, window_id)), why);
  // The first of those that fail in a row is put on record.
  if (core.s.watch.unverified_windows == 0) {
    core.record("instrument", sentence, {{"window", window_id}, {"why", why}}).window = window_id;
  } else {
    core.explain(sentence);
  }
  core.s.standing.unmeasured = why;
  close_window(core, window_id, "failed", why);
  settle_verified(core);
  note_unverified(core);
}

void judge_deferred(Core& core) {
  State& s = core.s;
  while (!core.case_ended && ((!s.investigation && !s.directive) || !core.muted().empty())) {
    const auto found = std::find_if(s.windows.begin(), s.windows.end(),
                                    [](const WindowState& window) { return window.deferred; });
    if (found == s.windows.end()) return;
    found->deferred = false;
    if (found->plan_version != s.plan_version) {
      judge_history(core, *found);
      settle_verified(core);
    } else if (still_alarms(core, *found)) {
      judge_alarm(core, *found);
    } else {
      core.explain(fmt::format("{} is no alarm any more.", window_name(*found)));
      close_window(core, found->id, "skipped", "it is no alarm any more");
      settle_verified(core);
    }
  }
}

}  // namespace gnomon::decide

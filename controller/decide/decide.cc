#include "controller/decide/decide.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>

#include "controller/decide/attempts.h"
#include "controller/decide/audits.h"
#include "controller/decide/bases.h"
#include "controller/decide/case.h"
#include "controller/decide/confirm.h"
#include "controller/decide/containment.h"
#include "controller/decide/core.h"
#include "controller/decide/costs.h"
#include "controller/decide/directive_answers.h"
#include "controller/decide/directives.h"
#include "controller/decide/health.h"
#include "controller/decide/instrument.h"
#include "controller/decide/investigating.h"
#include "controller/decide/judging.h"
#include "controller/decide/kept_damage.h"
#include "controller/decide/overrides.h"
#include "controller/decide/plans.h"
#include "controller/decide/recovery.h"
#include "controller/decide/returning.h"
#include "controller/decide/schedule.h"
#include "controller/decide/spending.h"
#include "controller/decide/standing.h"
#include "controller/decide/verifier_records.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

constexpr size_t kPlanChangesMax = 64;

// What the trainer has had already is never given a second meaning.
void number_above(State& s, const RunRegisteredEvent& event) {
  s.next_directive = std::max(s.next_directive, event.last_directive + 1);
  s.next_plan_version = std::max(s.next_plan_version, event.newest_plan_version + 1);
}

void handle(Core& core, const RunRegisteredEvent& event) {
  State& s = core.s;
  if (s.registered) {
    if (event.name == s.run.name) {
      // A restart may come with other settings; the model and the base plan stay.
      // Distances that are rounded to it change, though no policy was replaced.
      if (s.run.checkpoint_every != event.checkpoint_every) s.money.spending.asked_every = 0;
      s.run.checkpoint_every = event.checkpoint_every;
      s.run.total_steps = event.total_steps;
      s.run.trainer_replays = event.trainer_replays;
      s.run.tokens_per_step = event.tokens_per_step;
      s.run.trainer_confirms = event.trainer_confirms;
      s.run.capabilities = event.capabilities;
      number_above(s, event);
    }
    return core.explain("The run is registered already.");
  }
  s.registered = true;
  s.run = {event.name,
           event.base_plan,
           event.sites,
           event.layers,
           event.checkpoint_every,
           event.total_steps,
           event.trainer_replays,
           event.tokens_per_step,
           event.trainer_confirms,
           event.capabilities};
  s.plan_version = 1;
  s.wait_windows = core.policy.returning.quiet_windows;
  remember_plan(s, 1, event.base_plan);
  s.inherited = event.last_directive > 0 || event.newest_plan_version > 0;
  number_above(s, event);
}

void handle(Core& core, const AttemptStarted& event) { start_attempt(core, event); }

void handle(Core& core, const StepReported& event) {
  State& s = core.s;
  if (event.attempt != s.attempt.number || event.step <= s.newest_step) {
    return core.explain(
        fmt::format("Step {} of attempt {} is not new.", event.step, event.attempt));
  }
  s.newest_step = event.step;
  s.plan_version = event.plan_version;
  note_plan(core, event.plan_version);
  count_pause(core, false);
  note_steps(s);
  if (s.plan_changes.empty() || s.plan_changes.back().plan_version != event.plan_version) {
    if (s.plan_changes.size() >= kPlanChangesMax) s.plan_changes.erase(s.plan_changes.begin());
    s.plan_changes.push_back({event.step, event.plan_version});
    s.watch.sentinels = {};
    restart_kept(core, event.step);  // what the plan before has added is not this one's doing
    begin_dense(s);
    bring_forward(core);
  }
  count_step(core, event);
  const auto call = observe_signals(s.watch.sentinels, event);
  note_health(core, event);
  const auto finding = observe_step(s.spikes, event, core.policy.detector);
  if (finding) {
    s.watch.sentinels = {};  // the case looks into it
    return suspect_step(core, *finding);
  }
  check_promised_plan(core);
  if (s.spikes.non_finite) return follow_non_finite(core);
  if (event.state_changed.value_or(false)) return note_changed_state(core, event.step);
  if (call) return answer_sentinel(core, *call);
  core.keeps_checkpoints = true;
}

void handle(Core& core, const CheckpointCompleted& event) { handle_checkpoint(core, event); }

std::optional<PendingReplay> answered(State& s, int64_t id) {
  const auto found = std::find_if(s.replays.begin(), s.replays.end(),
                                  [&](const PendingReplay& replay) { return replay.id == id; });
  if (found == s.replays.end()) return std::nullopt;
  PendingReplay replay = std::move(*found);
  s.replays.erase(found);
  return replay;
}

void note_verifier(State& s, const std::string& verifier) {
  if (verifier.empty()) return;
  std::erase(s.trust.verifiers, verifier);
  if (s.trust.verifiers.size() >= kVerifiersMax) s.trust.verifiers.erase(s.trust.verifiers.begin());
  s.trust.verifiers.push_back(verifier);
}

void handle(Core& core, const ReplayFinished& event) {
  State& s = core.s;
  const auto replay = answered(s, event.replay);
  if (!replay) return core.explain(fmt::format("Replay {} is not waited for.", event.replay));
  if (!event.on_trainer) note_verifier(s, event.verifier);
  if (!event.on_trainer && !event.fingerprint_equal) note_exact(s, event.verifier, false);
  count_replay(core, *replay, event);
  note_answered(s);
  if (replay->role != "shadow") s.watch.unverified_windows = 0;
  if (replay->role == "shadow") return handle_shadow(core, replay->window, event);
  if (replay->role == "probe") return handle_probe(core, *replay, event);
  if (replay->role == "instrument") return handle_instrument(core, replay->window, event);
  if (replay->role == "instrument_again")
    return handle_instrument_again(core, replay->window, event);
  if (replay->role == "instrument_elsewhere")
    return handle_instrument_elsewhere(core, replay->window, event);
  if (replay->role == "confirm") return handle_confirm(core, replay->window, event);
  if (replay->role == "audit") return handle_audit(core, replay->window, event);
  handle_case_replay(core, *replay, event);
}

// Nobody has done the replay, and nobody will.
void replay_failed(Core& core, const PendingReplay& replay, const std::string& why) {
  if (replay.role == "shadow") return shadow_failed(core, replay.window, why);
  if (replay.role == "probe") return probe_failed(core, replay, why);
  if (is_of_instrument(replay.role)) return instrument_failed(core, replay.window, why);
  if (replay.role == "confirm") return confirm_failed(core, replay.window, why);
  if (replay.role == "audit") return audit_failed(core, replay.window, why);
  case_replay_failed(core, replay, why);
}

void handle(Core& core, const ReplayFailed& event) {
  const auto replay = answered(core.s, event.replay);
  if (!replay) return core.explain(fmt::format("Replay {} is not waited for.", event.replay));
  replay_failed(core, *replay, event.reason);
}

void handle(Core& core, const DirectiveChanged& event) { directive_changed(core, event); }

// The trainer is gone: what only it could do is not waited for.
void fail_trainers_replays(Core& core) {
  State& s = core.s;
  for (;;) {
    const auto found = std::ranges::find_if(
        s.replays, [](const PendingReplay& replay) { return replay.deadline > 0; });
    if (found == s.replays.end()) return;
    const PendingReplay replay = *found;
    s.replays.erase(found);
    replay_failed(core, replay, "the run has ended");
  }
}

// The run has ended, and every verifier that it knows is in quarantine: nothing more is measured.
void close_unanswerable(Core& core) {
  State& s = core.s;
  if (!s.ended || s.trust.quarantined.empty() || !believed_verifiers(s).empty()) return;
  while (!s.windows.empty())
    close_window(core, s.windows.front().id, "skipped", "no verifier is believed any more");
}

void handle(Core& core, const RunEnded& event) {
  State& s = core.s;
  if (s.ended) return core.explain("The run has ended already.");
  s.ended = true;
  const bool goes_back = s.directive && s.directive->kind == "rollback";
  s.standing.owed_step = goes_back ? s.directive->to_step : -1;
  const bool plan_open = std::ranges::count(s.operator_directives, DirectiveKind("set_plan"),
                                            &PendingDirective::kind) > 0;
  withdraw_all(core, "The run ended first.");
  if (plan_open) operator_plan_failed(core);
  s.restore_plan = false;
  s.recovery.reset();
  s.suspicion.reset();
  if (s.investigation) {
    RecordDecision& decision =
        core.record("verdict",
                    fmt::format("The run ended ({}) at step {} before window {} was explained.",
                                event.outcome, event.step, s.investigation->window),
                    {{"outcome", event.outcome}, {"step", event.step}});
    decision.verdict = "unexplained";
    decision.window = s.investigation->window;
    end_case(core, "alarm");
  }
  std::vector<int64_t> probes;
  for (const WindowState& window : s.windows) {
    if (window.kind == "probe") probes.push_back(window.id);
  }
  for (int64_t id : probes) close_window(core, id, "skipped", "the run has ended");
  fail_trainers_replays(core);
}

void time_out_replays(Core& core) {
  std::vector<PendingReplay> overdue;
  for (const PendingReplay& replay : core.s.replays) {
    if (replay.deadline > 0 && core.now >= replay.deadline) overdue.push_back(replay);
  }
  for (const PendingReplay& replay : overdue) {
    const auto found =
        std::find_if(core.s.replays.begin(), core.s.replays.end(),
                     [&](const PendingReplay& known) { return known.id == replay.id; });
    if (found == core.s.replays.end()) continue;  // its case has ended with the one before
    core.s.replays.erase(found);
    replay_failed(core, replay, "the trainer did not take it");
  }
}

void handle(Core& core, const Tick&) {
  end_overrides(core);
  time_out_directives(core);
  time_out_replays(core);
}

void handle(Core& core, const OperatorOverride& asked) { handle_override(core, asked); }

// Whole numbers are added and multiplied: beyond this nothing that was counted can lie.
constexpr int64_t kNumberMax = 1'000'000'000'000'000;

bool counted(std::initializer_list<int64_t> numbers) {
  return std::all_of(numbers.begin(), numbers.end(),
                     [](int64_t number) { return number >= 0 && number <= kNumberMax; });
}

// Below 0: a plan that the trainer took while the controller was away.
bool versioned(int64_t plan_version) {
  return plan_version >= -kNumberMax && plan_version <= kNumberMax;
}

bool makes_sense(const RunRegisteredEvent& event) {
  return counted({event.layers, event.checkpoint_every, event.total_steps, event.last_directive,
                  event.newest_plan_version, event.tokens_per_step});
}
bool makes_sense(const AttemptStarted& event) {
  return counted({event.attempt, event.base_step}) && versioned(event.plan_version);
}
bool makes_sense(const StepReported& event) {
  return counted({event.attempt, event.step}) && versioned(event.plan_version);
}
bool makes_sense(const CheckpointCompleted& event) {
  return counted({event.attempt, event.step}) && versioned(event.plan_version);
}
bool makes_sense(const ReplayFinished& event) {
  return counted({event.compared_steps, event.first_mismatch_step.value_or(0),
                  event.first_other_batch_step.value_or(0)}) &&
         std::all_of(event.steps.begin(), event.steps.end(),
                     [](int64_t step) { return counted({step}); });
}
// The other events have no number that anything is calculated with.
template <class Other>
bool makes_sense(const Other&) {
  return true;
}

void handle_event(Core& core, const Event& event) {
  const bool sound = std::visit([](const auto& known) { return makes_sense(known); }, event);
  if (sound) return std::visit([&](const auto& known) { handle(core, known); }, event);
  const auto* replay = std::get_if<ReplayFinished>(&event);
  if (replay == nullptr) return core.explain("The event's numbers make no sense: it is ignored.");
  handle(core,
         ReplayFailed{replay->replay, replay->window, replay->arm, "its steps make no sense"});
}

bool needs_attempt(const Event& event) {
  return std::holds_alternative<StepReported>(event) ||
         std::holds_alternative<CheckpointCompleted>(event) ||
         std::holds_alternative<ReplayFinished>(event) ||
         std::holds_alternative<ReplayFailed>(event) ||
         std::holds_alternative<DirectiveChanged>(event);
}

// Events that count after the end of a run: results of windows that were open, and that the run
// continues.
bool accepted_after_end(const Event& event) {
  return std::holds_alternative<ReplayFinished>(event) ||
         std::holds_alternative<ReplayFailed>(event) || std::holds_alternative<RunEnded>(event) ||
         std::holds_alternative<AttemptStarted>(event) ||
         std::holds_alternative<RunRegisteredEvent>(event);
}

// Does what the event has left to be done: the open case asks its next question, and what waited
// for the end of a case continues.
void run_follow_ups(Core& core) {
  do {
    if (std::exchange(core.case_continues, false) && core.s.investigation) advance_case(core);
    const bool ended = std::exchange(core.case_ended, false);
    open_waiting_suspicion(core);
    if (ended) settle_verified(core);
    judge_deferred(core);
    if (ended) return_if_due(core);
  } while (core.case_continues || core.case_ended);
}

}  // namespace

double next_deadline(const State& state) {
  double next = std::numeric_limits<double>::infinity();
  if (state.ended) return next;
  const auto consider = [&](double deadline) {
    if (deadline > 0) next = std::min(next, deadline);
  };
  if (state.directive) consider(state.directive->deadline);
  for (const PendingReplay& replay : state.replays) consider(replay.deadline);
  for (const PendingDirective& open : state.operator_directives) consider(open.deadline);
  for (const auto* order : {&state.silence, &state.mode_override, &state.operator_plan}) {
    if (*order) consider((*order)->expires_at);
  }
  return next;
}

Consequences decide_in_place(State& state, const Event& event, const Policy& policy, double now) {
  std::optional<Policy> ordered;  // with the mode that an operator has ordered
  if (state.mode_override) ordered.emplace(policy).mode = mode_in_force(state, policy);
  Core core{state, ordered ? *ordered : policy, now};
  if (!state.registered && !std::holds_alternative<RunRegisteredEvent>(event)) {
    core.explain("The run is not registered.");
  } else if (state.attempt.number == 0 && needs_attempt(event)) {
    core.explain("No attempt has started.");
  } else if (state.ended && !accepted_after_end(event)) {
    core.explain("The run has ended.");
  } else {
    // What was only reported is looked into once the mode enforces, whoever has changed it.
    if (core.enforcing()) state.fault_reported = false;
    note_report(core, event);
    handle_event(core, event);
    run_follow_ups(core);
    release_unsettled(core);
    close_orphans(core);
    close_unanswerable(core);
    restore_plan_if_due(core);
    hold_if_due(core);
    note_standing(core);
    if (!core.keeps_checkpoints) protect(core);
  }
  return {std::move(core.effects), std::move(core.reason)};
}

Outcome decide(State state, const Event& event, const Policy& policy, double now) {
  Consequences follows = decide_in_place(state, event, policy, now);
  return {std::move(state), std::move(follows.effects), std::move(follows.reason)};
}

}  // namespace gnomon::decide

#include "controller/decide/directive_answers.h"

#include <fmt/format.h>

#include "controller/decide/attempts.h"
#include "controller/decide/containment.h"
#include "controller/decide/costs.h"
#include "controller/decide/directives.h"
#include "controller/decide/ladder.h"
#include "controller/decide/overrides.h"
#include "controller/decide/recovery.h"
#include "controller/decide/returning.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

constexpr int64_t kStepsToTakeAPlan = 1;  // between a trainer's answer and a step in the plan

json::object evidence_of(const PendingDirective& directive) {
  return {{"directive", directive.number},
          {"kind", directive.kind},
          {"purpose", directive.purpose},
          {"plan_version", directive.plan_version},
          {"to_step", directive.to_step}};
}

// The plan in force is another than the containment wanted: the containment is what the plan says.
void fit_containment(Core& core) {
  State& s = core.s;
  if (core.held()) {
    s.containment->plan_version = s.plan_version;
  } else if (s.containment && s.containment->plan_version != s.plan_version) {
    s.containment = standing_in(s, s.plan_version);
  }
}

// Nothing may follow a refusal now, and that must not pass in silence.
void leave_it(Core& core, const PendingDirective& refused, const std::string& why) {
  State& s = core.s;
  const std::string rest =
      refused.kind == "rollback"
          ? fmt::format("The weights since step {} are in doubt, and a person must look",
                        refused.to_step)
          : "A person must look";
  core.record("directive",
              fmt::format("Nothing follows the end of directive {} ({}): {}. {}.", refused.number,
                          refused.kind, why, rest),
              evidence_of(refused));
  if (refused.purpose != "contain" || core.held()) return;
  s.containment.reset();
  if (!s.operator_plan) s.containment = standing_in(s, s.plan_version);
}

// A directive of the core's own that came to nothing: the next best thing that can still be done.
void fall_back(Core& core, const PendingDirective& refused) {
  State& s = core.s;
  if (refused.purpose == "return") return refuse_return(core);
  if (refused.purpose == "hold") return;
  s.recovery.reset();
  const std::string muted = core.muted();
  if (!muted.empty()) return leave_it(core, refused, muted);
  if (!core.enforcing()) {
    return leave_it(core, refused, fmt::format("the mode is {}", mode_name(core.policy.mode)));
  }
  if (refused.kind == "rollback") return go_further_back(core, refused);
  const std::string sentence = fmt::format(
      "Training is paused. Directive {} ({}) came to nothing and nothing else is left: a "
      "person must look.",
      refused.number, refused.kind);
  RecordDecision& decision = core.record("action", sentence, evidence_of(refused));
  decision.action = "hold";
  decision.enforced = true;
  hold(core, sentence);
}

void came_to_nothing(Core& core, const PendingDirective& ended) {
  if (ended.purpose != "override") return fall_back(core, ended);
  if (ended.kind == "set_plan") operator_plan_failed(core);
}

void apply_plan(Core& core, const PendingDirective& done) {
  State& s = core.s;
  s.plan_version = done.plan_version;
  s.suspicion.reset();
  if (done.purpose == "return") finish_return(core);
  if (done.purpose == "restore") s.watch_from = s.newest_step;
  std::vector<int64_t> moot;
  for (const WindowState& window : s.windows) {
    if (window.deferred && window.plan_version != done.plan_version) moot.push_back(window.id);
  }
  for (int64_t id : moot) close_window(core, id, "alarm");
  release_unsettled(core);
}

void carried_out(Core& core, const PendingDirective& done, int64_t step) {
  State& s = core.s;
  if (done.kind == "set_plan" || done.kind == "rollback") {
    s.standing.promised = done;
    s.standing.promised_step = step;
  }
  if (done.kind == "set_plan") apply_plan(core, done);
  if (done.kind == "pause") {
    s.paused = true;
    count_pause(core, true);
  }
  if (done.kind == "resume") finish_resume(core);
  if (done.kind == "stop") core.s.stopping = true;
  if (done.kind != "rollback") return;
  // Their alarm is answered; the attempt that begins now does not have these steps.
  const bool begun = s.attempt.cause == "rollback" && s.attempt.base_step == done.to_step;
  if (!begun) forget_after(core, done.to_step);
}

// The trainer carried out what had been withdrawn: what it says is what happened.
void believe(Core& core, const PendingDirective& late, const DirectiveChanged& event) {
  State& s = core.s;
  core.record("directive",
              fmt::format("{} had expired, and the trainer carried it out all the same, after step "
                          "{}: that is what counts.",
                          directive_name(late), event.step),
              evidence_of(late));
  if (late.kind == "rollback" && s.directive && s.directive->kind == "rollback") {
    withdraw(core, *extract_open(s, s.directive->number), "the rollback before it was carried out");
    if (s.recovery) s.recovery->to_step = late.to_step;
  }
  carried_out(core, late, event.step);
  if (late.kind != "set_plan" && late.kind != "rollback") return;
  s.plan_version = late.plan_version;
  if (late.purpose == "override") {
    s.restore_plan = !s.operator_plan;
    return;
  }
  if (!s.containment) s.containment = standing_in(s, s.plan_version);
  fit_containment(core);
}

// The trainer carries it out when it is started again, which it was not since.
bool waits_for_restart(const State& s, const PendingDirective& open) {
  const Capabilities& can = s.run.capabilities;
  // A rollback may bring a plan.
  const bool rolls_back = open.kind == "rollback";
  const bool at_restart = ((rolls_back || open.kind == "set_plan") && can.when == "restart") ||
                          (rolls_back && can.rollback == "restart");
  return at_restart && open.attempt == s.attempt.number;
}

void time_out(Core& core, PendingDirective open) {
  State& s = core.s;
  const double limit = core.policy.directives.timeout_seconds;
  const bool at_restart = waits_for_restart(s, open);
  if (open.steps_since && !at_restart) {
    const std::string sentence = fmt::format(
        "{} was not carried out within {} seconds, although the trainer went on to "
        "step {}: it has expired. Why the trainer does not listen should be found out.",
        directive_name(open), limit, s.newest_step);
    core.record("directive", sentence, evidence_of(open));
    s.standing.directives_unapplied += 1;
    extract_open(s, open.number);
    withdraw(core, open, sentence);
    return came_to_nothing(core, open);
  }
  if (!open.silence_recorded) {
    core.record("directive",
                at_restart
                    ? fmt::format("{} waits for the trainer to be started again: only then does it "
                                  "carry out such a directive. Restart the job.",
                                  directive_name(open))
                    : fmt::format("{} was not answered within {} seconds and the trainer has "
                                  "reported no step since step {}: it stays ready for it. The "
                                  "trainer, or the way to it, may be broken.",
                                  directive_name(open), limit, s.newest_step),
                evidence_of(open));
  }
  each_open(s, [&](PendingDirective& known) {
    if (known.number != open.number) return;
    known.silence_recorded = true;
    known.deadline = core.now + limit;
  });
}

}  // namespace

void directive_changed(Core& core, const DirectiveChanged& event) {
  State& s = core.s;
  if (event.state != "applied" && event.state != "rejected") return;
  if (const auto late = extract_expired(s, event.number)) {
    if (event.state == "applied") {
      return believe(core, *late, event);
    }
    return core.explain(fmt::format("{} had expired already.", directive_name(*late)));
  }
  const auto answered = extract_open(s, event.number);
  if (!answered) return core.explain(fmt::format("Directive {} is not waited for.", event.number));
  if (event.state == "rejected") {
    if (answered->kind == "stop") s.stopping = false;
    core.record("instrument",
                fmt::format("The trainer refused directive {} ({}): {}.", event.number,
                            answered->kind, event.reason),
                {{"directive", event.number}, {"kind", answered->kind}, {"reason", event.reason}});
    came_to_nothing(core, *answered);
  } else {
    carried_out(core, *answered, event.step);
  }
}

void check_promised_plan(Core& core) {
  State& s = core.s;
  if (!s.standing.promised || s.directive || s.investigation) return;
  PendingDirective promised = *s.standing.promised;
  const bool begun = s.attempt.cause == "rollback" && s.attempt.base_step == promised.to_step;
  if (promised.kind == "rollback" && !begun) return;  // steps of the attempt before still come
  if (s.plan_version == promised.plan_version) return s.standing.promised.reset();
  const int64_t from = promised.kind == "rollback" ? promised.to_step : s.standing.promised_step;
  if (s.newest_step <= from + kStepsToTakeAPlan) return;
  s.standing.promised.reset();
  s.standing.directives_unapplied += 1;
  core.record(
      "directive",
      fmt::format("{} was carried out, says the trainer, but step {} came in plan {} and not "
                  "in plan {}: it does not do what it says.",
                  directive_name(promised), s.newest_step, s.plan_version, promised.plan_version),
      evidence_of(promised));
  promised.kind = "set_plan";  // it is where a rollback was to bring it
  came_to_nothing(core, promised);
  if (!s.containment) s.containment = standing_in(s, s.plan_version);
}

void time_out_directives(Core& core) {
  std::vector<PendingDirective> overdue;
  each_open(core.s, [&](const PendingDirective& open) {
    if (open.deadline > 0 && core.now >= open.deadline) overdue.push_back(open);
  });
  for (const PendingDirective& open : overdue) time_out(core, open);
}

void withdraw_all(Core& core, const std::string& reason) {
  State& s = core.s;
  if (s.directive) {
    const PendingDirective own = *extract_open(s, s.directive->number);
    withdraw(core, own, reason);
    if (own.purpose == "contain") fit_containment(core);
  }
  for (const PendingDirective& open : s.operator_directives) withdraw(core, open, reason);
  s.operator_directives.clear();
}

}  // namespace gnomon::decide

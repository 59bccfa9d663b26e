#include "controller/decide/overrides.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "controller/decide/case.h"
#include "controller/decide/containment.h"
#include "controller/decide/directives.h"
#include "controller/decide/plans.h"
#include "controller/decide/returning.h"
#include "controller/decide/standing.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

const PendingDirective* open_override(const State& s, DirectiveKind kind) {
  for (const PendingDirective& open : s.operator_directives) {
    if (open.kind == kind) return &open;
  }
  return nullptr;
}

bool held(const State& s) { return s.containment && s.containment->rung == "hold"; }

// True when the run stands still once everything under way is carried out.
bool will_be_paused(const State& s) {
  if (open_override(s, "resume") != nullptr) return false;
  if (open_override(s, "pause") != nullptr) return true;
  return s.paused || (s.directive && s.directive->kind == "pause");
}

bool is_standing(OverrideKind kind) {
  return kind == "set_plan" || kind == "silence" || kind == "mode";
}

std::string why_no_directive(const State& s, const OperatorOverride& asked) {
  if (s.attempt.number == 0) return "no attempt has started: there is no trainer to tell";
  if (const auto* stop = open_override(s, "stop")) {
    return fmt::format("the run is told to stop already (directive {})", stop->number);
  }
  if (s.stopping) return "the run was told to stop";
  if (asked.kind == "pause" && will_be_paused(s)) return "the run is paused already, or told to";
  if (asked.kind == "resume") {
    if (const auto* resume = open_override(s, "resume")) {
      return fmt::format("the run is told to resume already (directive {})", resume->number);
    }
    if (!held(s) && !will_be_paused(s)) return "the run is not paused";
  }
  if (asked.kind == "checkpoint_now") {
    if (const auto* open = open_override(s, "checkpoint_now")) {
      return fmt::format("a checkpoint is asked for already (directive {})", open->number);
    }
  }
  if (asked.kind == "set_plan" && asked.plan.empty()) return "a plan is missing";
  return "";
}

StandingOverride standing(const OperatorOverride& asked) {
  return {asked.owner, asked.reason, asked.expires_at, asked.mode, asked.plan, 0};
}

bool already_in_force(const std::optional<StandingOverride>& known, const OperatorOverride& asked) {
  return known && known->owner == asked.owner && known->reason == asked.reason &&
         known->expires_at == asked.expires_at && known->mode == asked.mode &&
         known->plan == asked.plan;
}

bool already_in_force(const State& s, const OperatorOverride& asked) {
  if (asked.kind == "silence") return already_in_force(s.silence, asked);
  if (asked.kind == "mode") return already_in_force(s.mode_override, asked);
  return asked.kind == "set_plan" && already_in_force(s.operator_plan, asked);
}

// What was under way when an operator said that nothing is to follow.
void drop_case(Core& core) {
  core.s.suspicion.reset();
  if (core.s.investigation) {
    core.explain("The open investigation is given up.");
    end_case(core, "alarm");
  }
}

std::string order_words(const Core& core, const OperatorOverride& asked) {
  const State& s = core.s;
  const std::string end = until(asked.expires_at);
  if (asked.kind == "pause") return "the run pauses";
  if (asked.kind == "stop") return "the run stops";
  if (asked.kind == "checkpoint_now") return "a checkpoint is written now";
  if (asked.kind == "silence") {
    return fmt::format("alarms are recorded and lead to nothing {}", end);
  }
  if (asked.kind == "mode") return fmt::format("the mode is {} {}", asked.mode, end);
  if (asked.kind == "set_plan") {
    return fmt::format(
        "the run takes plan {} and keeps it {}; windows are measured and nothing "
        "automatic follows",
        s.next_plan_version, end);
  }
  if (!held(s)) return "the run goes on";
  return fmt::format(
      "the run goes on; with that the hold ends, windows are watched again from the "
      "next one on, and the count of automatic actions ({} of {}) starts again",
      s.actions, core.policy.limits.actions_max);
}

void order_now(Core& core, const OperatorOverride& asked, const std::string& why) {
  State& s = core.s;
  // An unanswered order of the opposite, or an older plan, is not to be carried out any more.
  std::vector<PendingDirective> moot;
  for (const PendingDirective& open : s.operator_directives) {
    const bool opposite = (asked.kind == "resume" && open.kind == "pause") ||
                          (asked.kind == "pause" && open.kind == "resume");
    if (opposite || (asked.kind == "set_plan" && open.kind == "set_plan")) moot.push_back(open);
  }
  for (const PendingDirective& open : moot) {
    std::erase_if(s.operator_directives,
                  [&](const PendingDirective& known) { return known.number == open.number; });
    withdraw(core, open, fmt::format("{} ordered otherwise", asked.owner));
  }
  if (asked.kind == "resume" && s.directive && s.directive->kind == "pause") {
    const PendingDirective pause = *s.directive;
    s.directive.reset();
    withdraw(core, pause, fmt::format("{} ordered otherwise", asked.owner));
  }
  PendingDirective pending;
  pending.kind = DirectiveKind::on_record(asked.kind);
  if (asked.kind == "set_plan") pending.plan_version = s.operator_plan->plan_version;
  issue_override(core, std::move(pending), asked.plan, why);
}

void start_operator_plan(Core& core, const OperatorOverride& asked) {
  State& s = core.s;
  s.operator_plan = standing(asked);
  s.operator_plan->plan_version = s.next_plan_version++;
  s.restore_plan = false;
  remember_plan(s, s.operator_plan->plan_version, asked.plan);
  drop_case(core);
}

void end_operator_plan(Core& core, const std::string& how) {
  State& s = core.s;
  const StandingOverride over = *s.operator_plan;
  const int64_t wanted = wanted_plan(s);
  const PendingDirective* open = open_override(s, "set_plan");
  s.restore_plan = open != nullptr || s.plan_version != wanted;
  s.operator_plan.reset();
  if (open != nullptr) {
    const PendingDirective untaken = *open;
    std::erase_if(s.operator_directives,
                  [&](const PendingDirective& known) { return known.number == untaken.number; });
    withdraw(core, untaken, how);
  }
  const std::string what = wanted == base_plan(s).version
                               ? "the run's own"
                               : "the one in which the last fault is contained";
  core.record("override", fmt::format("{}: the run goes back to plan {}, {}.", how, wanted, what),
              {{"kind", "set_plan"}, {"owner", over.owner}, {"plan_version", wanted}});
}

bool over(const Core& core, const std::optional<StandingOverride>& order) {
  return order && order->expires_at > 0 && core.now >= order->expires_at;
}

}  // namespace

std::string why_not(const State& s, const OperatorOverride& asked) {
  if (!s.registered) return "the run is not registered";
  if (s.ended) return "the run has ended";
  if (!asked.kind.is_known()) {
    return fmt::format("there is no override of kind \"{}\"", asked.kind);
  }
  if (asked.owner.empty()) return "an override has an owner";
  if (asked.reason.empty()) return "an override has a reason";
  if (is_standing(asked.kind) && !(std::isfinite(asked.expires_at) && asked.expires_at >= 0)) {
    return "the time at which it ends makes no sense";
  }
  if (asked.kind == "silence") return "";
  if (asked.kind == "mode") {
    return mode_from_name(asked.mode) ? "" : fmt::format("there is no mode \"{}\"", asked.mode);
  }
  return why_no_directive(s, asked);
}

void handle_override(Core& core, const OperatorOverride& asked) {
  State& s = core.s;
  if (const std::string why = why_not(s, asked); !why.empty()) {
    return core.explain(fmt::format("The override is refused: {}.", why));
  }
  if (already_in_force(s, asked)) return core.explain("The override is in force already.");
  const std::string sentence =
      fmt::format("By order of {} ({}): {}.", asked.owner, asked.reason, order_words(core, asked));
  core.record("override", sentence,
              {{"kind", asked.kind},
               {"owner", asked.owner},
               {"reason", asked.reason},
               {"mode", asked.mode},
               {"expires_at", number(asked.expires_at)}});
  if (asked.kind == "silence") {
    s.silence = standing(asked);
    return drop_case(core);
  }
  if (asked.kind == "mode") {
    s.mode_override = standing(asked);
    s.fault_reported = false;
    return;
  }
  if (asked.kind == "set_plan") start_operator_plan(core, asked);
  order_now(core, asked, sentence);
  if (asked.kind == "stop") drop_case(core);
}

void end_overrides(Core& core) {
  State& s = core.s;
  if (over(core, s.silence)) {
    core.record(
        "override",
        fmt::format("The silence ordered by {} is over: alarms count again.", s.silence->owner),
        {{"kind", "silence"}, {"owner", s.silence->owner}});
    s.silence.reset();
  }
  if (over(core, s.mode_override)) {
    core.record("override",
                fmt::format("The mode {} ordered by {} is over: the policy's own counts again.",
                            s.mode_override->mode, s.mode_override->owner),
                {{"kind", "mode"}, {"owner", s.mode_override->owner}});
    s.mode_override.reset();
    s.fault_reported = false;
  }
  if (over(core, s.operator_plan)) {
    end_operator_plan(
        core, fmt::format("The time of the plan set by {} is over", s.operator_plan->owner));
  }
}

void operator_plan_failed(Core& core) {
  if (!core.s.operator_plan) return;
  end_operator_plan(core, fmt::format("The trainer did not take the plan set by {}",
                                      core.s.operator_plan->owner));
}

void restore_plan_if_due(Core& core) {
  State& s = core.s;
  if (!s.restore_plan || s.directive || s.ended || s.stopping || s.operator_plan) return;
  s.restore_plan = false;
  const KnownPlan plan = plan_of(s, wanted_plan(s));
  if (s.containment && !held(s)) refuse_return(core);
  PendingDirective pending;
  pending.kind = "set_plan";
  pending.purpose = "restore";
  pending.plan_version = plan.version;
  issue(core, std::move(pending), plan.toml,
        "An operator's plan is over: back to the plan that the run wants to be in.");
}

void finish_resume(Core& core) {
  State& s = core.s;
  s.paused = false;
  if (!held(s)) return;
  core.record("override",
              fmt::format("The hold is over after step {}: the run is watched again from the next "
                          "window on.",
                          s.newest_step),
              {{"kind", "resume"}, {"step", s.newest_step}, {"actions", s.actions}});
  s.containment = standing_in(s, s.containment->plan_version);
  s.recovery.reset();
  s.suspicion.reset();
  forget_non_finite(s.spikes);
  s.fault_reported = false;
  clear_harm(s);
  s.actions = 0;
  s.rollbacks.clear();
  s.watch_from = s.newest_step;
  s.next_start = std::max(s.next_start, s.newest_step);
}

}  // namespace gnomon::decide

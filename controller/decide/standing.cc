#include "controller/decide/standing.h"

#include <algorithm>
#include <cmath>

#include "controller/decide/plans.h"
#include "controller/decide/run_verdict.h"
#include "controller/decide/window_lengths.h"

namespace gnomon::decide {
namespace {

constexpr size_t kStepsAtMax = 17;

bool in_bf16(const State& s) { return s.registered && plan_of(s, s.plan_version).bf16; }

bool of_trainer(const Event& event) {
  return std::holds_alternative<RunRegisteredEvent>(event) ||
         std::holds_alternative<AttemptStarted>(event) ||
         std::holds_alternative<StepReported>(event) ||
         std::holds_alternative<CheckpointCompleted>(event) ||
         std::holds_alternative<DirectiveChanged>(event);
}

// Harm was found, and the answer to it is not in force.
bool harm_stands(const State& s) {
  if (s.standing.harm.empty() && !s.fault_reported) return false;
  const bool answered = s.containment || s.recovery;
  const bool on_its_way =
      s.directive && (s.directive->purpose == "contain" || s.directive->purpose == "transient" ||
                      s.directive->purpose == "hold");
  const bool hold_without_pause =
      s.containment && s.containment->rung == "hold" && !s.paused && !s.stopping;
  return !answered || on_its_way || hold_without_pause;
}

// The first window behind what was measured, as it is planned, should have been measured for a
// cadence.
bool overdue(const State& s, const Policy& policy) {
  const WindowLengths used = window_lengths(s, policy);
  const int64_t measured = s.standing.measured_step;
  int64_t due = s.standing.due_step;
  if (due <= measured && policy.window.every == 0 && s.money.spending.last_start >= 0)
    due = s.next_start + used.steps;
  return !in_bf16(s) && s.attempt.number > 0 &&
         s.newest_step >= std::max(due, measured + used.every) + used.every;
}

// Training diverges in BF16 as well as in FP8: neither precision is to blame.
bool diverges_in_both_precisions(const State& s) {
  return s.watch.stability.unstable_since.has_value();
}

}  // namespace

std::string_view condition_of(const State& s, const Policy& policy) {
  if (s.ended) return "ended";
  if (s.paused) return "held";
  if (harm_stands(s)) return "harmful";
  if (diverges_in_both_precisions(s)) return "unstable";
  if (s.watch.instrument.broken || overdue(s, policy)) return "unverified";
  if (s.investigation || s.suspicion) return "under_investigation";
  if (s.containment || s.recovery) return "contained";
  if (s.standing.measured_windows == 0 && !in_bf16(s)) return "starting";
  return "good";
}

static bool is_open(const State& s, int64_t directive) {
  return (s.directive && s.directive->number == directive) ||
         std::ranges::any_of(s.operator_directives, [&](const PendingDirective& open) {
           return open.number == directive;
         });
}

void note_report(Core& core, const Event& event) {
  if (!of_trainer(event)) return;
  Standing& standing = core.s.standing;
  standing.reported_at = core.now;
  if (const auto* changed = std::get_if<DirectiveChanged>(&event)) {
    const bool open = is_open(core.s, changed->number);
    const bool late = std::ranges::any_of(core.s.expired_directives, [&](const auto& expired) {
      return expired.number == changed->number;
    });
    if (changed->state == "applied" && (open || late)) standing.directives_unapplied = 0;
    if (changed->state == "rejected" && open) standing.directives_unapplied += 1;
  }
  const auto* started = std::get_if<AttemptStarted>(&event);
  if (started != nullptr && core.s.attempt.number == 0)
    standing.first_base = standing.measured_step = started->base_step;
  const auto* step = std::get_if<StepReported>(&event);
  const State& s = core.s;
  // A step that is not new says nothing of the pace.
  if (step == nullptr || step->attempt != s.attempt.number || step->step <= s.newest_step) return;
  if (standing.steps_at.size() >= kStepsAtMax) standing.steps_at.erase(standing.steps_at.begin());
  standing.steps_at.push_back(core.now);
}

void note_planned(State& s, int64_t end) {
  if (s.standing.due_step <= s.standing.measured_step) s.standing.due_step = end;
}

void note_measured(State& s, const WindowState& window) {
  Standing& standing = s.standing;
  standing.measured_windows += 1;
  standing.last_window = window.id;
  standing.last_start = window.start.step;
  standing.last_d_percent = window.measured->d_percent.value_or(0);
  standing.unmeasured.clear();
  standing.measured_step = std::max(standing.measured_step, window.end_step());
}

void note_answered(State& s) {
  if (s.investigation) s.standing.measured_step = s.newest_step;
}

void note_harm(State& s, const std::string& what) { s.standing.harm = what; }

void clear_harm(State& s) {
  if (!s.directive) s.standing.harm.clear();
}

void note_standing(Core& core) {
  State& s = core.s;
  Standing& standing = s.standing;
  // What a rollback took away was measured for nothing; BF16 is its own reference.
  standing.measured_step = std::min(standing.measured_step, s.newest_step);
  if (in_bf16(s)) standing.measured_step = s.newest_step;
  if (s.containment && s.containment->recovered) clear_harm(s);
  const std::string_view condition = condition_of(s, core.policy);
  if (condition == standing.condition) return;
  standing.condition = condition;
  standing.since = core.now;
}

}  // namespace gnomon::decide

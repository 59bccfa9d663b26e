// What the run has cost and earned so far, and how often verifying it pays.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "controller/decide/cadence.h"
#include "controller/decide/core.h"
#include "controller/decide/plans.h"

namespace gnomon::decide {
namespace {

constexpr double kDelayWindows = 2;     // until an alarm, of faults that are worth one
constexpr double kSpeedupLeast = 1.01;  // below it there is nothing to optimise

StepKind kind_of(const State& s, int64_t plan_version) {
  const KnownPlan& plan = plan_of(s, plan_version);
  if (plan.bf16) return StepKind::kBf16;
  return plan.version == base_plan(s).version ? StepKind::kFp8 : StepKind::kPinned;
}

// Steps after `base` up to the newest one, by kind.
StepCounts steps_after(const State& s, int64_t base) {
  StepCounts counts = {};
  for (size_t i = 0; i < s.plan_changes.size(); ++i) {
    const int64_t from = std::max(s.plan_changes[i].step, base + 1);
    const int64_t to =
        i + 1 < s.plan_changes.size() ? s.plan_changes[i + 1].step - 1 : s.newest_step;
    if (to < from) continue;
    counts[static_cast<size_t>(kind_of(s, s.plan_changes[i].plan_version))] += to - from + 1;
  }
  return counts;
}

RunModel model_of(const Core& core) {
  const Policy& policy = core.policy;
  RunModel model;
  model.speedup = measured_speedup(core.s.money.account, policy.economics.speedup).value;
  model.window_steps = static_cast<double>(policy.window.steps);
  model.switch_steps = policy.economics.switch_steps;
  model.delay_windows = kDelayWindows;
  model.hold_steps = static_cast<double>(policy.window.every * policy.returning.quiet_windows);
  model.restart_steps = policy.economics.restart_steps;
  model.windows_between_false_alarms = policy.detector.windows_between_false_alarms;
  model.spare_share = policy.economics.spare_fraction;
  return model;
}

// Absent when the run is none that the economics can say something about.
std::optional<Cadence> best_cadence(Core& core, const RunModel& model, int64_t now) {
  CadenceLimits limits;
  limits.every_min = core.policy.window.steps;
  limits.every_max = core.policy.window.every_max;
  limits.checkpoint_every = std::max<int64_t>(1, core.s.run.checkpoint_every);
  try {
    return choose_cadence(model, hazard_mean(core.s.money.hazard), now, limits);
  } catch (const ConfigError& refused) {
    core.say(fmt::format("The cadence stays as it is: {}.", refused.what()));
    return std::nullopt;
  }
}

}  // namespace

void count_step(Core& core, const StepReported& step) {
  Money& money = core.s.money;
  const StepKind kind = kind_of(core.s, step.plan_version);
  add_step(money.account, kind, step.seconds);
  if (kind != StepKind::kBf16) observe_steps(money.hazard, 1);
}

void count_lost_steps(Core& core, int64_t base, bool rolled_back) {
  const StepCounts lost = steps_after(core.s, base);
  Account& account = core.s.money.account;
  rolled_back ? add_rollback(account, lost) : add_crash(account, lost);
}

void count_replay(Core& core, const PendingReplay& replay, const ReplayFinished& result) {
  Account& account = core.s.money.account;
  const double spare = core.policy.economics.spare_fraction;
  const bool on_training_devices = result.on_trainer || spare == 0;
  const Where where = on_training_devices ? Where::kTrainer : Where::kSpare;
  add_verification(account, where, result.seconds, on_training_devices ? 1 : spare);
  if (replay.role == "shadow") core.s.money.shadows += 1;
}

void count_fault(Core& core) { observe_faults(core.s.money.hazard, 1); }

void count_pause(Core& core, bool paused) {
  Money& money = core.s.money;
  if (paused && money.paused_since == 0) money.paused_since = core.now;
  if (!paused && money.paused_since > 0) {
    add_hold(money.account, std::max(0.0, core.now - money.paused_since));
    money.paused_since = 0;
  }
}

void choose_cadence(Core& core) {
  State& s = core.s;
  if (core.policy.window.cadence != "optimised" || s.ended) return;
  const RunModel model = model_of(core);
  if (model.speedup < kSpeedupLeast) return;
  const int64_t now = s.watch.every > 0 ? s.watch.every : core.policy.window.every;
  const std::optional<Cadence> chosen = best_cadence(core, model, now);
  if (!chosen || !chosen->changed || chosen->every == now) return;
  s.watch.every = chosen->every;
  core.record("cadence", chosen->reason,
              {{"every", chosen->every},
               {"before", now},
               {"hazard", number(hazard_mean(s.money.hazard))},
               {"speedup", number(model.speedup)},
               {"net", number(chosen->net)},
               {"net_before", number(chosen->net_current)}});
}

}  // namespace gnomon::decide

#include "controller/decide/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/errors.h"
#include "base/rounding.h"
#include "controller/decide/cadence.h"
#include "controller/decide/economics.h"
#include "controller/decide/net_speedup.h"
#include "controller/decide/plans.h"
#include "controller/decide/spending.h"
#include "controller/decide/window_lengths.h"

namespace gnomon::decide {
namespace {

constexpr size_t kCostPointsMax = 96;

StepKind kind_of(const State& s, int64_t plan_version) {
  const KnownPlan& plan = plan_of(s, plan_version);
  if (plan.bf16) return StepKind::kBf16;
  return plan.version == base_plan(s).version ? StepKind::kFp8 : StepKind::kPinned;
}

// Steps after `base` up to the newest one, by kind: at most those that the account has.
StepCounts steps_after(const State& s, int64_t base) {
  StepCounts counts = {};
  for (size_t i = 0; i < s.plan_changes.size(); ++i) {
    const int64_t from = std::max(s.plan_changes[i].step, base + 1);
    const int64_t to =
        i + 1 < s.plan_changes.size() ? s.plan_changes[i + 1].step - 1 : s.newest_step;
    if (to < from) continue;
    counts[static_cast<size_t>(kind_of(s, s.plan_changes[i].plan_version))] += to - from + 1;
  }
  const Account& account = s.money.account;
  const StepCounts kept = {account.fp8.steps - account.fp8_lost,
                           account.pinned.steps - account.pinned_lost,
                           account.bf16.steps - account.bf16_lost};
  for (size_t kind = 0; kind < counts.size(); ++kind)
    counts[kind] = std::min(counts[kind], kept[kind]);
  return counts;
}

double waited_seconds(const Account& account) {
  return account.hold_seconds + account.trainer_verification_seconds;
}

// From the last step before a rollback or a change of plan to this first one after it, without what
// the account has already: this step, holds, verification that training waited for.
void count_switch(Core& core, const StepReported& step) {
  Costs& costs = core.s.money;
  const std::vector<PlanChange>& changes = core.s.plan_changes;
  const bool other_plan = changes.size() > 1 && changes.back().step == step.step;
  if ((costs.switching || other_plan) && costs.last_step_at > 0) {
    const double waited = waited_seconds(costs.account) - costs.waited_seconds;
    add_switch(costs.account, std::max(0.0, core.now - costs.last_step_at - step.seconds - waited));
  }
  costs.switching = false;
}

void note_point(Core& core, int64_t step) {
  Costs& costs = core.s.money;
  if (costs.point_every == 0) costs.point_every = window_lengths(core.s, core.policy).every;
  const int64_t last = costs.points.empty() ? 0 : costs.points.back().step;
  if (step < last + costs.point_every) return;
  const Statement made = statement(account_now(core.s, core.policy), core.policy.economics.speedup,
                                   core.policy.economics.loss_exponent);
  if (made.useful_steps == 0) return;
  costs.points.push_back({step, made.speedup.value, made.net, is_measured(made.speedup)});
  if (costs.points.size() < kCostPointsMax) return;
  std::vector<CostPoint> thinned;
  for (size_t i = 1; i < costs.points.size(); i += 2) thinned.push_back(costs.points[i]);
  costs.points = std::move(thinned);
  costs.point_every *= 2;
}

std::optional<StepKind> kind_replayed(const State& s, const PendingReplay& replay,
                                      const ReplayFinished& result) {
  if (result.arm == "bf16" || result.arm == "bf16-perturbed") return StepKind::kBf16;
  if (replay.role == "probe") return StepKind::kFp8;
  if (result.arm != "same") return std::nullopt;
  for (const WindowState& window : s.windows) {
    if (window.id == replay.window) return kind_of(s, window.plan_version);
  }
  return std::nullopt;
}

// Emulated FP8 is slower than BF16: there is nothing to gain, and the budget alone says how often.
Cadence cadence_of_budget(const CadenceLimits& limits, int64_t now) {
  Cadence cadence;
  cadence.every = std::max(limits.every_min, round_up(limits.every_min, limits.checkpoint_every));
  cadence.changed = std::abs(cadence.every - now) > now / 10;
  cadence.reason =
      fmt::format("A window every {} steps instead of {}: what the budget of verification pays.",
                  cadence.every, now);
  return cadence;
}

// Absent when the run is none that the economics can say something about.
std::optional<Cadence> best_cadence(Core& core, const RunModel& model, int64_t now) {
  const CadenceLimits limits = cadence_limits(core.s, core.policy);
  if (model.speedup < kSpeedupWorthIt) return cadence_of_budget(limits, now);
  try {
    return choose_cadence(model, hazard_mean(core.s.money.hazard), now, limits);
  } catch (const ConfigError& refused) {
    core.explain(fmt::format("The cadence stays as it is: {}.", refused.what()));
    return std::nullopt;
  }
}

}  // namespace

void count_step(Core& core, const StepReported& step) {
  Costs& costs = core.s.money;
  const StepKind kind = kind_of(core.s, step.plan_version);
  count_trained(core.s);
  count_switch(core, step);
  add_step(costs.account, kind, step.seconds);
  if (kind != StepKind::kBf16) observe_steps(costs.hazard, 1);
  costs.last_step_at = core.now;
  costs.waited_seconds = waited_seconds(costs.account);
  note_point(core, step.step);
}

void count_lost_steps(Core& core, int64_t base, bool rolled_back) {
  Costs& costs = core.s.money;
  const StepCounts lost = steps_after(core.s, base);
  rolled_back ? add_rollback(costs.account, lost) : add_crash(costs.account, lost);
  costs.switching = rolled_back;
  if (!rolled_back) costs.last_step_at = 0;
  std::erase_if(costs.points, [&](const CostPoint& point) { return point.step > base; });
}

void count_replay(Core& core, const PendingReplay& replay, const ReplayFinished& result) {
  Account& account = core.s.money.account;
  const double spare = core.policy.economics.spare_fraction;
  const bool on_training_devices = result.on_trainer || spare == 0;
  const Where where = on_training_devices ? Where::kTrainer : Where::kSpare;
  add_verification(account, where, result.seconds, on_training_devices ? 1 : spare);
  count_spent(core.s, core.policy, replay, result);
  if (replay.role == "shadow") core.s.money.shadows += 1;
  const std::optional<StepKind> kind = kind_replayed(core.s, replay, result);
  if (!kind || result.steps.empty()) return;
  const auto steps = static_cast<int64_t>(result.steps.size());
  add_replayed_steps(account, where, *kind, steps,
                     result.step_seconds / static_cast<double>(steps));
}

void count_fault(Core& core) { observe_faults(core.s.money.hazard, 1); }

void count_pause(Core& core, bool paused) {
  Costs& costs = core.s.money;
  if (paused && costs.paused_since == 0) costs.paused_since = core.now;
  if (!paused && costs.paused_since > 0) {
    add_hold(costs.account, std::max(0.0, core.now - costs.paused_since));
    costs.paused_since = 0;
  }
}

void apply_best_cadence(Core& core) {
  State& s = core.s;
  if (core.policy.window.every > 0 || s.ended) return;
  const RunModel model = run_model(s, core.policy);
  const int64_t now = window_lengths(s, core.policy).every;
  const std::optional<Cadence> chosen = best_cadence(core, model, now);
  if (!chosen || !chosen->changed || chosen->every == now) return;
  s.watch.every = chosen->every;
  const bool measured =
      is_measured(measured_speedup(s.money.account, core.policy.economics.speedup));
  core.record("cadence", chosen->reason + (measured ? "" : kSpeedAssumed),
              {{"every", chosen->every},
               {"before", now},
               {"hazard", number(hazard_mean(s.money.hazard))},
               {"speedup", number(model.speedup)},
               {"speedup_measured", measured},
               {"net", number(chosen->net)},
               {"net_before", number(chosen->net_current)}});
}

}  // namespace gnomon::decide

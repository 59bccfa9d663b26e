#include "controller/decide/net_speedup.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>

#include "base/errors.h"
#include "controller/decide/core.h"
#include "controller/decide/gap_settings.h"
#include "controller/decide/plans.h"
#include "controller/decide/spending.h"
#include "controller/decide/window_lengths.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

constexpr double kPromisedDeviations = 2;
constexpr double kGapErrors = 2;  // standard errors that a gap must lie above 0

double training_seconds(const Account& account) {
  return account.fp8.seconds + account.pinned.seconds + account.bf16.seconds +
         account.trainer_verification_seconds + account.hold_seconds + account.switch_seconds;
}

CadenceReport cadence_report(const State& state, const Policy& policy) {
  CadenceReport made;
  made.kind = policy.window.every > 0 ? "fixed" : "budget";
  made.every = window_lengths(state, policy).every;
  const RunModel model = run_model(state, policy);
  if (model.speedup < kSpeedupWorthIt) {
    made.reason =
        fmt::format("FP8's steps are {:.2f} times as fast as BF16's: there is nothing to optimise.",
                    model.speedup);
    return made;
  }
  CadenceLimits limits = cadence_limits(state, policy);
  limits.gain_min = 0;
  // The policy's own distance has a net speed-up too, whatever the budget would pay.
  limits.every_min = std::min(limits.every_min, made.every);
  limits.every_max = std::max(limits.every_max, made.every);
  try {
    const Cadence best = choose_cadence(model, hazard_mean(state.money.hazard), made.every, limits);
    made.best = best.every;
    made.best_net = best.net;
    if (best.net_current > 0) made.net = best.net_current;
    made.reason = best.reason;
    if (!is_measured(measured_speedup(state.money.account, policy.economics.speedup)))
      made.reason += kSpeedAssumed;
  } catch (const ConfigError& impossible) {
    made.reason = impossible.what();
  }
  return made;
}

json::object steps_to_json(const StepTimes& times, int64_t lost) {
  return {{"run", times.steps},
          {"kept", times.steps - lost},
          {"lost", lost},
          {"mean_seconds", number(times.mean())}};
}

json::value loss_gap_to_json(const LossGap& gap) {
  if (gap.source.empty()) return nullptr;
  return {{"source", gap.source},
          {"percent", number(gap.percent)},
          {"error_percent", number(gap.error_percent)}};
}

}  // namespace

double LossGap::paid_percent() const { return percent > kGapErrors * error_percent ? percent : 0; }

LossGap loss_gap(const State& state) {
  if (!state.registered || plan_of(state, state.plan_version).bf16) return {};
  const auto newest = [](const GapState& gap) {
    return newest_level(gap, static_cast<int64_t>(kGapNewestMax));
  };
  const GapLevel forks = newest(state.watch.long_gap), windows = newest(state.watch.gap);
  if (forks.windows >= kLevelWindows) {
    return {"long_forks", forks.mean_percent, forks.error_percent};
  }
  if (windows.windows < kLevelWindows) return {};
  return {"windows", windows.mean_percent, windows.error_percent};
}

Account account_now(const State& state, const Policy& policy) {
  Account account = state.money.account;
  // Twice the loss is as far as the law of losses is worth anything.
  set_loss_gap(account, std::min(loss_gap(state).paid_percent(), 100.0));
  const double spare = policy.economics.spare_fraction * training_seconds(account);
  account.spare_idle_seconds = std::max(0.0, spare - account.spare_verification_seconds);
  return account;
}

RunModel run_model(const State& state, const Policy& policy) {
  RunModel model;
  model.speedup = measured_speedup(state.money.account, policy.economics.speedup).value;
  const WindowLengths asked = asked_lengths(policy, state.run.checkpoint_every);
  model.window_steps = static_cast<double>(asked.steps);
  model.switch_steps = policy.economics.switch_steps;
  model.hold_steps =
      static_cast<double>(bf16_distance(policy, asked) * policy.returning.quiet_windows);
  model.restart_steps = policy.economics.restart_steps;
  model.windows_between_false_alarms = policy.detector.windows_between_false_alarms;
  model.spare_share = policy.economics.spare_fraction;
  return model;
}

CadenceLimits cadence_limits(const State& state, const Policy& policy) {
  CadenceLimits limits;
  const WindowLengths asked = asked_lengths(policy, state.run.checkpoint_every);
  limits.every_min = every_by_budget(
      policy, asked.steps, measured_speedup(state.money.account, policy.economics.speedup).value,
      state.money.spending.overhead);
  limits.every_max = kSparsest * limits.every_min;
  limits.checkpoint_every = asked.unit;
  return limits;
}

double verification_share(const Statement& statement) {
  double share = 0;
  for (const AccountItem& item : statement.items) {
    if (item.key == "verification" || item.key == "spare" || item.key == "spare_idle")
      share += item.share;
  }
  return share;
}

int64_t steps_lost(const Account& account) {
  return account.fp8_lost + account.pinned_lost + account.bf16_lost;
}

NetSpeedupReport net_speedup_report(const State& state, const Policy& policy) {
  NetSpeedupReport made;
  made.account = account_now(state, policy);
  made.statement =
      statement(made.account, policy.economics.speedup, policy.economics.loss_exponent);
  made.loss_gap = loss_gap(state);
  made.verification_share = verification_share(made.statement);
  made.hazard = state.money.hazard;
  made.hazard_mean = hazard_mean(made.hazard);
  made.hazard_low = hazard_quantile(made.hazard, 0.05);
  made.hazard_high = hazard_quantile(made.hazard, 0.95);
  made.cadence = cadence_report(state, policy);
  const WindowLengths lengths = window_lengths(state, policy);
  const GapSample window{.steps = static_cast<double>(lengths.steps),
                         .tokens_per_step = static_cast<double>(state.run.tokens_per_step)};
  made.promise = promise(policy, lengths,
                         gap_scale_percent(state.watch.gap.scale, window, gap_settings(policy)),
                         kPromisedDeviations);
  const double accepted = state.watch.gap.scale.accepted_percent;
  made.promise.gap_percent += std::max(0.0, accepted - policy.detector.tolerance_percent);
  made.rollback_steps = rollback_steps(lengths);
  made.points = state.money.points;
  const bool newer = made.points.empty() || made.points.back().step < state.newest_step;
  if (made.statement.useful_steps > 0 && newer) {
    made.points.push_back({state.newest_step, made.statement.speedup.value, made.statement.net,
                           is_measured(made.statement.speedup)});
  }
  return made;
}

std::string net_speedup_to_json(const NetSpeedupReport& report) {
  const Account& account = report.account;
  const Statement& made = report.statement;
  json::array items;
  for (const AccountItem& item : made.items) {
    items.push_back({{"key", item.key},
                     {"words", item.words},
                     {"seconds", number(item.seconds)},
                     {"share", number(item.share)}});
  }
  json::array points;
  for (const CostPoint& point : report.points) {
    points.push_back({{"step", point.step},
                      {"speedup", number(point.speedup)},
                      {"net_speedup", number(point.net)},
                      {"measured", point.speedup_measured}});
  }
  const CadenceReport& cadence = report.cadence;
  json::object object{
      {"net_speedup", made.useful_steps > 0 ? number(made.net) : json::value(nullptr)},
      {"sentence", made.sentence},
      {"speedup", number(made.speedup.value)},
      {"speedup_source", made.speedup.source},
      {"measured", is_measured(made.speedup)},
      {"useful_steps", made.useful_steps},
      {"bf16_seconds", number(made.bf16_seconds)},
      {"paid_seconds", number(made.paid_seconds)},
      {"steps",
       {{"fp8", steps_to_json(account.fp8, account.fp8_lost)},
        {"pinned", steps_to_json(account.pinned, account.pinned_lost)},
        {"bf16", steps_to_json(account.bf16, account.bf16_lost)}}},
      {"steps_lost", steps_lost(account)},
      {"rollbacks", account.rollbacks},
      {"replays", account.verifications},
      {"verification_seconds", number(account.trainer_verification_seconds)},
      {"spare_verification_seconds", number(account.spare_verification_seconds)},
      {"spare_idle_seconds", number(account.spare_idle_seconds)},
      {"verification_share", number(report.verification_share)},
      {"holds", account.holds},
      {"hold_seconds", number(account.hold_seconds)},
      {"switches", account.switches},
      {"switch_seconds", number(account.switch_seconds)},
      {"loss_gap_percent", number(account.loss_gap_percent)},
      {"loss_gap", loss_gap_to_json(report.loss_gap)},
      {"items", std::move(items)},
      {"hazard",
       {{"fp8_steps", report.hazard.steps},
        {"faults", report.hazard.faults},
        {"per_step", number(report.hazard_mean)},
        {"per_step_low", number(report.hazard_low)},
        {"per_step_high", number(report.hazard_high)},
        {"words", hazard_in_words(report.hazard_mean)}}},
      {"cadence",
       {{"kind", cadence.kind},
        {"every", cadence.every},
        {"net_speedup_expected", number(cadence.net)},
        {"best_every", cadence.best ? json::value(*cadence.best) : json::value(nullptr)},
        {"best_net_speedup_expected", number(cadence.best_net)},
        {"reason", cadence.reason}}},
      {"promise",
       {{"gap_percent", number(report.promise.gap_percent)},
        {"within_steps", report.promise.within_steps ? json::value(*report.promise.within_steps)
                                                     : json::value(nullptr)},
        {"rollback_steps", report.rollback_steps},
        {"words", promise_in_words(report.promise)}}},
      {"points", std::move(points)}};
  return json::serialize(object);
}

}  // namespace gnomon::decide

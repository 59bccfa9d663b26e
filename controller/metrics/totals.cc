#include "controller/metrics/totals.h"

#include <limits>

#include "controller/decide/decide.h"
#include "controller/decide/net_speedup.h"
#include "controller/metrics/layers.h"
#include "protocol/json.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_health.h"
#include "storage/ledger_runs.h"
#include "storage/ledger_statistics.h"
#include "storage/ledger_windows.h"
#include "storage/view_queries.h"

namespace gnomon {
namespace {

void load_step_totals(Connection& connection, int64_t run, RunNumbers& numbers) {
  Histogram& seconds = numbers.step_seconds;
  for (const ledger::StepTotalsRow& row : ledger::step_totals(connection, run)) {
    numbers.tokens += static_cast<double>(row.tokens);
    seconds.counts[bucket_of(kStepBounds, row.seconds_max)] += static_cast<double>(row.steps);
    seconds.sum += row.seconds;
  }
}

void load_newest_step(Connection& connection, int64_t run, RunNumbers& numbers) {
  numbers.attempt = ledger::newest_attempt(connection, run);
  Query query = connection.query(
      "SELECT attempt, step FROM steps WHERE run = ? ORDER BY attempt DESC, step DESC LIMIT 1",
      run);
  if (query.next()) {
    const auto row = ledger::find_step(connection, run, query.integer(0), query.integer(1));
    numbers.newest_step = StepReport{*row, row->reported_at};
  }
}

void load_counts(Query query, Counts& counts) {
  while (query.next()) counts[query.text(0)] = static_cast<double>(query.integer(1));
}

void load_shadow(Connection& connection, int64_t run, RunNumbers& numbers) {
  Query query = connection.query(
      "SELECT s.loss, t.loss FROM replays r JOIN windows w ON w.run = r.run AND w.window = "
      "r.window "
      "JOIN results x ON x.run = r.run AND x.replay = r.replay "
      "JOIN replay_steps s ON s.run = r.run AND s.replay = r.replay AND s.step = w.start_step + "
      "w.steps "
      "JOIN steps t ON t.run = r.run AND t.attempt = w.attempt AND t.step = s.step "
      "WHERE r.run = ? AND r.arm = 'bf16' AND r.purpose = 'shadow' ORDER BY x.finished_at DESC "
      "LIMIT 1",
      run);
  if (query.next()) {
    numbers.shadow_loss = query.real(0);
    numbers.paired_loss = query.real(1);
  }
}

void load_layers(Connection& connection, int64_t run, RunNumbers& numbers) {
  if (!numbers.newest_step) return;
  const std::optional<std::string> plan =
      ledger::find_plan(connection, run, numbers.newest_step->plan_version);
  const auto registration =
      from_json<RunRegistration>(ledger::load_run(connection, run).value().registration);
  if (plan) record_layers(numbers, layer_shares(*plan, registration.sites, registration.layers));
}

}  // namespace

void StepTotals::add(const StepNumbers& step) {
  const size_t bucket = bucket_of(kStepBounds, step.step_seconds);
  ledger::StepTotalsRow& sum = by_bucket_[bucket];
  sum.seconds_max =
      bucket < kStepBounds.size() ? kStepBounds[bucket] : std::numeric_limits<double>::infinity();
  sum.steps += 1;
  sum.tokens += step.tokens;
  sum.seconds += step.step_seconds;
}

void StepTotals::write(Connection& connection, int64_t run) {
  for (const auto& [bucket, sum] : by_bucket_) ledger::add_step_totals(connection, run, sum);
  by_bucket_.clear();
}

CostNumbers cost_numbers(const decide::State& state, const decide::Policy& policy) {
  const decide::Account account = decide::account_now(state, policy);
  const decide::Statement made =
      decide::statement(account, policy.economics.speedup, policy.economics.loss_exponent);
  CostNumbers numbers;
  if (decide::is_measured(made.speedup)) {
    numbers.speedup = made.speedup.value;
    if (made.useful_steps > 0) numbers.net_speedup = made.net;
  }
  numbers.verification_share = decide::verification_share(made);
  numbers.hazard_per_step = decide::hazard_mean(state.money.hazard);
  numbers.steps_lost = decide::steps_lost(account);
  return numbers;
}

void add_state(RunNumbers& numbers, const decide::State& state, const decide::Policy& policy) {
  numbers.phase = decide::phase_name(state);
  numbers.paused = state.paused;
  numbers.costs = cost_numbers(state, policy);
  if (numbers.phase == "ended") numbers.verdict = decide::VerdictKind::kEnded;
}

std::function<void(RunNumbers&)> load_standing(Connection& connection, int64_t run) {
  std::optional<decide::CloseWindow> window;
  std::optional<int64_t> verified_step;
  Query standing = connection.query(views::kVerified, run);
  if (standing.next()) {
    verified_step = standing.optional_integer(0);
    if (const std::optional<int64_t> measured = standing.optional_integer(1)) {
      const auto row = ledger::find_window(connection, run, *measured).value();
      window = {row, row.window, row.state};
    }
  }
  return [window, verified_step](RunNumbers& numbers) {
    record_window(numbers, window);
    numbers.verified_step = verified_step;
  };
}

RunNumbers load_run_numbers(Connection& connection, int64_t run) {
  RunNumbers numbers;
  load_step_totals(connection, run, numbers);
  load_newest_step(connection, run, numbers);
  load_counts(
      connection.query(
          "SELECT state, count(*) FROM windows WHERE run = ? AND state <> 'open' GROUP BY state",
          run),
      numbers.windows);
  load_counts(
      connection.query("SELECT kind, count(*) FROM decisions WHERE run = ? GROUP BY kind", run),
      numbers.decisions);
  load_counts(
      connection.query("SELECT kind, count(*) FROM directives WHERE run = ? GROUP BY kind", run),
      numbers.directives);
  load_counts(
      connection.query("SELECT kind, count(*) FROM notices WHERE run = ? GROUP BY kind", run),
      numbers.notices);
  load_standing(connection, run)(numbers);
  load_shadow(connection, run, numbers);
  load_layers(connection, run, numbers);
  Query verify = connection.query(
      "SELECT coalesce(sum(replay_seconds + eval_seconds), 0.0) FROM results WHERE run = ?", run);
  if (verify.next()) numbers.verify_seconds = verify.real(0);
  if (std::optional<DeviceHealthRow> health = ledger::newest_health(connection, run)) {
    record_device(numbers, health->host, from_json<DeviceHealth>(health->body));
  }
  if (const auto statistics = ledger::newest_statistics(connection, run)) {
    record_statistics(numbers, *statistics);
  }
  return numbers;
}

}  // namespace gnomon

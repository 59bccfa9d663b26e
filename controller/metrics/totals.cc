#include "controller/metrics/totals.h"

#include <algorithm>
#include <limits>

#include "controller/decide/decide.h"
#include "controller/decide/worth.h"
#include "controller/layers.h"
#include "protocol/json.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_health.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

size_t bucket_of(double seconds) {
  const std::vector<double>& buckets = step_duration_buckets();
  return static_cast<size_t>(std::lower_bound(buckets.begin(), buckets.end(), seconds) -
                             buckets.begin());
}

void load_step_totals(Connection& connection, int64_t run, RunTotals& totals) {
  const std::vector<double>& buckets = step_duration_buckets();
  totals.step_duration_counts.assign(buckets.size() + 1, 0);
  for (const ledger::StepTotalsRow& row : ledger::step_totals(connection, run)) {
    totals.steps += static_cast<double>(row.steps);
    totals.tokens += static_cast<double>(row.tokens);
    totals.train_seconds += row.seconds;
    totals.step_duration_counts[bucket_of(row.seconds_max)] += static_cast<double>(row.steps);
  }
}

void load_newest_step(Connection& connection, int64_t run, RunTotals& totals) {
  totals.attempt = ledger::newest_attempt(connection, run);
  Query query = connection.query(
      "SELECT attempt, step FROM steps WHERE run = ? ORDER BY attempt DESC, step DESC LIMIT 1",
      run);
  if (query.next()) {
    const auto row = ledger::find_step(connection, run, query.integer(0), query.integer(1));
    totals.newest_step = {*row, row->reported_at};
  }
}

std::map<std::string, double> counts(Query query) {
  std::map<std::string, double> result;
  while (query.next()) {
    result[query.text(0)] = static_cast<double>(query.integer(1));
  }
  return result;
}

void load_newest_window(Connection& connection, int64_t run, RunTotals& totals) {
  Query query = connection.query(
      "SELECT window, state, gap, offset_loss, d_percent, tolerance_percent FROM windows "
      "WHERE run = ? AND d_percent IS NOT NULL ORDER BY window DESC LIMIT 1",
      run);
  if (!query.next()) {
    return;
  }
  decide::CloseWindow close{{query.optional_real(2), query.optional_real(3), query.optional_real(4),
                             query.optional_real(5)},
                            query.integer(0),
                            query.text(1)};
  totals.newest_window = window_numbers(close);
}

void load_shadow(Connection& connection, int64_t run, RunTotals& totals) {
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
    totals.shadow_and_run_loss = {query.real(0), query.real(1)};
  }
}

void load_layers(Connection& connection, int64_t run, RunTotals& totals) {
  if (!totals.newest_step) {
    return;
  }
  std::optional<std::string> plan =
      ledger::find_plan(connection, run, totals.newest_step->plan_version);
  RunRegistration registration =
      from_json<RunRegistration>(ledger::load_run(connection, run).value().registration);
  if (plan) {
    totals.layers = layer_shares(*plan, registration.sites, registration.layers);
  }
}

}  // namespace

void StepTotals::add(const StepNumbers& step) {
  const std::vector<double>& buckets = step_duration_buckets();
  const size_t bucket = bucket_of(step.step_seconds);
  ledger::StepTotalsRow& sum = by_bucket_[bucket];
  sum.seconds_max =
      bucket < buckets.size() ? buckets[bucket] : std::numeric_limits<double>::infinity();
  sum.steps += 1;
  sum.tokens += step.tokens;
  sum.seconds += step.step_seconds;
}

void StepTotals::write(Connection& connection, int64_t run) {
  for (const auto& [bucket, sum] : by_bucket_) ledger::add_step_totals(connection, run, sum);
  by_bucket_.clear();
}

void add_steps(const std::vector<StepRow>& steps, RunTotals& totals) {
  for (const StepNumbers& step : steps) {
    totals.steps += 1;
    totals.tokens += static_cast<double>(step.tokens);
    totals.train_seconds += step.step_seconds;
    totals.step_duration_counts[bucket_of(step.step_seconds)] += 1;
  }
}

WindowNumbers window_numbers(const decide::CloseWindow& close) {
  WindowNumbers numbers{close.window, close.outcome, std::nullopt, std::nullopt, std::nullopt};
  if (close.d_percent) {
    numbers.gap_ratio = *close.d_percent / 100;
    numbers.tolerance_ratio = close.tolerance_percent.value_or(0) / 100;
    if (close.gap && close.offset_loss && *close.gap != 0) {
      numbers.offset_ratio = *close.offset_loss * (*close.d_percent / 100) / *close.gap;
    }
  }
  return numbers;
}

MoneyNumbers money_numbers(const decide::State& state, const decide::Policy& policy) {
  const decide::Account account = decide::account_now(state, policy);
  const decide::Statement made =
      decide::statement(account, policy.economics.speedup, policy.economics.loss_exponent);
  MoneyNumbers numbers;
  if (decide::is_measured(made.speedup)) {
    numbers.speedup = made.speedup.value;
    if (made.useful_steps > 0) numbers.net_speedup = made.net;
  }
  numbers.verification_share = decide::verification_share(made);
  numbers.hazard_per_step = decide::hazard_mean(state.money.hazard);
  numbers.steps_lost = decide::steps_lost(account);
  return numbers;
}

RunTotals load_run_totals(Connection& connection, int64_t run) {
  RunTotals totals;
  load_step_totals(connection, run, totals);
  load_newest_step(connection, run, totals);
  totals.windows = counts(connection.query(
      "SELECT state, count(*) FROM windows WHERE run = ? AND state <> 'open' GROUP BY state", run));
  totals.decisions = counts(
      connection.query("SELECT kind, count(*) FROM decisions WHERE run = ? GROUP BY kind", run));
  totals.directives = counts(
      connection.query("SELECT kind, count(*) FROM directives WHERE run = ? GROUP BY kind", run));
  totals.notices = counts(
      connection.query("SELECT kind, count(*) FROM notices WHERE run = ? GROUP BY kind", run));
  load_newest_window(connection, run, totals);
  load_shadow(connection, run, totals);
  load_layers(connection, run, totals);
  Query verify = connection.query(
      "SELECT coalesce(sum(replay_seconds + eval_seconds), 0.0) FROM results WHERE run = ?", run);
  totals.verify_seconds = verify.next() ? verify.real(0) : 0;
  Query verified = connection.query(
      "SELECT step FROM checkpoints WHERE run = ? AND verified_at IS NOT NULL ORDER BY verified_at "
      "DESC, attempt DESC, "
      "step DESC LIMIT 1",
      run);
  if (verified.next()) {
    totals.verified_step = verified.integer(0);
  }
  if (std::optional<DeviceHealthRow> health = ledger::newest_health(connection, run)) {
    totals.health = {health->host, from_json<DeviceHealth>(health->body)};
  }
  return totals;
}

}  // namespace gnomon

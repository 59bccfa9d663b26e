#include "storage/ledger_windows.h"

namespace gnomon::ledger {
namespace {

ReplayRow replay_row(Query& query) {
  return {query.integer(0),       query.integer(1), query.integer(2),      query.text(3),
          query.text(4),          query.text(5),    query.integer(6) != 0, query.integer(7),
          query.text(8),          query.integer(9), query.integer(10),     query.text(11),
          query.integer(12) != 0, query.real(13)};
}

}  // namespace

void insert_window(Connection& connection, int64_t run, const WindowRow& window, double now) {
  connection.execute(
      "INSERT INTO windows (run, window, kind, attempt, start_step, steps, start_uri, end_uri, "
      "plan_version, state, "
      "opened_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
      run, window.window, window.kind, window.attempt, window.start_step, window.steps,
      window.start_uri, window.end_uri, window.plan_version, window.state, now);
}

void close_window(Connection& connection, int64_t run, const WindowClose& close, double now) {
  connection.execute(
      "UPDATE windows SET state = ?, gap = ?, offset_loss = ?, d_percent = ?, tolerance_percent = "
      "?, closed_at = ?, gap_error = ?, rule = ?, statistic = ?, threshold = ?, scale_percent = ?, "
      "null_percent = ? WHERE run = ? AND window = ?",
      close.outcome, close.gap, close.offset, close.d_percent, close.tolerance_percent, now,
      close.gap_error, close.rule, close.statistic, close.threshold, close.scale_percent,
      close.null_percent, run, close.window);
}

void show_window(Connection& connection, int64_t run, const WindowClose& numbers) {
  connection.execute(
      "UPDATE windows SET gap = ?, offset_loss = ?, d_percent = ?, tolerance_percent = ?, "
      "gap_error = ?, rule = ?, statistic = ?, threshold = ?, scale_percent = ?, null_percent = ? "
      "WHERE run = ? AND window = ?",
      numbers.gap, numbers.offset, numbers.d_percent, numbers.tolerance_percent, numbers.gap_error,
      numbers.rule, numbers.statistic, numbers.threshold, numbers.scale_percent,
      numbers.null_percent, run, numbers.window);
}

std::optional<WindowRow> find_window(Connection& connection, int64_t run, int64_t window) {
  Query query = connection.query(
      "SELECT kind, attempt, start_step, steps, start_uri, end_uri, plan_version, state FROM "
      "windows "
      "WHERE run = ? AND window = ?",
      run, window);
  if (!query.next()) {
    return std::nullopt;
  }
  return WindowRow{window,           query.text(0),    query.integer(1),
                   query.integer(2), query.integer(3), query.text(4),
                   query.text(5),    query.integer(6), query.text(7)};
}

void insert_replay(Connection& connection, const ReplayRow& replay) {
  connection.execute(
      "INSERT INTO replays (run, replay, window, arm, plan, purpose, evaluate_endpoints, priority, "
      "state, token, ordered_at, nudge, avoid, on_trainer) "
      "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
      replay.run, replay.replay, replay.window, replay.arm, replay.plan, replay.purpose,
      replay.evaluate_endpoints, replay.priority, replay.state, replay.token, replay.ordered_at,
      replay.nudge, replay.avoid, replay.on_trainer);
}

std::optional<ReplayRow> find_replay(Connection& connection, int64_t run, int64_t replay) {
  Query query = connection.query(
      "SELECT run, replay, window, arm, plan, purpose, evaluate_endpoints, priority, state, token, "
      "nudge, avoid, on_trainer, ordered_at "
      "FROM replays "
      "WHERE run = ? AND replay = ?",
      run, replay);
  return query.next() ? std::optional<ReplayRow>(replay_row(query)) : std::nullopt;
}

std::vector<ReplayRow> queued_replays(Connection& connection) {
  std::vector<ReplayRow> replays;
  Query query = connection.query(
      "SELECT run, replay, window, arm, plan, purpose, evaluate_endpoints, priority, state, token, "
      "nudge, avoid, on_trainer, ordered_at "
      "FROM replays "
      "WHERE state = 'queued'");
  while (query.next()) {
    replays.push_back(replay_row(query));
  }
  return replays;
}

void set_replay_state(Connection& connection, int64_t run, int64_t replay, const std::string& state,
                      int64_t token, const std::string& fail_reason, double now) {
  bool ended = state == "done" || state == "failed" || state == "cancelled";
  connection.execute(
      "UPDATE replays SET state = ?, token = ?, fail_reason = coalesce(?, fail_reason), "
      "finished_at = ? "
      "WHERE run = ? AND replay = ?",
      state, token, fail_reason.empty() ? std::nullopt : std::optional<std::string>(fail_reason),
      ended ? std::optional<double>(now) : std::nullopt, run, replay);
}

int cancel_queued_replays(Connection& connection, int64_t run, int64_t window, double now) {
  return connection.execute(
      "UPDATE replays INDEXED BY replays_by_window SET state = 'cancelled', finished_at = ? WHERE "
      "run = ? AND window = ? AND state = 'queued'",
      now, run, window);
}

void insert_result(Connection& connection, const ReplayRow& replay, const std::string& verifier,
                   const std::string& fingerprint, const ReplayResult& result, double now) {
  connection.execute(
      "INSERT INTO results (run, replay, token, verifier, fingerprint, start_loss_bf16, "
      "start_loss_plan, "
      "run_end_loss_bf16, replay_end_loss_bf16, heldout_tokens, replay_seconds, eval_seconds, "
      "finished_at, gap_error, start_loss_fakequant) "
      "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
      replay.run, replay.replay, result.token, verifier, fingerprint, result.start_loss_bf16,
      result.start_loss_plan, result.run_end_loss_bf16, result.replay_end_loss_bf16,
      result.heldout_tokens, result.replay_seconds, result.eval_seconds, now, result.gap_error,
      result.start_loss_fakequant);
  for (const ReplayStep& step : result.steps) {
    connection.execute(
        "INSERT INTO replay_steps (run, replay, step, loss, grad_norm, weights_hash, batch_hash) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        replay.run, replay.replay, step.step, step.loss, step.grad_norm, step.weights_hash,
        step.batch_hash);
  }
  for (const SiteScoreRow& score : result.scores) {
    connection.execute(
        "INSERT OR IGNORE INTO scores (run, replay, site, phi, psi, sqnr_db) VALUES (?, ?, ?, ?, "
        "?, ?)",
        replay.run, replay.replay, score.site, score.phi, score.psi, score.sqnr_db);
  }
}

void insert_quarantine(Connection& connection, int64_t run, const std::string& verifier,
                       const std::string& reason, double now) {
  connection.execute(
      "INSERT OR IGNORE INTO quarantines (run, verifier, reason, since) VALUES (?, ?, ?, ?)", run,
      verifier, reason, now);
}

bool is_quarantined(Connection& connection, int64_t run, const std::string& verifier) {
  Query query =
      connection.query("SELECT 1 FROM quarantines WHERE run = ? AND verifier = ?", run, verifier);
  return query.next();
}

std::set<std::string> quarantined_verifiers(Connection& connection, int64_t run) {
  std::set<std::string> names;
  Query query = connection.query("SELECT verifier FROM quarantines WHERE run = ?", run);
  while (query.next()) names.insert(query.text(0));
  return names;
}

}  // namespace gnomon::ledger

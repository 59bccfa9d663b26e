#include "storage/ledger_windows.h"

namespace gnomon::ledger {

void close_window(Connection& connection, int64_t run, int64_t window, const std::string& state,
                  const GapNumbers& numbers, double now) {
  update<WindowRow, ", state = ?, closed_at = ? WHERE run = ? AND window = ?">(
      connection, numbers, state, now, run, window);
}

void show_window(Connection& connection, int64_t run, int64_t window, const GapNumbers& numbers) {
  update<WindowRow, "WHERE run = ? AND window = ?">(connection, numbers, run, window);
}

std::optional<WindowRow> find_window(Connection& connection, int64_t run, int64_t window) {
  return find<WindowRow, "WHERE run = ? AND window = ?">(connection, run, window);
}

std::optional<ReplayRow> find_replay(Connection& connection, int64_t run, int64_t replay) {
  return find<ReplayRow, "WHERE run = ? AND replay = ?">(connection, run, replay);
}

std::vector<ReplayRow> queued_replays(Connection& connection) {
  return select<ReplayRow, "WHERE state = 'queued'">(connection);
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
  insert(connection,
         ResultRow{result, replay.run, replay.replay, result.token, verifier, fingerprint, now});
  for (const ReplayStep& step : result.steps)
    insert(connection, ReplayStepRow{step, replay.run, replay.replay});
  for (const SiteScoreRow& score : result.scores)
    insert<ScoreRow, "INSERT OR IGNORE">(connection, {score, replay.run, replay.replay});
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

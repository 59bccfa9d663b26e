#include "storage/ledger_runs.h"

#include <algorithm>

namespace gnomon::ledger {

std::optional<int64_t> find_run(Connection& connection, const std::string& name,
                                const std::string& job_id) {
  Query query = connection.query("SELECT id FROM runs WHERE name = ? AND job_id = ?", name, job_id);
  return query.next() ? std::optional<int64_t>(query.integer(0)) : std::nullopt;
}

std::optional<RunRow> load_run(Connection& connection, int64_t run) {
  return find<RunRow, "WHERE id = ?">(connection, run);
}

std::vector<int64_t> run_ids(Connection& connection) {
  std::vector<int64_t> ids;
  Query query = connection.query("SELECT id FROM runs ORDER BY id");
  while (query.next()) {
    ids.push_back(query.integer(0));
  }
  return ids;
}

int64_t insert_run(Connection& connection, const RunRow& row) {
  connection.execute(
      "INSERT INTO runs (id, name, job_id, registration, policy, state, registered_at) VALUES (1 + "
      "max((SELECT coalesce(max(id), 0) FROM runs), (SELECT coalesce(max(run), 0) FROM audit)), "
      "?, ?, ?, ?, ?, ?)",
      row.name, row.job_id, row.registration, row.policy, row.state, row.registered_at);
  return connection.database().getLastInsertRowid();
}

void set_registration(Connection& connection, int64_t run, const std::string& registration) {
  connection.execute("UPDATE runs SET registration = ? WHERE id = ?", registration, run);
}

void set_policy(Connection& connection, int64_t run, const std::string& policy) {
  connection.execute("UPDATE runs SET policy = ? WHERE id = ?", policy, run);
}

void finish_run(Connection& connection, int64_t run, const RunFinished& finished, double now) {
  connection.execute(
      "UPDATE runs SET state = ?, finished_at = ?, finished_step = ?, final_loss = ?, "
      "train_seconds = ? WHERE id = ?",
      finished.outcome, now, finished.step, finished.final_loss, finished.train_seconds, run);
}

void revive_run(Connection& connection, int64_t run) {
  connection.execute(
      "UPDATE runs SET state = 'live', finished_at = NULL, finished_step = NULL, final_loss = "
      "NULL, "
      "train_seconds = NULL WHERE id = ?",
      run);
}

void insert_fault(Connection& connection, int64_t run, const InjectedFault& fault) {
  connection.execute(
      "INSERT INTO faults (run, kind, site, start_step, end_step, description) "
      "SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE NOT EXISTS (SELECT 1 FROM faults WHERE run = ?1 AND "
      "kind = ?2 "
      "AND site = ?3 AND start_step = ?4 AND end_step = ?5)",
      run, fault.kind, fault.site, fault.start_step, fault.end_step, fault.description);
}

std::optional<AttemptRow> find_attempt(Connection& connection, int64_t run, int64_t attempt) {
  return find<AttemptRow, "WHERE run = ? AND attempt = ?">(connection, run, attempt);
}

int64_t newest_attempt(Connection& connection, int64_t run) {
  Query query =
      connection.query("SELECT coalesce(max(attempt), 0) FROM attempts WHERE run = ?", run);
  return query.next() ? query.integer(0) : 0;
}

std::optional<StepRow> find_step(Connection& connection, int64_t run, int64_t attempt,
                                 int64_t step) {
  return find<StepRow, "WHERE run = ? AND attempt = ? AND step = ?">(connection, run, attempt,
                                                                     step);
}

bool insert_step(Connection& connection, const StepRow& step) {
  return insert<StepRow, "INSERT", "ON CONFLICT DO NOTHING">(connection, step) == 1;
}

std::optional<std::pair<int64_t, int64_t>> newest_step(Connection& connection, int64_t run) {
  Query query = connection.query(
      "SELECT attempt, step FROM steps WHERE run = ? ORDER BY attempt DESC, step DESC LIMIT 1",
      run);
  if (!query.next()) return std::nullopt;
  return std::pair(query.integer(0), query.integer(1));
}

std::vector<StepRow> steps_after(Connection& connection, int64_t run, int64_t seq) {
  std::vector<StepRow> events;
  Query query =
      query_rows<StepRow, "WHERE run = ? ORDER BY attempt DESC, step DESC">(connection, run);
  while (query.next()) {
    StepRow row = read_row<StepRow>(query);
    if (!row.seq) continue;
    if (*row.seq <= seq) break;  // numbers fall from here on
    events.push_back(std::move(row));
  }
  std::ranges::reverse(events);
  return events;
}

void each_step_event(Connection& connection, int64_t run,
                     const std::function<void(const StepRow&)>& each) {
  Query query = query_rows<StepRow, "WHERE run = ? AND seq IS NOT NULL ORDER BY attempt, step">(
      connection, run);
  while (query.next()) each(read_row<StepRow>(query));
}

void add_step_totals(Connection& connection, int64_t run, const StepTotalsRow& row) {
  connection.execute(
      "INSERT INTO step_totals (run, seconds_max, steps, tokens, seconds) VALUES (?1, ?2, ?3, ?4, "
      "?5) ON CONFLICT (run, seconds_max) DO UPDATE SET steps = steps + ?3, tokens = tokens + ?4, "
      "seconds = seconds + ?5",
      run, row.seconds_max, row.steps, row.tokens, row.seconds);
}

std::vector<StepTotalsRow> step_totals(Connection& connection, int64_t run) {
  std::vector<StepTotalsRow> rows;
  Query query = connection.query(
      "SELECT seconds_max, steps, tokens, seconds FROM step_totals WHERE run = ? "
      "ORDER BY seconds_max",
      run);
  while (query.next()) {
    rows.push_back({query.real(0), query.integer(1), query.integer(2), query.real(3)});
  }
  return rows;
}

std::vector<StepRow> steps_between(Connection& connection, int64_t run, int64_t attempt,
                                   int64_t from, int64_t to) {
  return select<StepRow, "WHERE run = ? AND attempt = ? AND step BETWEEN ? AND ? ORDER BY step">(
      connection, run, attempt, from, to);
}

std::optional<CheckpointRow> find_checkpoint(Connection& connection, int64_t run, int64_t attempt,
                                             int64_t step) {
  return find<CheckpointRow, "WHERE run = ? AND attempt = ? AND step = ?">(connection, run, attempt,
                                                                           step);
}

void mark_verified(Connection& connection, int64_t run, int64_t attempt, int64_t step, double now) {
  connection.execute(
      "UPDATE checkpoints SET verified_at = coalesce(verified_at, ?) WHERE run = ? AND attempt = ? "
      "AND step = ?",
      now, run, attempt, step);
}

void protect_checkpoints(Connection& connection, int64_t run,
                         const std::vector<std::string>& uris) {
  // By name: SQLite would rather read all checkpoints of the run.
  connection.execute(
      "UPDATE checkpoints INDEXED BY checkpoints_protected SET protected = 0 WHERE run = ? AND "
      "protected = 1",
      run);
  for (const std::string& uri : uris) {
    connection.execute("UPDATE checkpoints SET protected = 1 WHERE run = ? AND uri = ?", run, uri);
  }
}

std::vector<std::string> protected_checkpoints(Connection& connection, int64_t run) {
  std::vector<std::string> uris;
  Query query = connection.query(
      "SELECT uri FROM checkpoints INDEXED BY checkpoints_protected WHERE run = ? AND protected = "
      "1 "
      "ORDER BY attempt, step",
      run);
  while (query.next()) {
    uris.push_back(query.text(0));
  }
  return uris;
}

void insert_plan(Connection& connection, int64_t run, int64_t version, const std::string& toml,
                 double now) {
  connection.execute(
      "INSERT OR IGNORE INTO plans (run, version, toml, created_at) VALUES (?, ?, ?, ?)", run,
      version, toml, now);
}

std::optional<std::string> find_plan(Connection& connection, int64_t run, int64_t version) {
  Query query =
      connection.query("SELECT toml FROM plans WHERE run = ? AND version = ?", run, version);
  return query.next() ? std::optional<std::string>(query.text(0)) : std::nullopt;
}

}  // namespace gnomon::ledger

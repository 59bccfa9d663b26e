#include "cli/ledger_view.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>

#include <boost/json.hpp>
#include <cerrno>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "cli/newest_names.h"
#include "controller/decide/decide.h"
#include "protocol/json.h"
#include "storage/ledger_migrations.h"

namespace gnomon::cli {

namespace {

std::optional<double> optional_double(const SQLite::Column& column) {
  if (column.isNull()) return std::nullopt;
  return column.getDouble();
}

std::optional<int64_t> optional_integer(const SQLite::Column& column) {
  if (column.isNull()) return std::nullopt;
  return column.getInt64();
}

double number_or_nan(const SQLite::Column& column) {
  return column.isNull() ? std::numeric_limits<double>::quiet_NaN() : column.getDouble();
}

std::string text_or_empty(const SQLite::Column& column) {
  return column.isNull() ? std::string() : column.getString();
}

std::vector<std::string> string_array(const std::string& json) {
  boost::json::error_code error;
  boost::json::value parsed = boost::json::parse(json, error);
  std::vector<std::string> strings;
  if (error || !parsed.is_array()) return strings;
  for (const boost::json::value& item : parsed.get_array()) {
    if (item.is_string()) strings.emplace_back(item.get_string());
  }
  return strings;
}

std::unique_ptr<SQLite::Database> open_read_only(const std::filesystem::path& path) {
  constexpr int kBusyTimeoutMs = 5000;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    throw SystemError("read ledger", path.string(), error ? error.value() : ENOENT);
  }
  try {
    auto database = std::make_unique<SQLite::Database>(path, SQLite::OPEN_READONLY, kBusyTimeoutMs);
    database->execAndGet("SELECT count(*) FROM sqlite_master");
    return database;
  } catch (const SQLite::Exception& failure) {
    // A ledger in WAL mode on a read-only medium: nobody can be writing, so no lock and no -shm
    // file is needed.
    bool has_wal = std::filesystem::exists(path.string() + "-wal", error);
    if (failure.getErrorCode() != 14 /* SQLITE_CANTOPEN */ || has_wal) {
      throw FormatError(path.string(), 0, failure.what(), "an SQLite database");
    }
  }
  return std::make_unique<SQLite::Database>("file:" + path.string() + "?immutable=1",
                                            SQLite::OPEN_READONLY | SQLite::OPEN_URI);
}

void check_schema(SQLite::Database& database, const std::string& path) {
  constexpr long long kUserVersionOffset = 60;  // in the SQLite file header
  for (const char* table : {"runs", "steps", "windows", "decisions", "directives", "events"}) {
    if (!database.tableExists(table)) {
      throw FormatError(path, 0, fmt::format("a database without the table `{}`", table),
                        "a ledger written by gnomond");
    }
  }
  int version = database.execAndGet("PRAGMA user_version").getInt();
  if (version > LedgerView::kLedgerVersion) {
    throw FormatError(path, kUserVersionOffset, fmt::format("ledger version {}", version),
                      fmt::format("at most {}: use a newer gnomon", LedgerView::kLedgerVersion));
  }
}

RunRow read_run(SQLite::Statement& row) {
  RunRow run;
  run.id = row.getColumn(0).getInt64();
  run.name = row.getColumn(1).getString();
  run.job_id = row.getColumn(2).getString();
  run.registration = from_json<RunRegistration>(row.getColumn(3).getString());
  run.policy = row.getColumn(4).getString();
  run.state = row.getColumn(5).getString();
  run.registered_at = row.getColumn(6).getDouble();
  run.finished_at = optional_double(row.getColumn(7));
  run.finished_step = optional_integer(row.getColumn(8));
  run.final_loss = optional_double(row.getColumn(9));
  run.train_seconds = optional_double(row.getColumn(10));
  return run;
}

}  // namespace

LedgerView::LedgerView(const std::filesystem::path& path)
    : path_(path.string()), database_(open_read_only(path)) {
  check_schema(*database_, path_);
}

LedgerView::~LedgerView() = default;

std::vector<RunRow> LedgerView::runs() const {
  SQLite::Statement query(
      *database_,
      "SELECT id, name, job_id, registration, policy, state, registered_at, finished_at,"
      " finished_step, final_loss, train_seconds FROM runs ORDER BY id");
  std::vector<RunRow> rows;
  while (query.executeStep()) rows.push_back(read_run(query));
  return rows;
}

RunRow LedgerView::run_named(const std::string& name) const {
  std::vector<RunRow> all = runs();
  std::vector<std::string> known;
  known.reserve(all.size());
  for (const RunRow& run : all) known.push_back(fmt::format("{}/{}", run.name, run.job_id));
  for (auto run = all.rbegin(); run != all.rend(); ++run) {
    if (name.empty() || name == run->name || name == fmt::format("run-{}", run->id) ||
        name == run->name + "/" + run->job_id) {
      return *run;
    }
  }
  throw ConfigError(
      path_, 0, "run", name,
      known.empty() ? "a ledger with at least one run" : "one of: " + newest_names(known));
}

std::vector<AttemptRow> LedgerView::attempts(int64_t run) const {
  SQLite::Statement query(*database_,
                          "SELECT attempt, base_step, cause, plan_version, started_at"
                          " FROM attempts WHERE run = ? ORDER BY attempt");
  query.bind(1, run);
  std::vector<AttemptRow> rows;
  while (query.executeStep()) {
    rows.push_back({query.getColumn(0).getInt64(), query.getColumn(1).getInt64(),
                    query.getColumn(2).getString(), query.getColumn(3).getInt64(),
                    query.getColumn(4).getDouble()});
  }
  return rows;
}

std::vector<StepRow> LedgerView::steps(int64_t run) const {
  SQLite::Statement query(
      *database_,
      "SELECT attempt, step, plan_version, loss, grad_norm, learning_rate, tokens, step_seconds,"
      " reported_at FROM steps WHERE run = ? ORDER BY attempt, step");
  query.bind(1, run);
  std::vector<StepRow> rows;
  while (query.executeStep()) {
    rows.push_back({query.getColumn(0).getInt64(), query.getColumn(1).getInt64(),
                    query.getColumn(2).getInt64(), number_or_nan(query.getColumn(3)),
                    number_or_nan(query.getColumn(4)), query.getColumn(5).getDouble(),
                    query.getColumn(6).getInt64(), query.getColumn(7).getDouble(),
                    query.getColumn(8).getDouble()});
  }
  return rows;
}

std::vector<WindowRow> LedgerView::windows(int64_t run) const {
  SQLite::Statement query(
      *database_,
      "SELECT window, kind, attempt, start_step, steps, plan_version, state, gap, offset_loss,"
      " d_percent, tolerance_percent, opened_at, closed_at, rule, statistic, threshold,"
      " scale_percent FROM windows WHERE run = ? ORDER BY window");
  query.bind(1, run);
  std::vector<WindowRow> rows;
  while (query.executeStep()) {
    WindowRow row;
    row.window = query.getColumn(0).getInt64();
    row.kind = query.getColumn(1).getString();
    row.attempt = query.getColumn(2).getInt64();
    row.start_step = query.getColumn(3).getInt64();
    row.steps = query.getColumn(4).getInt64();
    row.plan_version = query.getColumn(5).getInt64();
    row.state = query.getColumn(6).getString();
    row.gap = optional_double(query.getColumn(7));
    row.offset = optional_double(query.getColumn(8));
    row.d_percent = optional_double(query.getColumn(9));
    row.tolerance_percent = optional_double(query.getColumn(10));
    row.opened_at = query.getColumn(11).getDouble();
    row.closed_at = optional_double(query.getColumn(12));
    row.rule = query.getColumn(13).getString();
    row.statistic = optional_double(query.getColumn(14));
    row.threshold = optional_double(query.getColumn(15));
    row.scale_percent = optional_double(query.getColumn(16));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<DecisionRow> LedgerView::decisions(int64_t run) const {
  SQLite::Statement query(
      *database_,
      "SELECT decision, time, kind, verdict, action, enforced, attempt, step, window, sites,"
      " sentence, evidence, event_seq FROM decisions WHERE run = ? ORDER BY decision");
  query.bind(1, run);
  std::vector<DecisionRow> rows;
  while (query.executeStep()) {
    DecisionRow row;
    row.decision = query.getColumn(0).getInt64();
    row.time = query.getColumn(1).getDouble();
    row.kind = query.getColumn(2).getString();
    row.verdict = query.getColumn(3).getString();
    row.action = query.getColumn(4).getString();
    row.enforced = query.getColumn(5).getInt64() != 0;
    row.attempt = query.getColumn(6).getInt64();
    row.step = query.getColumn(7).getInt64();
    row.window = query.getColumn(8).getInt64();
    row.sites = string_array(query.getColumn(9).getString());
    row.sentence = query.getColumn(10).getString();
    row.evidence = query.getColumn(11).getString();
    row.event_seq = query.getColumn(12).getInt64();
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<DirectiveRow> LedgerView::directives(int64_t run) const {
  SQLite::Statement query(
      *database_,
      "SELECT number, kind, plan, plan_version, to_step, reason, state, issued_at,"
      " applied_attempt, applied_step, reject_reason FROM directives WHERE run = ?"
      " ORDER BY number");
  query.bind(1, run);
  std::vector<DirectiveRow> rows;
  while (query.executeStep()) {
    rows.push_back({query.getColumn(0).getInt64(), query.getColumn(1).getString(),
                    query.getColumn(2).getString(), query.getColumn(3).getInt64(),
                    query.getColumn(4).getInt64(), query.getColumn(5).getString(),
                    query.getColumn(6).getString(), query.getColumn(7).getDouble(),
                    optional_integer(query.getColumn(8)), optional_integer(query.getColumn(9)),
                    text_or_empty(query.getColumn(10))});
  }
  return rows;
}

std::vector<PlanRow> LedgerView::plans(int64_t run) const {
  SQLite::Statement query(*database_,
                          "SELECT version, toml FROM plans WHERE run = ? ORDER BY version");
  query.bind(1, run);
  std::vector<PlanRow> rows;
  while (query.executeStep()) {
    rows.push_back({query.getColumn(0).getInt64(), query.getColumn(1).getString()});
  }
  return rows;
}

std::vector<InjectedFault> LedgerView::faults(int64_t run) const {
  SQLite::Statement query(*database_,
                          "SELECT kind, site, start_step, end_step, description FROM faults"
                          " WHERE run = ? ORDER BY start_step, rowid");
  query.bind(1, run);
  std::vector<InjectedFault> rows;
  while (query.executeStep()) {
    rows.push_back({query.getColumn(0).getString(), query.getColumn(1).getString(),
                    query.getColumn(2).getInt64(), query.getColumn(3).getInt64(),
                    query.getColumn(4).getString()});
  }
  return rows;
}

std::vector<ShadowStepRow> LedgerView::shadow_steps(int64_t run) const {
  SQLite::Statement query(
      *database_,
      "SELECT r.window, w.attempt, s.step, s.loss FROM replay_steps s"
      " JOIN replays r ON r.run = s.run AND r.replay = s.replay"
      " JOIN windows w ON w.run = r.run AND w.window = r.window"
      " WHERE s.run = ? AND r.arm = 'bf16' AND r.purpose = 'shadow' AND r.state = 'done'"
      " ORDER BY r.window, s.step");
  query.bind(1, run);
  std::vector<ShadowStepRow> rows;
  while (query.executeStep()) {
    rows.push_back({query.getColumn(0).getInt64(), query.getColumn(1).getInt64(),
                    query.getColumn(2).getInt64(), number_or_nan(query.getColumn(3))});
  }
  return rows;
}

std::vector<ReplayRow> LedgerView::replays(int64_t run) const {
  SQLite::Statement query(
      *database_,
      "SELECT replay, window, arm, plan, purpose, evaluate_endpoints, nudge, avoid, on_trainer"
      " FROM replays WHERE run = ? ORDER BY replay");
  query.bind(1, run);
  std::vector<ReplayRow> rows;
  while (query.executeStep()) {
    rows.push_back({query.getColumn(0).getInt64(), query.getColumn(1).getInt64(),
                    query.getColumn(2).getString(), text_or_empty(query.getColumn(3)),
                    query.getColumn(4).getString(), query.getColumn(5).getInt() != 0,
                    query.getColumn(6).getInt64(), query.getColumn(7).getString(),
                    query.getColumn(8).getInt() != 0});
  }
  return rows;
}

std::vector<EventRow> LedgerView::events(int64_t run, int64_t after) const {
  // The report of a step is an event without a row of its own.
  SQLite::Statement query(
      *database_,
      "SELECT seq, time, type, attempt, step, body FROM events WHERE run = ?1 AND seq > ?2"
      " UNION ALL SELECT seq, reported_at, 'step_reported', attempt, step, NULL FROM steps"
      " WHERE run = ?1 AND seq > ?2 ORDER BY 1");
  query.bind(1, run);
  query.bind(2, after);
  std::vector<EventRow> rows;
  while (query.executeStep()) {
    rows.push_back({query.getColumn(0).getInt64(), query.getColumn(1).getDouble(),
                    query.getColumn(2).getString(), optional_integer(query.getColumn(3)),
                    optional_integer(query.getColumn(4)), text_or_empty(query.getColumn(5))});
  }
  return rows;
}

double LedgerView::verify_seconds(int64_t run) const {
  SQLite::Statement query(
      *database_,
      "SELECT coalesce(sum(replay_seconds + eval_seconds), 0) FROM results WHERE run = ?");
  query.bind(1, run);
  query.executeStep();
  return query.getColumn(0).getDouble();
}

std::optional<LedgerView::DecisionState> LedgerView::decision_state(int64_t run) const {
  SQLite::Statement query(*database_, "SELECT seq, body FROM decision_state WHERE run = ?");
  query.bind(1, run);
  if (!query.executeStep()) return std::nullopt;
  return DecisionState{query.getColumn(0).getInt64(), query.getColumn(1).getString()};
}

namespace {

// One that is not is computed from the run's events.
bool readable(const LedgerView::DecisionState& state) {
  try {
    decide::state_from_json(state.json);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

RunHistory load_history(const LedgerView& ledger, const std::string& run_name) {
  RunHistory history;
  history.run = ledger.run_named(run_name);
  int64_t id = history.run.id;
  history.attempts = ledger.attempts(id);
  history.steps = ledger.steps(id);
  history.windows = ledger.windows(id);
  history.decisions = ledger.decisions(id);
  history.directives = ledger.directives(id);
  history.plans = ledger.plans(id);
  history.faults = ledger.faults(id);
  history.shadow = ledger.shadow_steps(id);
  history.verify_seconds = ledger.verify_seconds(id);
  history.decision_state = ledger.decision_state(id);
  if (history.decision_state && !readable(*history.decision_state)) history.decision_state.reset();
  history.events_since =
      ledger.events(id, history.decision_state ? history.decision_state->seq : 0);
  return history;
}

}  // namespace gnomon::cli

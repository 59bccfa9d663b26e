#include "cli/ledger_view.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <limits>

#include "base/errors.h"
#include "cli/newest_names.h"
#include "controller/decide/decide.h"
#include "protocol/json.h"
#include "storage/json_rows.h"
#include "storage/rows.h"
#include "storage/view_queries.h"

namespace gnomon::cli {

namespace {

SQLite::Database open_read_only(const std::filesystem::path& path) {
  constexpr int kBusyTimeoutMs = 5000;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    throw SystemError("read ledger", path.string(), error ? error.value() : ENOENT);
  }
  if (::access(path.c_str(), R_OK) != 0) throw SystemError("read ledger", path.string(), errno);
  try {
    SQLite::Database database(path, SQLite::OPEN_READONLY, kBusyTimeoutMs);
    database.execAndGet("SELECT count(*) FROM sqlite_master");
    return database;
  } catch (const SQLite::Exception& failure) {
    // A ledger in WAL mode on a read-only medium: nobody can be writing, so no lock and no -shm
    // file is needed.
    bool has_wal = std::filesystem::exists(path.string() + "-wal", error);
    if (failure.getErrorCode() == 26 /* SQLITE_NOTADB */) {
      throw FormatError(path.string(), 0, failure.what(), "an SQLite database");
    }
    if (failure.getErrorCode() != 14 /* SQLITE_CANTOPEN */ || has_wal) {
      throw Error(fmt::format("cannot read the ledger {}: {}", path.string(), failure.what()));
    }
  }
  return {"file:" + path.string() + "?immutable=1", SQLite::OPEN_READONLY | SQLite::OPEN_URI};
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

// A column that has come since the file was written is added by the next start of gnomond.
template <typename R>
void check_columns(Connection& connection, const std::string& path) try {
  ledger::query_rows<R, "LIMIT 0">(connection);
} catch (const SQLite::Exception& error) {
  throw FormatError(path, 0, error.what(),
                    "a ledger that gnomond of this version has opened: start it there once, or use "
                    "the gnomon that came with its gnomond");
}

template <typename R, ledger::Sql rest, typename... Values>
std::vector<R> checked(Connection& connection, const std::string& file, const Values&... values) {
  std::vector<R> rows = ledger::select<R, rest>(connection, values...);
  for (const R& row : rows) ledger::check_row(row, file);
  return rows;
}

}  // namespace

LedgerView::LedgerView(const std::filesystem::path& path)
    : path_(path.string()), connection_(std::make_unique<Connection>(open_read_only(path))) {
  check_schema(connection_->database(), path_);
#define GNOMON_TABLE(R) check_columns<R>(*connection_, path_);
  GNOMON_EACH_TABLE(GNOMON_TABLE)
#undef GNOMON_TABLE
}

LedgerView::~LedgerView() = default;

std::vector<RunRow> LedgerView::runs() const {
  return checked<RunRow, "ORDER BY id">(*connection_, path_);
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

std::string LedgerView::rows(const char* sql, int64_t run) const {
  Query query = connection_->query(sql, run, 0, std::numeric_limits<int64_t>::max());
  return rows_as_json(query);
}

std::string LedgerView::summary(int64_t run) const {
  Query query = connection_->query(views::kRunSummary, run);
  return rows_as_json(query);
}

std::vector<AttemptRow> LedgerView::attempts(int64_t run) const {
  return checked<AttemptRow, "WHERE run = ? ORDER BY attempt">(*connection_, path_, run);
}

std::vector<StepRow> LedgerView::steps(int64_t run) const {
  return checked<StepRow, "WHERE run = ? ORDER BY attempt, step">(*connection_, path_, run);
}

std::vector<WindowRow> LedgerView::windows(int64_t run) const {
  return checked<WindowRow, "WHERE run = ? ORDER BY window">(*connection_, path_, run);
}

std::vector<DecisionRow> LedgerView::decisions(int64_t run) const {
  return checked<DecisionRow, "WHERE run = ? ORDER BY decision">(*connection_, path_, run);
}

std::vector<DirectiveRow> LedgerView::directives(int64_t run) const {
  return checked<DirectiveRow, "WHERE run = ? ORDER BY number">(*connection_, path_, run);
}

std::vector<PlanRow> LedgerView::plans(int64_t run) const {
  return checked<PlanRow, "WHERE run = ? ORDER BY version">(*connection_, path_, run);
}

std::vector<FaultRow> LedgerView::faults(int64_t run) const {
  return checked<FaultRow, "WHERE run = ? ORDER BY start_step, rowid">(*connection_, path_, run);
}

std::vector<ShadowStepRow> LedgerView::shadow_steps(int64_t run) const {
  Query query = connection_->query(
      "SELECT r.window, w.attempt, s.step, s.loss FROM replay_steps s"
      " JOIN replays r ON r.run = s.run AND r.replay = s.replay"
      " JOIN windows w ON w.run = r.run AND w.window = r.window"
      " WHERE s.run = ? AND r.arm = 'bf16' AND r.purpose = 'shadow' AND r.state = 'done'"
      " ORDER BY r.window, s.step",
      run);
  std::vector<ShadowStepRow> rows;
  while (query.next()) rows.push_back(ledger::read_row<ShadowStepRow>(query));
  return rows;
}

std::vector<ReplayRow> LedgerView::replays(int64_t run) const {
  return checked<ReplayRow, "WHERE run = ? ORDER BY replay">(*connection_, path_, run);
}

std::vector<EventRow> LedgerView::events(int64_t run, int64_t after) const {
  // The report of a step is an event without a row of its own.
  return checked<EventRow,
                 "WHERE run = ?1 AND seq > ?2 UNION ALL SELECT run, seq, reported_at, "
                 "'step_reported', attempt, step, NULL FROM steps WHERE run = ?1 AND seq > ?2 "
                 "ORDER BY seq">(*connection_, path_, run, after);
}

double LedgerView::verify_seconds(int64_t run) const {
  Query query = connection_->query(
      "SELECT coalesce(sum(replay_seconds + eval_seconds), 0) FROM results WHERE run = ?", run);
  query.next();
  return query.real(0);
}

std::optional<LedgerView::DecisionState> LedgerView::decision_state(int64_t run) const {
  Query query = connection_->query("SELECT seq, body FROM decision_state WHERE run = ?", run);
  if (!query.next()) return std::nullopt;
  return DecisionState{query.integer(0), query.text(1)};
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

RunHistory load_core_state(const LedgerView& ledger, const std::string& run_name) {
  RunHistory history;
  history.run = ledger.run_named(run_name);
  const int64_t id = history.run.id;
  history.decision_state = ledger.decision_state(id);
  if (history.decision_state && !readable(*history.decision_state)) history.decision_state.reset();
  history.events_since =
      ledger.events(id, history.decision_state ? history.decision_state->seq : 0);
  return history;
}

RunHistory load_history(const LedgerView& ledger, const std::string& run_name) {
  RunHistory history = load_core_state(ledger, run_name);
  history.registration = from_json<RunRegistration>(history.run.registration);
  const int64_t id = history.run.id;
  history.attempts = ledger.attempts(id);
  history.steps = ledger.steps(id);
  history.windows = ledger.windows(id);
  history.decisions = ledger.decisions(id);
  history.directives = ledger.directives(id);
  history.plans = ledger.plans(id);
  history.faults = ledger.faults(id);
  history.shadow = ledger.shadow_steps(id);
  history.verify_seconds = ledger.verify_seconds(id);
  return history;
}

}  // namespace gnomon::cli

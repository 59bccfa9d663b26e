#include "storage/ledger_migrations.h"

#include <SQLiteCpp/Statement.h>
#include <SQLiteCpp/Transaction.h>
#include <fmt/format.h>
#include <sqlite3.h>

#include <array>
#include <set>

#include "base/failpoint.h"
#include "base/files.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_file.h"
#include "storage/ledger_schema.h"

namespace gnomon {
namespace {

// "Gnom" in PRAGMA application_id, so that a foreign SQLite file is told from an old ledger.
constexpr int kApplicationId = 0x476e6f6d;

constexpr const char* kFrom1To2 = R"sql(
ALTER TABLE attempts ADD COLUMN fingerprint TEXT;

CREATE TABLE overrides (
  run        INTEGER NOT NULL,
  override   INTEGER NOT NULL,
  kind       TEXT NOT NULL,
  plan       TEXT NOT NULL,
  mode       TEXT NOT NULL,
  owner      TEXT NOT NULL,
  reason     TEXT NOT NULL,
  asked_at   REAL NOT NULL,
  expires_at REAL,
  decision   INTEGER NOT NULL,
  directive  INTEGER,
  PRIMARY KEY (run, override)
) STRICT, WITHOUT ROWID;

CREATE TABLE notices (
  run          INTEGER NOT NULL,
  notice       INTEGER NOT NULL,
  attempt      INTEGER NOT NULL,
  step         INTEGER NOT NULL,
  kind         TEXT NOT NULL,
  text         TEXT NOT NULL,
  plan_version INTEGER NOT NULL,
  noticed_at   REAL NOT NULL,
  reported_at  REAL NOT NULL,
  PRIMARY KEY (run, notice),
  UNIQUE (run, kind, attempt, step, noticed_at, text)
) STRICT, WITHOUT ROWID;
)sql";

constexpr const char* kFrom2To3 = R"sql(
CREATE TABLE statistics_steps (
  run          INTEGER NOT NULL,
  attempt      INTEGER NOT NULL,
  step         INTEGER NOT NULL,
  plan_version INTEGER NOT NULL,
  measured_at  REAL NOT NULL,
  reported_at  REAL NOT NULL,
  PRIMARY KEY (run, attempt, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE statistics (
  run        INTEGER NOT NULL,
  attempt    INTEGER NOT NULL,
  step       INTEGER NOT NULL,
  site       TEXT NOT NULL,
  tensor     TEXT NOT NULL,
  gemm       TEXT NOT NULL,
  recipe     TEXT NOT NULL,
  in_use     INTEGER NOT NULL,
  amax       REAL,
  kurtosis   REAL,
  underflow  REAL,
  saturation REAL,
  sqnr_db    REAL,
  body       TEXT NOT NULL,
  PRIMARY KEY (run, attempt, step, site, tensor, gemm, recipe, in_use)
) STRICT, WITHOUT ROWID;
)sql";

constexpr const char* kFrom3To4 = R"sql(
ALTER TABLE attempts ADD COLUMN host TEXT NOT NULL DEFAULT '';
ALTER TABLE steps ADD COLUMN batch_hash TEXT NOT NULL DEFAULT '';
ALTER TABLE replay_steps ADD COLUMN batch_hash TEXT NOT NULL DEFAULT '';
ALTER TABLE windows ADD COLUMN gap_error REAL;
ALTER TABLE windows ADD COLUMN rule TEXT NOT NULL DEFAULT '';
ALTER TABLE windows ADD COLUMN statistic REAL;
ALTER TABLE windows ADD COLUMN threshold REAL;
ALTER TABLE windows ADD COLUMN scale_percent REAL;
ALTER TABLE windows ADD COLUMN null_percent REAL;
ALTER TABLE replays ADD COLUMN nudge INTEGER NOT NULL DEFAULT 0;
ALTER TABLE replays ADD COLUMN avoid TEXT NOT NULL DEFAULT '';
ALTER TABLE replays ADD COLUMN on_trainer INTEGER NOT NULL DEFAULT 0;
ALTER TABLE results ADD COLUMN gap_error REAL;
ALTER TABLE results ADD COLUMN start_loss_fakequant REAL;

CREATE TABLE scores (
  run     INTEGER NOT NULL,
  replay  INTEGER NOT NULL,
  site    TEXT NOT NULL,
  phi     REAL,
  psi     REAL,
  sqnr_db REAL,
  PRIMARY KEY (run, replay, site)
) STRICT, WITHOUT ROWID;

CREATE TABLE quarantines (
  run      INTEGER NOT NULL,
  verifier TEXT NOT NULL,
  reason   TEXT NOT NULL,
  since    REAL NOT NULL,
  PRIMARY KEY (run, verifier)
) STRICT, WITHOUT ROWID;
)sql";

constexpr const char* kFrom4To5 = R"sql(
CREATE TABLE device_health (
  run             INTEGER NOT NULL,
  sample          INTEGER NOT NULL,
  attempt         INTEGER NOT NULL,
  step            INTEGER NOT NULL,
  host            TEXT NOT NULL,
  device          TEXT NOT NULL,
  sampled_at      REAL NOT NULL,
  reported_at     REAL NOT NULL,
  ecc_uncorrected INTEGER,
  ecc_told        INTEGER,
  body            TEXT NOT NULL,
  PRIMARY KEY (run, sample)
) STRICT, WITHOUT ROWID;
)sql";

constexpr const char* kFrom5To6 = R"sql(
ALTER TABLE steps ADD COLUMN seq INTEGER;

CREATE TABLE step_totals (
  run         INTEGER NOT NULL,
  seconds_max REAL NOT NULL,
  steps       INTEGER NOT NULL,
  tokens      INTEGER NOT NULL,
  seconds     REAL NOT NULL,
  PRIMARY KEY (run, seconds_max)
) STRICT, WITHOUT ROWID;

WITH bounds (seconds_max) AS (VALUES (0.005), (0.01), (0.025), (0.05), (0.1), (0.25), (0.5), (1.0),
  (2.5), (5.0), (10.0), (30.0), (60.0), (120.0), (9e999))
INSERT INTO step_totals SELECT run,
  (SELECT min(seconds_max) FROM bounds WHERE seconds_max >= step_seconds) AS bound,
  count(*), sum(tokens), sum(step_seconds) FROM steps GROUP BY run, bound;

ALTER TABLE audit RENAME TO audit_5;
CREATE TABLE audit (
  id        INTEGER PRIMARY KEY,
  time      REAL NOT NULL,
  run       INTEGER,
  what      TEXT NOT NULL,
  detail    TEXT NOT NULL,
  principal TEXT NOT NULL,
  hash      TEXT NOT NULL
) STRICT;

CREATE INDEX runs_by_state ON runs (state);
CREATE INDEX faults_by_run ON faults (run);
CREATE INDEX audit_by_run ON audit (run);
CREATE INDEX replays_by_window ON replays (run, window);
CREATE INDEX checkpoints_verified ON checkpoints (run, verified_at, attempt, step)
  WHERE verified_at IS NOT NULL;
)sql";

constexpr const char* kFrom6To7 = R"sql(
CREATE TABLE outbox (
  id          INTEGER PRIMARY KEY AUTOINCREMENT,
  receiver    TEXT NOT NULL,
  run         INTEGER NOT NULL,
  kind        TEXT NOT NULL,
  delivery    TEXT NOT NULL,
  alert       TEXT NOT NULL,
  queued_at   REAL NOT NULL,
  tries       INTEGER NOT NULL DEFAULT 0,
  next_try_at REAL,
  last_error  TEXT
) STRICT;
CREATE INDEX outbox_by_receiver ON outbox (receiver);
CREATE INDEX outbox_by_run ON outbox (receiver, run);

CREATE TABLE conditions (
  run   INTEGER NOT NULL,
  kind  TEXT NOT NULL,
  since REAL NOT NULL,
  alert TEXT NOT NULL,
  PRIMARY KEY (run, kind)
) STRICT, WITHOUT ROWID;
)sql";

// Whoever was told of what lasts is not known: all are told once more.
constexpr const char* kFrom7To8 = R"sql(
CREATE TABLE conditions_8 (
  run   INTEGER NOT NULL,
  kind  TEXT NOT NULL,
  since REAL NOT NULL,
  alert TEXT NOT NULL,
  told  TEXT NOT NULL,
  PRIMARY KEY (run, kind)
) STRICT, WITHOUT ROWID;
INSERT INTO conditions_8 SELECT run, kind, since, alert, '[]' FROM conditions;
DROP TABLE conditions;
ALTER TABLE conditions_8 RENAME TO conditions;
)sql";

// Gives the rows there were their places in the chain.
void chain_audit(SQLite::Database& database) {
  SQLite::Statement rows(database, "SELECT id, time, run, what, detail FROM audit_5 ORDER BY id");
  SQLite::Statement insert(database, "INSERT INTO audit VALUES (?, ?, ?, ?, ?, '', ?)");
  std::string hash = ledger::audit_root();
  while (rows.executeStep()) {
    ledger::AuditRow row;
    row.id = rows.getColumn(0).getInt64();
    row.time = rows.getColumn(1).getDouble();
    if (!rows.getColumn(2).isNull()) row.run = rows.getColumn(2).getInt64();
    row.what = rows.getColumn(3).getString();
    row.detail = rows.getColumn(4).getString();
    hash = ledger::audit_hash(hash, row);
    insert.bind(1, row.id);
    insert.bind(2, row.time);
    row.run ? insert.bind(3, *row.run) : insert.bind(3);
    insert.bind(4, row.what);
    insert.bind(5, row.detail);
    insert.bind(6, hash);
    insert.exec();
    insert.reset();
  }
  rows.reset();
  database.exec(R"sql(
DROP TABLE audit_5;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'rows of the audit log are never changed'); END;
CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'rows of the audit log are never deleted'); END;
CREATE TRIGGER audit_is_appended BEFORE INSERT ON audit WHEN NEW.id <= (SELECT max(id) FROM audit)
BEGIN SELECT RAISE(ABORT, 'rows of the audit log are only appended'); END;
)sql");
}

constexpr const char* kFrom8To9 = R"sql(
CREATE TABLE trainers (
  run         INTEGER PRIMARY KEY REFERENCES runs (id),
  incarnation TEXT NOT NULL,
  started_at  REAL NOT NULL
) STRICT;
)sql";

struct Migration {
  const char* sql;
  void (*then)(SQLite::Database&) = nullptr;  // in the same transaction
};

// Entry i brings version i + 1 to version i + 2. Steps that were released are never edited.
constexpr std::array<Migration, kLedgerVersion - 1> kMigrations = {{{kFrom1To2},
                                                                    {kFrom2To3},
                                                                    {kFrom3To4},
                                                                    {kFrom4To5},
                                                                    {kFrom5To6, chain_audit},
                                                                    {kFrom6To7},
                                                                    {kFrom7To8},
                                                                    {kFrom8To9}}};

void run_step(SQLite::Database& database, const Migration& step, int version) {
  SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
  database.exec(step.sql);
  if (step.then) step.then(database);
  database.exec(
      fmt::format("PRAGMA application_id={}; PRAGMA user_version={}", kApplicationId, version));
  failpoint::reached(failpoint::Point::kMigration);
  transaction.commit();
}

// Every column, index and trigger that a ledger of this version has, in words.
std::set<std::string> shape_of(SQLite::Database& database) {
  std::set<std::string> shape;
  SQLite::Statement parts(
      database,
      "SELECT 'column ' || c.name || ' of table ' || t.name FROM pragma_table_list t, "
      "pragma_table_info(t.name) c WHERE t.schema = 'main' AND t.name NOT LIKE 'sqlite%' "
      "UNION ALL SELECT type || ' ' || name FROM sqlite_schema WHERE type IN ('index', 'trigger') "
      "AND name NOT LIKE 'sqlite%'");
  while (parts.executeStep()) shape.insert(parts.getColumn(0).getString());
  return shape;
}

void quick_check(SQLite::Database& database, const std::filesystem::path& file) {
  const std::string check = database.execAndGet("PRAGMA quick_check(1)").getString();
  if (check != "ok") {
    throw LedgerError(
        fmt::format("the ledger {} is damaged: {}; {}", file.string(), check, kRestoreAdvice),
        SQLITE_CORRUPT);
  }
}

}  // namespace

void check_schema(SQLite::Database& database, const std::filesystem::path& file) {
  SQLite::Database fresh(":memory:", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
  fresh.exec(kLedgerSchema);
  const std::set<std::string> there = shape_of(database);
  for (const std::string& part : shape_of(fresh)) {
    if (!there.contains(part)) {
      throw LedgerError(fmt::format("the ledger {} says that it has version {} but has no {}; {}",
                                    file.string(), kLedgerVersion, part, kRestoreAdvice),
                        SQLITE_CORRUPT);
    }
  }
}

int ledger_version(SQLite::Database& database, const std::filesystem::path& file) {
  int version = database.execAndGet("PRAGMA user_version").getInt();
  int application = database.execAndGet("PRAGMA application_id").getInt();
  int64_t tables = database.execAndGet("SELECT count(*) FROM sqlite_schema").getInt64();
  if (application != kApplicationId && (tables > 0 || application != 0)) {
    throw LedgerError(
        fmt::format(
            "{} is an SQLite file of another program (application id {:#x}, a ledger has {:#x})",
            file.string(), application, kApplicationId),
        SQLITE_ERROR);
  }
  if (version > kLedgerVersion) {
    throw LedgerError(
        fmt::format("the ledger {} has version {}, written by a newer gnomond; this build accepts "
                    "up to version {}",
                    file.string(), version, kLedgerVersion),
        SQLITE_ERROR);
  }
  return version;
}

void inspect_ledger(const std::filesystem::path& file) try {
  if (file_bytes(file) == 0 || file_bytes(wal_of(file)) > 0) return;
  SQLite::Database database(sqlite_uri(file) + "?immutable=1",
                            SQLite::OPEN_READONLY | SQLite::OPEN_URI);
  ledger_version(database, file);
} catch (const SQLite::Exception& error) {
  throw ledger_error(fmt::format("cannot open the ledger {}", file.string()), error);
}

void make_ledger(const std::filesystem::path& file) try {
  std::filesystem::path made = file;
  made += ".new";
  std::error_code ignored;
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
    std::filesystem::remove(made.string() + suffix, ignored);
  }
  {
    SQLite::Database database(made.string(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
    run_step(database, {kLedgerSchema}, kLedgerVersion);
    database.exec("PRAGMA journal_mode=WAL");
  }
  sync_path(made);
  std::filesystem::rename(made, file);
  sync_path(std::filesystem::absolute(file).parent_path());
} catch (const SQLite::Exception& error) {
  throw ledger_error(fmt::format("cannot make the ledger {}", file.string()), error);
}

void migrate_and_check(Connection& writer, const std::filesystem::path& file,
                       bool look_at_pages) try {
  SQLite::Database& database = writer.database();
  int version = ledger_version(database, file);
  if (look_at_pages || version != kLedgerVersion) quick_check(database, file);
  if (version == 0) {
    run_step(database, {kLedgerSchema}, kLedgerVersion);
    return;
  }
  for (int next = version; version > 0 && next < kLedgerVersion; ++next) {
    run_step(database, kMigrations[static_cast<size_t>(next - 1)], next + 1);
  }
  check_schema(database, file);
} catch (const SQLite::Exception& error) {
  throw ledger_error(fmt::format("cannot prepare the ledger {}", file.string()), error);
}

}  // namespace gnomon

#include "storage/ledger_migrations.h"

#include <SQLiteCpp/Transaction.h>
#include <fmt/format.h>
#include <sqlite3.h>

#include <array>

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

// Entry i brings version i + 1 to version i + 2. Steps that were released are never edited.
constexpr std::array<const char*, kLedgerVersion - 1> kMigrations = {kFrom1To2, kFrom2To3,
                                                                     kFrom3To4, kFrom4To5};

// Throws LedgerError unless the file may become, or is, a ledger of this version or an older one.
// Returns its version; 0 = empty.
int check_version(SQLite::Database& database, const std::filesystem::path& file) {
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

// Indexes that views and lists rest on (controller/api/view_queries.h). They are no part of a
// version: an older gnomond keeps them up to date without knowing of them.
constexpr const char* kIndexes = R"sql(
CREATE INDEX IF NOT EXISTS runs_by_state ON runs (state);
CREATE INDEX IF NOT EXISTS faults_by_run ON faults (run);
CREATE INDEX IF NOT EXISTS audit_by_run ON audit (run);
CREATE INDEX IF NOT EXISTS replays_by_window ON replays (run, window);
CREATE INDEX IF NOT EXISTS checkpoints_verified ON checkpoints (run, verified_at, attempt, step)
  WHERE verified_at IS NOT NULL;
)sql";

// A file name inside an SQLite URI.
std::string uri_of(const std::filesystem::path& file) {
  std::string uri = "file:";
  for (char c : std::filesystem::absolute(file).string()) {
    bool plain = c != '?' && c != '#' && c != '%';
    uri += plain ? std::string(1, c) : fmt::format("%{:02x}", static_cast<unsigned char>(c));
  }
  return uri;
}

void run_step(SQLite::Database& database, const char* sql, int version) {
  SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
  database.exec(sql);
  database.exec(
      fmt::format("PRAGMA application_id={}; PRAGMA user_version={}", kApplicationId, version));
  transaction.commit();
}

}  // namespace

void inspect_ledger(const std::filesystem::path& file) try {
  std::filesystem::path wal = file;
  wal += "-wal";
  std::error_code missing;
  bool in_use = std::filesystem::exists(wal) && std::filesystem::file_size(wal, missing) > 0;
  if (!std::filesystem::exists(file) || std::filesystem::file_size(file, missing) == 0 || in_use) {
    return;
  }
  SQLite::Database database(uri_of(file) + "?immutable=1",
                            SQLite::OPEN_READONLY | SQLite::OPEN_URI);
  check_version(database, file);
} catch (const SQLite::Exception& error) {
  throw ledger_error(fmt::format("cannot open the ledger {}", file.string()), error);
}

void migrate_and_check(Connection& writer, const std::filesystem::path& file) try {
  SQLite::Database& database = writer.database();
  int version = check_version(database, file);
  std::string check = database.execAndGet("PRAGMA quick_check(1)").getString();
  if (check != "ok") {
    throw LedgerError(fmt::format("the ledger {} is damaged: {}", file.string(), check),
                      SQLITE_CORRUPT);
  }
  if (version == 0) {
    run_step(database, kLedgerSchema, kLedgerVersion);
  }
  for (int next = version; version > 0 && next < kLedgerVersion; ++next) {
    run_step(database, kMigrations[static_cast<size_t>(next - 1)], next + 1);
  }
  database.exec(kIndexes);
} catch (const SQLite::Exception& error) {
  throw ledger_error(fmt::format("cannot prepare the ledger {}", file.string()), error);
}

}  // namespace gnomon

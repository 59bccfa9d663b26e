#include "storage/ledger_migrations.h"

#include <SQLiteCpp/Statement.h>
#include <SQLiteCpp/Transaction.h>
#include <fmt/format.h>
#include <sqlite3.h>

#include <array>
#include <set>

#include "base/failpoint.h"
#include "base/files.h"
#include "storage/ledger_file.h"
#include "storage/ledger_schema.h"

namespace gnomon {
namespace {

// "Gnom" in PRAGMA application_id, so that a foreign SQLite file is told from an old ledger.
constexpr int kApplicationId = 0x476e6f6d;

// Entry i brings version i + 1 to version i + 2. Steps that were released are never edited.
constexpr std::array<Migration, kLedgerVersion - 1> kMigrations = {};

void run_step(SQLite::Database& database, const Migration& step, int version) {
  SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
  database.exec(step.sql);
  database.exec(
      fmt::format("PRAGMA application_id={}; PRAGMA user_version={}", kApplicationId, version));
  failpoint::reached(failpoint::Point::kMigration);
  transaction.commit();
}

// Columns that may be NULL and have come since the file was made. They need no version of their
// own: an older gnomond leaves them NULL.
void add_columns(SQLite::Database& database, SQLite::Database& fresh) {
  SQLite::Statement columns(
      fresh,
      "SELECT t.name, c.name, c.type FROM pragma_table_list t, pragma_table_info(t.name) c "
      "WHERE t.schema = 'main' AND t.name NOT LIKE 'sqlite%' AND c.\"notnull\" = 0 AND c.pk = 0");
  while (columns.executeStep()) {
    const std::string table = columns.getColumn(0).getString();
    SQLite::Statement known(database, "SELECT sum(name = ?2) FROM pragma_table_info(?1)");
    known.bind(1, table);
    known.bind(2, columns.getColumn(1).getString());
    // NULL: there is no such table, which check_schema() says.
    if (!known.executeStep() || known.isColumnNull(0) || known.getColumn(0).getInt() > 0) continue;
    database.exec(fmt::format("ALTER TABLE {} ADD COLUMN {} {}", table,
                              columns.getColumn(1).getString(), columns.getColumn(2).getString()));
  }
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
        fmt::format("the ledger {} has version {}, and this build reads up to version {}: run the "
                    "gnomond that wrote it, or give another file to --ledger",
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

void migrate(SQLite::Database& database, int version, std::span<const Migration> steps) {
  for (; version <= std::ssize(steps); ++version) {
    run_step(database, steps[static_cast<size_t>(version - 1)], version + 1);
  }
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
  migrate(database, version, kMigrations);
  SQLite::Database fresh(":memory:", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
  fresh.exec(kLedgerSchema);
  add_columns(database, fresh);
  check_schema(database, file);
} catch (const SQLite::Exception& error) {
  throw ledger_error(fmt::format("cannot prepare the ledger {}", file.string()), error);
}

}  // namespace gnomon

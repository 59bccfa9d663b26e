#include "storage/ledger_connection.h"

#include <SQLiteCpp/Transaction.h>
#include <fmt/format.h>
#include <sqlite3.h>

#include <array>
#include <cmath>
#include <limits>

#include "storage/ledger_schema.h"

namespace gnomon {
namespace {

constexpr int kBusyTimeoutMs = 5000;
// "Gnom" in PRAGMA application_id, so that a foreign SQLite file is told from an old ledger.
constexpr int kApplicationId = 0x476e6f6d;

// Entry i brings version i to version i + 1.
constexpr std::array<const char*, kLedgerVersion> kMigrations = {kSchemaVersion1};

int open_flags(Connection::Kind kind) {
  return kind == Connection::Kind::kWriter ? SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE
                                           : SQLite::OPEN_READWRITE;
}

}  // namespace

LedgerError::LedgerError(const std::string& message, int sqlite_code)
    : Error(message), disk_full_((sqlite_code & 0xff) == SQLITE_FULL) {}

LedgerError ledger_error(const std::string& action, const SQLite::Exception& error) {
  return LedgerError(fmt::format("{}: {}", action, error.what()), error.getErrorCode());
}

Query::~Query() {
  if (statement_) {
    statement_->tryReset();
  }
}

double Query::real(int column) const {
  return optional_real(column).value_or(std::numeric_limits<double>::quiet_NaN());
}

std::optional<double> Query::optional_real(int column) const {
  SQLite::Column value = statement_->getColumn(column);
  return value.isNull() ? std::nullopt : std::optional<double>(value.getDouble());
}

std::optional<int64_t> Query::optional_integer(int column) const {
  SQLite::Column value = statement_->getColumn(column);
  return value.isNull() ? std::nullopt : std::optional<int64_t>(value.getInt64());
}

Connection::Connection(const std::filesystem::path& file, Kind kind) try
    : database_(file.string(), open_flags(kind), kBusyTimeoutMs) {
  database_.exec("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;");
  if (kind == Kind::kReader) {
    database_.exec("PRAGMA wal_autocheckpoint=0; PRAGMA query_only=ON;");
  }
} catch (const SQLite::Exception& error) {
  throw ledger_error(fmt::format("cannot open the ledger {}", file.string()), error);
}

SQLite::Statement& Connection::prepared(const char* sql) {
  auto found = statements_.find(sql);
  if (found == statements_.end()) {
    auto statement = std::make_unique<SQLite::Statement>(database_, sql);
    std::string_view key = statement->getQuery();
    found = statements_.emplace(key, std::move(statement)).first;
  }
  found->second->clearBindings();
  return *found->second;
}

void Connection::bind(SQLite::Statement& statement, int index, int64_t value) {
  statement.bind(index, value);
}
void Connection::bind(SQLite::Statement& statement, int index, int value) {
  statement.bind(index, int64_t{value});
}
void Connection::bind(SQLite::Statement& statement, int index, bool value) {
  statement.bind(index, int64_t{value});
}
void Connection::bind(SQLite::Statement& statement, int index, double value) {
  if (std::isnan(value)) {
    statement.bind(index);
  } else {
    statement.bind(index, value);
  }
}
void Connection::bind(SQLite::Statement& statement, int index, const std::string& value) {
  statement.bind(index, value);
}
void Connection::bind(SQLite::Statement& statement, int index, const char* value) {
  statement.bind(index, value);
}

void migrate_and_check(Connection& writer, const std::filesystem::path& file) try {
  SQLite::Database& database = writer.database();
  int version = database.execAndGet("PRAGMA user_version").getInt();
  int application = database.execAndGet("PRAGMA application_id").getInt();
  int64_t tables = database.execAndGet("SELECT count(*) FROM sqlite_schema").getInt64();
  if (version > kLedgerVersion) {
    throw LedgerError(
        fmt::format("the ledger {} has version {}, written by a newer gnomond; this build accepts "
                    "up to version {}",
                    file.string(), version, kLedgerVersion),
        SQLITE_ERROR);
  }
  if (tables > 0 && application != kApplicationId) {
    throw LedgerError(
        fmt::format(
            "{} is an SQLite file of another program (application id {:#x}, a ledger has {:#x})",
            file.string(), application, kApplicationId),
        SQLITE_ERROR);
  }
  std::string check = database.execAndGet("PRAGMA quick_check(1)").getString();
  if (check != "ok") {
    throw LedgerError(fmt::format("the ledger {} is damaged: {}", file.string(), check),
                      SQLITE_CORRUPT);
  }
  SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
  for (int next = version; next < kLedgerVersion; ++next) {
    database.exec(kMigrations[static_cast<size_t>(next)]);
  }
  if (version < kLedgerVersion) {
    database.exec(fmt::format("PRAGMA application_id={}; PRAGMA user_version={}", kApplicationId,
                              kLedgerVersion));
  }
  transaction.commit();
} catch (const SQLite::Exception& error) {
  throw ledger_error(fmt::format("cannot prepare the ledger {}", file.string()), error);
}

}  // namespace gnomon

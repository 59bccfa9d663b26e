#include "storage/ledger_connection.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <cmath>
#include <limits>

#include "storage/ledger_file.h"

namespace gnomon {
namespace {

constexpr int64_t kWalKeptBytes = int64_t{16} << 20;

// A connection belongs to one thread at a time, its prepared statements too, so SQLite need not
// lock it at every bind and step.
int open_flags(Connection::Kind kind) {
  const int both = SQLite::OPEN_READWRITE | SQLite::OPEN_NOMUTEX;
  return kind == Connection::Kind::kWriter ? both | SQLite::OPEN_CREATE : both;
}

// No room for the -shm file, which is made with the first connection, is said otherwise.
bool is_full(int sqlite_code) {
  return (sqlite_code & 0xff) == SQLITE_FULL || sqlite_code == SQLITE_IOERR_SHMSIZE;
}

}  // namespace

LedgerError::LedgerError(const std::string& message, int sqlite_code)
    : Error(message),
      disk_full_(is_full(sqlite_code)),
      took_too_long_((sqlite_code & 0xff) == SQLITE_INTERRUPT) {}

LedgerError ledger_error(const std::string& action, const SQLite::Exception& error) {
  const int code = error.getErrorCode() & 0xff;
  if (code == SQLITE_INTERRUPT) {
    return LedgerError(action + ": it took too long and was ended", error.getErrorCode());
  }
  const int known =
      error.getExtendedErrorCode() > 0 ? error.getExtendedErrorCode() : error.getErrorCode();
  std::string more;
  if (code == SQLITE_CORRUPT) more = fmt::format(" (the file is damaged: {})", kRestoreAdvice);
  if (is_full(known)) more = " (no room is left on the disk, or in its quota)";
  return LedgerError(fmt::format("{}: {}{}", action, error.what(), more), known);
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
  merge_wal_when_closed(false);
  database_.exec(
      "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON; "
      "PRAGMA wal_autocheckpoint=0;");
  if (kind == Kind::kReader) {
    database_.exec("PRAGMA query_only=ON;");
  } else {
    // A WAL that has once grown keeps this much when it is begun anew.
    database_.exec(fmt::format("PRAGMA journal_size_limit={}", kWalKeptBytes));
  }
} catch (const SQLite::Exception& error) {
  throw ledger_error(fmt::format("cannot open the ledger {}", file.string()), error);
}

void Connection::merge_wal_when_closed(bool merge) {
  sqlite3_db_config(handle(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, merge ? 0 : 1, nullptr);
}

std::string sqlite_uri(const std::filesystem::path& file) {
  std::string uri = "file://";  // without an authority, which a path may seem to begin with
  for (char c : std::filesystem::absolute(file).string()) {
    bool plain = c != '?' && c != '#' && c != '%';
    uri += plain ? std::string(1, c) : fmt::format("%{:02x}", static_cast<unsigned char>(c));
  }
  return uri;
}

SQLite::Database open_for_looking(const std::filesystem::path& file) {
  const std::string action = fmt::format("cannot read the ledger {}", file.string());
  try {
    SQLite::Database database(file.string(), SQLite::OPEN_READONLY, Connection::kBusyTimeoutMs);
    database.execAndGet("SELECT count(*) FROM sqlite_schema");
    return database;
  } catch (const SQLite::Exception& error) {
    // On a medium that cannot be written there is no writer, and no -shm file can be made.
    const bool retry = (error.getErrorCode() & 0xff) == SQLITE_CANTOPEN &&
                       file_bytes(wal_of(file)) == 0 && file_bytes(file) > 0;
    if (!retry) throw ledger_error(action, error);
  }
  try {
    return SQLite::Database(sqlite_uri(file) + "?immutable=1",
                            SQLite::OPEN_READONLY | SQLite::OPEN_URI);
  } catch (const SQLite::Exception& error) {
    throw ledger_error(action, error);
  }
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

void Binder::operator()(double value) {
  if (std::isnan(value)) {
    statement_.bind(++index_);
  } else {
    statement_.bind(++index_, value);
  }
}

}  // namespace gnomon

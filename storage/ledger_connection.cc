#include "storage/ledger_connection.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <cmath>
#include <limits>

namespace gnomon {
namespace {

constexpr int kBusyTimeoutMs = 5000;

int open_flags(Connection::Kind kind) {
  return kind == Connection::Kind::kWriter ? SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE
                                           : SQLite::OPEN_READWRITE;
}

}  // namespace

LedgerError::LedgerError(const std::string& message, int sqlite_code)
    : Error(message), disk_full_((sqlite_code & 0xff) == SQLITE_FULL) {}

LedgerError ledger_error(const std::string& action, const SQLite::Exception& error) {
  bool damaged = (error.getErrorCode() & 0xff) == SQLITE_CORRUPT;
  return LedgerError(fmt::format("{}: {}{}", action, error.what(),
                                 damaged ? " (the file is damaged: restore a copy of it)" : ""),
                     error.getErrorCode());
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

std::optional<std::string> Query::optional_text(int column) const {
  SQLite::Column value = statement_->getColumn(column);
  return value.isNull() ? std::nullopt : std::optional<std::string>(value.getString());
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

}  // namespace gnomon

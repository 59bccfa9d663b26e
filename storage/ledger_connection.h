// One connection to the ledger's SQLite file, with its statements prepared once. NaN is written as
// NULL and read back as NaN, because SQLite has none; infinities are kept.
#pragma once

#include <SQLiteCpp/Database.h>
#include <SQLiteCpp/Statement.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/errors.h"

namespace gnomon {

// SQLite refused. `disk_full`: the disk is full, or the quota; both may pass by
// themselves.
class LedgerError : public Error {
 public:
  LedgerError(const std::string& message, int sqlite_code);
  bool disk_full() const { return disk_full_; }
  bool took_too_long() const { return took_too_long_; }  // a read that was ended

 private:
  bool disk_full_;
  bool took_too_long_;
};

// A prepared statement with its values bound, borrowed from a Connection until it goes out of
// scope. The same SQL text may be in use only once at a time on one connection.
class Query {
 public:
  explicit Query(SQLite::Statement& statement) : statement_(&statement) {}
  Query(Query&& other) noexcept : statement_(other.statement_) { other.statement_ = nullptr; }
  Query& operator=(Query&&) = delete;
  ~Query();

  // Moves to the next row; false when there is none.
  bool next() { return statement_->executeStep(); }
  bool is_null(int column) const { return statement_->getColumn(column).isNull(); }
  int64_t integer(int column) const { return statement_->getColumn(column).getInt64(); }
  double real(int column) const;  // NaN for NULL
  std::optional<double> optional_real(int column) const;
  std::optional<int64_t> optional_integer(int column) const;
  std::string text(int column) const { return statement_->getColumn(column).getString(); }
  SQLite::Statement& statement() { return *statement_; }

 private:
  SQLite::Statement* statement_;
};

// Gives a statement its parameters one by one. Texts are not copied where they outlive its run.
class Binder {
 public:
  enum class Texts { kCopied, kOutliveTheRun };
  Binder(SQLite::Statement& statement, Texts texts) : statement_(statement), texts_(texts) {}
  void operator()(int64_t value) { statement_.bind(++index_, value); }
  void operator()(int value) { statement_.bind(++index_, value); }
  void operator()(bool value) { statement_.bind(++index_, value ? 1 : 0); }
  void operator()(double value);  // NaN is NULL
  void operator()(const std::string& value) {
    if (texts_ == Texts::kCopied) {
      statement_.bind(++index_, value);
    } else {
      statement_.bindNoCopy(++index_, value);
    }
  }
  void operator()(std::string&& value) { statement_.bind(++index_, value); }
  void operator()(const char* value) { statement_.bind(++index_, value); }
  template <typename Value>
  void operator()(const std::optional<Value>& value) {
    if (value) {
      (*this)(*value);
    } else {
      statement_.bind(++index_);
    }
  }

 private:
  SQLite::Statement& statement_;
  Texts texts_;
  int index_ = 0;
};

class Connection {
 public:
  enum class Kind { kWriter, kReader };
  static constexpr int kBusyTimeoutMs = 5000;

  // Opens with WAL, synchronous=FULL, foreign keys and a busy timeout. A reader cannot write. None
  // checkpoints the WAL by itself: the ledger's writer does it at moments of its own.
  // Throws LedgerError.
  Connection(const std::filesystem::path& file, Kind kind);
  // For looking at a ledger (open_for_looking): changes nothing, not even settings of the file.
  explicit Connection(SQLite::Database database) : database_(std::move(database)) {}

  // `sql` with its parameters bound in order. int64_t, int, bool, double, std::string, const char*,
  // std::optional of these.
  template <typename... Values>
  Query query(const char* sql, const Values&... values) {
    SQLite::Statement& statement = prepared(sql);
    Query result(statement);
    Binder binder(statement, Binder::Texts::kCopied);
    (binder(values), ...);
    return result;
  }

  // Runs a statement that gives no rows; returns the number of rows it changed.
  template <typename... Values>
  int execute(const char* sql, const Values&... values) {
    return execute_with(sql, [&](Binder& binder) { (binder(values), ...); });
  }
  // The same, whose parameters `bind` gives.
  template <typename Bind>
  int execute_with(const char* sql, Bind bind) {
    SQLite::Statement& statement = prepared(sql);
    Query bound(statement);
    Binder binder(statement, Binder::Texts::kOutliveTheRun);
    bind(binder);
    return statement.exec();
  }

  SQLite::Database& database() { return database_; }
  sqlite3* handle() { return database_.getHandle(); }
  // Closing the last connection merges the WAL into the file and removes it, unless this is false.
  void merge_wal_when_closed(bool merge);
  // In whose name it writes (ledger::AuditedBy); empty: gnomond's own.
  std::string principal;

 private:
  SQLite::Statement& prepared(const char* sql);

  SQLite::Database database_;
  std::unordered_map<std::string_view, std::unique_ptr<SQLite::Statement>> statements_;
};

// A file name inside an SQLite URI: "file:/path/to/it".
std::string sqlite_uri(const std::filesystem::path& file);
// For looking at a ledger, which a daemon may be writing: nothing is changed or recovered, and the
// WAL is read too. Throws LedgerError.
SQLite::Database open_for_looking(const std::filesystem::path& file);

// `error` as a LedgerError that says what was being done.
LedgerError ledger_error(const std::string& action, const SQLite::Exception& error);

}  // namespace gnomon

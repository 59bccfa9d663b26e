#include "storage/ledger_audit.h"

#include <SQLiteCpp/Statement.h>
#include <fmt/format.h>

#include <bit>
#include <utility>

#include "base/sha256.h"

namespace gnomon::ledger {
namespace {

constexpr int64_t kRowsInOneRead = 10'000;

std::string counted(const std::string& text) { return fmt::format("{}:{}\n", text.size(), text); }

// Columns 0 to 6: id, time, run, what, detail, principal, hash.
AuditRecord row_of(SQLite::Statement& statement) {
  AuditRecord row;
  row.id = statement.getColumn(0).getInt64();
  row.time = statement.getColumn(1).getDouble();
  if (!statement.getColumn(2).isNull()) row.run = statement.getColumn(2).getInt64();
  row.what = statement.getColumn(3).getString();
  row.detail = statement.getColumn(4).getString();
  row.principal = statement.getColumn(5).getString();
  return row;
}

class Verifier {
 public:
  explicit Verifier(const std::optional<NotedHash>& noted) : noted_(noted) {
    verdict_.head = audit_root();
    found_ = !noted || (noted->id == 0 && noted->hash == verdict_.head);
  }

  // False when the chain is broken.
  bool look_at(const AuditRecord& row, const std::string& hash) {
    if (hash != audit_hash(verdict_.head, row)) {
      verdict_.first_bad = row.id;
      verdict_.problem = fmt::format(
          "row {} does not fit: its hash is {}, its content after row {} gives {}; it or a row "
          "before it was changed, taken out or put in",
          row.id, hash, verdict_.last_id, audit_hash(verdict_.head, row));
      return false;
    }
    if (noted_ && row.id == noted_->id && hash != noted_->hash) {
      verdict_.first_bad = row.id;
      verdict_.problem =
          fmt::format("row {} has the hash {}, noted was {}: the log was written anew", row.id,
                      hash, noted_->hash);
      return false;
    }
    found_ = found_ || hash == noted_->hash;
    ++verdict_.rows;
    verdict_.last_id = row.id;
    verdict_.head = hash;
    return true;
  }

  AuditVerdict end() {
    if (verdict_.good() && !found_) {
      verdict_.problem = fmt::format(
          "the noted hash {} is of none of the {} rows: the end of the log is gone, or it is "
          "another log",
          noted_->hash, verdict_.rows);
    }
    return std::move(verdict_);
  }

  const AuditVerdict& so_far() const { return verdict_; }

 private:
  const std::optional<NotedHash>& noted_;
  AuditVerdict verdict_;
  bool found_ = false;
};

}  // namespace

std::string audit_root() { return std::string(64, '0'); }

std::string audit_hash(const std::string& previous, const AuditRecord& row) {
  return sha256_hex(fmt::format("{}\n{}\n{:016x}\n{}\n", previous, row.id,
                                std::bit_cast<uint64_t>(row.time),
                                row.run ? fmt::format("{}", *row.run) : "-") +
                    counted(row.what) + counted(row.detail) + counted(row.principal));
}

AuditedBy::AuditedBy(Connection& connection, std::string principal)
    : connection_(connection), before_(std::exchange(connection.principal, std::move(principal))) {}

AuditedBy::~AuditedBy() { connection_.principal = std::move(before_); }

void insert_audit(Connection& connection, double now, std::optional<int64_t> run,
                  const std::string& what, const std::string& detail) {
  AuditRecord row{1, now, run, what, detail, connection.principal};
  std::string previous = audit_root();
  {
    Query newest = connection.query("SELECT id, hash FROM audit ORDER BY id DESC LIMIT 1");
    if (newest.next()) {
      row.id = newest.integer(0) + 1;
      previous = newest.text(1);
    }
  }
  connection.execute(
      "INSERT INTO audit (id, time, run, what, detail, principal, hash) VALUES (?, ?, ?, ?, ?, ?, "
      "?)",
      row.id, row.time, row.run, row.what, row.detail, row.principal, audit_hash(previous, row));
}

AuditVerdict verify_audit(SQLite::Database& database, const std::optional<NotedHash>& noted,
                          const std::function<void(int64_t rows)>& progress) {
  Verifier verifier(noted);
  SQLite::Statement rows(database,
                         "SELECT id, time, run, what, detail, principal, hash FROM audit WHERE id "
                         "> ? ORDER BY id LIMIT ?");
  int64_t after = INT64_MIN;
  for (int64_t seen = kRowsInOneRead; seen == kRowsInOneRead;) {
    seen = 0;
    rows.bind(1, after);
    rows.bind(2, kRowsInOneRead);
    while (rows.executeStep()) {
      AuditRecord row = row_of(rows);
      if (!verifier.look_at(row, rows.getColumn(6).getString())) return verifier.end();
      after = row.id;
      ++seen;
    }
    rows.reset();
    if (progress) progress(verifier.so_far().rows);
  }
  return verifier.end();
}

}  // namespace gnomon::ledger

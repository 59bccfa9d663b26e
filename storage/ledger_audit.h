// The audit log: what was refused and what people changed, as a chain. Each row's hash covers its
// content and the hash of the row before, so that no row can be changed, taken out or put in
// without all later hashes becoming others. Who notes the newest hash (the head) elsewhere can
// prove later that everything up to it is still there, the end of the log included.
//
// hash = SHA-256, in 64 hexadecimal digits, of these lines, each ended by "\n":
//   the hash of the row before (the first row: 64 zeros)
//   id, decimal
//   time, the 16 hexadecimal digits of the IEEE 754 double, the most significant first
//   run, decimal, or "-" for none
//   what, detail, principal: each the number of its bytes, ":", its bytes
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "storage/ledger_connection.h"

namespace gnomon::ledger {

// What a row's hash is made of.
struct AuditRecord {
  int64_t id = 0;
  double time = 0;  // seconds since the epoch
  std::optional<int64_t> run;
  std::string what;  // conflicting_step, stale_lease, override, ...
  std::string detail;
  std::string principal;  // who asked; empty: gnomond itself
};

// What stands before the first row.
std::string audit_root();
std::string audit_hash(const std::string& previous, const AuditRecord& row);

// While it lives, rows of this connection are by `principal`; without one, by gnomond itself.
class AuditedBy {
 public:
  AuditedBy(Connection& connection, std::string principal);
  ~AuditedBy();
  AuditedBy(const AuditedBy&) = delete;
  AuditedBy& operator=(const AuditedBy&) = delete;

 private:
  Connection& connection_;
  std::string before_;
};

// Appends a row inside a ledger write. Throws SQLite::Exception.
void insert_audit(Connection& connection, double now, std::optional<int64_t> run,
                  const std::string& what, const std::string& detail);

// A row's hash that was noted somewhere else. id 0: whichever row has that hash.
struct NotedHash {
  int64_t id = 0;
  std::string hash;
};

struct AuditVerdict {
  int64_t rows = 0;       // that were looked at
  int64_t last_id = 0;    // of the newest row; 0 = the log is empty
  std::string head;       // its hash; audit_root() when the log is empty
  int64_t first_bad = 0;  // id of the first row that does not fit; 0 = none
  std::string problem;    // in words; empty when all is well
  bool good() const { return problem.empty(); }
};

// Follows the chain from its beginning to its end, a bounded number of rows in one read, so that a
// daemon that writes the file is not held up; rows that it appends meanwhile are looked at too.
// `noted` must be in the chain. `progress` is called with the rows done, and may throw to end it.
// Throws SQLite::Exception when the file cannot be read.
AuditVerdict verify_audit(SQLite::Database& database, const std::optional<NotedHash>& noted = {},
                          const std::function<void(int64_t rows)>& progress = {});

}  // namespace gnomon::ledger

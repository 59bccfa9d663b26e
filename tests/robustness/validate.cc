#include "tests/robustness/validate.h"

#include <SQLiteCpp/Statement.h>

#include "storage/ledger_integrity.h"
#include "tests/robustness/findings.h"

namespace gnomon::robustness {

std::vector<std::string> validate(const std::filesystem::path& ledger, const Record& record,
                                  const Seen& seen) {
  Findings findings;
  const LedgerHealth health = examine_ledger(ledger);
  for (const std::string& problem : health.problems) findings.add("the ledger: {}", problem);
  SQLite::Database database(ledger.string(), SQLite::OPEN_READONLY, 5000);
  for (const RunRecord& run : record.runs()) {
    if (run.id == 0) continue;
    check_reports(database, run, findings);
    check_orders(database, run, findings);
    check_core(ledger.string(), run, findings);
    for (const auto& hook : seen.hooks) {
      check_messages(database, ledger.string(), run, *hook, seen.late_copies, findings);
    }
  }
  for (const auto& hook : seen.hooks) check_signatures(*hook, findings);
  check_stream(database, seen.events, findings);
  return std::move(findings).all();
}

std::vector<std::string> decisions_of(const std::filesystem::path& ledger, int64_t run) {
  SQLite::Database database(ledger.string(), SQLite::OPEN_READONLY, 5000);
  SQLite::Statement rows(database,
                         "SELECT decision || ' ' || kind || ' ' || verdict || ' ' || action || ' ' "
                         "|| enforced || ' attempt ' || attempt || ' step ' || step || ' window ' "
                         "|| window || ' ' || sites || ' ' || sentence || ' ' || evidence "
                         "FROM decisions WHERE run = ? ORDER BY decision");
  rows.bind(1, run);
  std::vector<std::string> decisions;
  while (rows.executeStep()) decisions.push_back(rows.getColumn(0).getString());
  return decisions;
}

void check_stream(SQLite::Database& ledger, const std::map<int64_t, std::string>& events,
                  Findings& findings) {
  SQLite::Statement rows(ledger, "SELECT id, type, body FROM stream ORDER BY id");
  int64_t next = 1;
  while (rows.executeStep()) {
    const int64_t id = rows.getColumn(0).getInt64();
    const std::string text = fmt::format("event: {}\ndata: {}\n", rows.getColumn(1).getString(),
                                         rows.getColumn(2).getString());
    if (id != next) findings.add("the stream has event {} behind event {}", id, next - 1);
    next = id + 1;
    const auto seen = events.find(id);
    if (seen == events.end()) {
      findings.add("event {} of the stream never came to its follower", id);
    } else if (seen->second != text) {
      findings.add("event {} was sent as {} and is on record as {}", id, seen->second, text);
    }
  }
  if (!events.empty() && events.rbegin()->first >= next) {
    findings.add("event {} was sent and is not on record", events.rbegin()->first);
  }
}

}  // namespace gnomon::robustness

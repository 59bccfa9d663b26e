#include "storage/ledger_deletion.h"

#include <fmt/format.h>

#include <array>

namespace gnomon::ledger {
namespace {

// What names a row within a run. The largest tables first, and what explains the others last.
struct Table {
  const char* name;
  const char* key;
};
constexpr std::array<Table, 24> kTables = {
    {{"statistics", "attempt, step, site, tensor, gemm, recipe, in_use"},
     {"statistics_steps", "attempt, step"},
     {"replay_steps", "replay, step"},
     {"steps", "attempt, step"},
     {"device_health", "sample"},
     {"events", "seq"},
     {"scores", "replay, site"},
     {"results", "replay"},
     {"leases", "id"},
     {"replays", "replay"},
     {"windows", "window"},
     {"notices", "notice"},
     {"directives", "number"},
     {"overrides", "override"},
     {"decisions", "decision"},
     {"quarantines", "verifier"},
     {"conditions", "kind"},
     {"checkpoints", "attempt, step"},
     {"step_totals", "seconds_max"},
     {"decision_state", "run"},
     {"plans", "version"},
     {"faults", "rowid"},
     {"trainers", "run"},
     {"attempts", "attempt"}}};

struct Deletion {
  std::string table;
  std::string sql;
};

// Made once: a connection knows its statements by where their text lies.
const std::vector<Deletion>& deletions() {
  static const std::vector<Deletion> all = [] {
    std::vector<Deletion> made;
    made.reserve(kTables.size());
    for (const Table& table : kTables) {
      made.push_back({table.name, fmt::format("DELETE FROM {0} WHERE run = ?1 AND ({1}) IN "
                                              "(SELECT {1} FROM {0} WHERE run = ?1 LIMIT ?2)",
                                              table.name, table.key)});
    }
    return made;
  }();
  return all;
}

}  // namespace

void begin_deletion(Connection& connection, int64_t run, const std::string& reason, double now) {
  connection.execute("UPDATE runs SET state = ? WHERE id = ?", std::string(kDeleting), run);
  connection.execute(
      "UPDATE replays SET state = 'cancelled', fail_reason = ?, finished_at = ? WHERE run = ? AND "
      "state IN ('queued', 'leased')",
      reason, now, run);
}

int64_t delete_some_of_run(Connection& connection, int64_t run, int64_t limit) {
  int64_t deleted = 0;
  for (const Deletion& deletion : deletions()) {
    deleted += connection.execute(deletion.sql.c_str(), run, limit - deleted);
    if (deleted >= limit) break;
  }
  return deleted;
}

void end_deletion(Connection& connection, int64_t run) {
  connection.execute("DELETE FROM runs WHERE id = ?", run);
}

std::vector<std::string> tables_of_a_run() {
  std::vector<std::string> names;
  for (const Deletion& deletion : deletions()) names.push_back(deletion.table);
  return names;
}

}  // namespace gnomon::ledger

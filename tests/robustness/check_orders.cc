#include <SQLiteCpp/Statement.h>

#include "tests/robustness/findings.h"

namespace gnomon::robustness {
namespace {

// Rows of a query with the run as its only parameter, each said as a violation.
void none_of(SQLite::Database& ledger, const RunRecord& run, const char* sql, const char* what,
             Findings& findings) {
  SQLite::Statement rows(ledger, sql);
  rows.bind(1, run.id);
  while (rows.executeStep()) {
    findings.add("{}: {}: {}", run.scenario.name(), what, rows.getColumn(0).getString());
  }
}

void check_leases(SQLite::Database& ledger, const RunRecord& run, Findings& findings) {
  none_of(ledger, run,
          "SELECT replay || ' token ' || token FROM leases WHERE run = ? GROUP BY replay, token "
          "HAVING count(*) > 1",
          "two leases of a replay have one token", findings);
  none_of(ledger, run,
          "SELECT replay FROM replays p WHERE run = ? AND token <> (SELECT count(*) FROM leases l "
          "WHERE l.run = p.run AND l.replay = p.replay AND l.token BETWEEN 1 AND p.token)",
          "the leases of a replay are not numbered without gaps", findings);
  none_of(ledger, run,
          "SELECT replay FROM leases WHERE run = ? AND state IN ('leased', 'completed') GROUP BY "
          "replay HAVING count(*) > 1",
          "two leases of a replay are held or completed", findings);
  none_of(ledger, run,
          "SELECT r.replay FROM results r WHERE r.run = ? AND NOT EXISTS (SELECT 1 FROM leases l "
          "WHERE l.run = r.run AND l.replay = r.replay AND l.token = r.token AND l.state = "
          "'completed' AND l.verifier = r.verifier)",
          "a result is of no completed lease", findings);
  none_of(ledger, run,
          "SELECT replay FROM replays p WHERE run = ? AND (state = 'done') <> EXISTS (SELECT 1 "
          "FROM results r WHERE r.run = p.run AND r.replay = p.replay)",
          "a replay is done without a result, or the other way round", findings);
  none_of(ledger, run,
          "SELECT replay FROM replays p WHERE run = ? AND (state = 'leased') <> EXISTS (SELECT 1 "
          "FROM leases l WHERE l.run = p.run AND l.replay = p.replay AND l.state = 'leased')",
          "a replay is leased without a lease, or the other way round", findings);
  none_of(ledger, run,
          "SELECT replay FROM events JOIN (SELECT run AS r, replay FROM replays) ON r = run AND "
          "json_extract(body, '$.replay') = replay WHERE run = ? AND type IN ('replay_finished', "
          "'replay_failed') GROUP BY replay HAVING count(*) > 1",
          "the core heard of a replay's end twice", findings);
}

void check_results(SQLite::Database& ledger, const RunRecord& run, Findings& findings) {
  SQLite::Statement rows(ledger, "SELECT replay, token FROM results WHERE run = ?");
  rows.bind(1, run.id);
  std::map<int64_t, int64_t> there;
  while (rows.executeStep()) there[rows.getColumn(0).getInt64()] = rows.getColumn(1).getInt64();
  for (const auto& [replay, accepted] : run.results) {
    const auto found = there.find(replay);
    if (found == there.end() || found->second != accepted.first) {
      findings.add("{}: the result of replay {} with token {} was accepted; on record is {}",
                   run.scenario.name(), replay, accepted.first,
                   found == there.end() ? "none" : fmt::format("token {}", found->second));
    }
  }
}

void check_directives(SQLite::Database& ledger, const RunRecord& run, Findings& findings) {
  SQLite::Statement rows(ledger,
                         "SELECT number, kind, plan, to_step, state, plan_version FROM directives "
                         "WHERE run = ? ORDER BY number");
  rows.bind(1, run.id);
  int64_t next = 1;
  std::set<int64_t> there;
  while (rows.executeStep()) {
    const int64_t number = rows.getColumn(0).getInt64();
    there.insert(number);
    if (number != next)
      findings.add("{}: directive {} follows {}", run.scenario.name(), number, next);
    next = number + 1;
    const std::string state = rows.getColumn(4).getString();
    const auto applied = run.applied.find(number);
    if (applied != run.applied.end() && applied->second == Fate::kAcknowledged &&
        state != "applied") {
      findings.add("{}: directive {} was acknowledged as applied and is {}", run.scenario.name(),
                   number, state);
    }
    if (applied == run.applied.end() && state == "applied") {
      findings.add("{}: directive {} is applied, its trainer knows nothing of it",
                   run.scenario.name(), number);
    }
    if (!run.finished.empty() && state != "applied" && state != "expired") {
      findings.add("{}: the run has ended and directive {} is {}", run.scenario.name(), number,
                   state);
    }
    const auto told = run.told.find(number);
    if (told != run.told.end() && (told->second.kind != rows.getColumn(1).getString() ||
                                   told->second.plan != rows.getColumn(2).getString() ||
                                   told->second.to_step != rows.getColumn(3).getInt64())) {
      findings.add("{}: directive {} was another order when it was given", run.scenario.name(),
                   number);
    }
  }
  for (const auto& [number, directive] : run.told) {
    if (!there.contains(number)) {
      findings.add("{}: directive {} ({}) was given and is not on record", run.scenario.name(),
                   number, directive.kind);
    }
  }
  none_of(ledger, run,
          "SELECT json_extract(body, '$.number') FROM events WHERE run = ? AND type = "
          "'directive_changed' GROUP BY 1 HAVING count(*) > 1",
          "the core heard of a directive's end twice", findings);
}

void check_overrides(SQLite::Database& ledger, const RunRecord& run, Findings& findings) {
  SQLite::Statement rows(ledger, "SELECT reason FROM overrides WHERE run = ?");
  rows.bind(1, run.id);
  std::set<std::string> there;
  while (rows.executeStep()) {
    const std::string reason = rows.getColumn(0).getString();
    there.insert(reason);
    if (!run.overrides.contains(reason)) {
      findings.add("{}: nobody asked for the override \"{}\"", run.scenario.name(), reason);
    }
  }
  for (const auto& [reason, fate] : run.overrides) {
    if (fate == Fate::kAcknowledged && !there.contains(reason)) {
      findings.add("{}: the override \"{}\" was taken and is not on record", run.scenario.name(),
                   reason);
    }
  }
}

}  // namespace

void check_orders(SQLite::Database& ledger, const RunRecord& run, Findings& findings) {
  check_leases(ledger, run, findings);
  check_results(ledger, run, findings);
  check_directives(ledger, run, findings);
  check_overrides(ledger, run, findings);
}

}  // namespace gnomon::robustness

#include <SQLiteCpp/Statement.h>

#include <bit>
#include <functional>

#include "tests/robustness/findings.h"

namespace gnomon::robustness {
namespace {

SQLite::Statement rows_of(SQLite::Database& ledger, const char* sql, const RunRecord& run) {
  SQLite::Statement rows(ledger, sql);
  rows.bind(1, run.id);
  return rows;
}

// What is on record was sent, and what was acknowledged is on record.
template <typename Key, typename Sent, typename FateOf>
void check_there(const std::map<Key, Sent>& sent, const std::set<Key>& there, FateOf fate_of,
                 const std::function<void(const Key&, const char*)>& report) {
  for (const Key& key : there) {
    if (!sent.contains(key)) report(key, "is on record and was never sent");
  }
  for (const auto& [key, what] : sent) {
    if (fate_of(what) == Fate::kAcknowledged && !there.contains(key)) {
      report(key, "was acknowledged and is not on record");
    }
  }
}

void check_steps(SQLite::Database& ledger, const RunRecord& run, Findings& findings) {
  SQLite::Statement rows =
      rows_of(ledger,
              "SELECT attempt, step, plan_version, loss, grad_norm, weights_hash FROM steps "
              "WHERE run = ? ORDER BY attempt, step",
              run);
  std::set<StepKey> there;
  while (rows.executeStep()) {
    const StepKey key{rows.getColumn(0).getInt64(), rows.getColumn(1).getInt64()};
    there.insert(key);
    const auto sent = run.steps.find(key);
    if (sent == run.steps.end()) continue;
    const StepReport report = step_of(run.scenario, key.first, key.second, sent->second.first);
    if (rows.getColumn(2).getInt64() != report.plan_version ||
        std::bit_cast<uint64_t>(rows.getColumn(3).getDouble()) !=
            std::bit_cast<uint64_t>(report.loss) ||
        rows.getColumn(4).getDouble() != report.grad_norm ||
        rows.getColumn(5).getString() != report.weights_hash) {
      findings.add("{}: step {} of attempt {} is on record with other values", run.scenario.name(),
                   key.second, key.first);
    }
  }
  check_there<StepKey>(
      run.steps, there, [](const auto& sent) { return sent.second; },
      [&](const StepKey& key, const char* what) {
        findings.add("{}: step {} of attempt {} {}", run.scenario.name(), key.second, key.first,
                     what);
      });
  if (run.accepted_steps > std::ssize(there)) {
    findings.add("{}: {} steps were answered as accepted, {} are on record", run.scenario.name(),
                 run.accepted_steps, there.size());
  }
}

void check_checkpoints(SQLite::Database& ledger, const RunRecord& run, Findings& findings) {
  SQLite::Statement rows = rows_of(
      ledger, "SELECT attempt, step, uri, manifest_hash FROM checkpoints WHERE run = ?", run);
  std::set<StepKey> there;
  while (rows.executeStep()) {
    const StepKey key{rows.getColumn(0).getInt64(), rows.getColumn(1).getInt64()};
    there.insert(key);
    const CheckpointReport report = checkpoint_of(run.scenario, key.first, key.second, 1);
    if (rows.getColumn(2).getString() != report.uri ||
        rows.getColumn(3).getString() != report.manifest_hash) {
      findings.add("{}: the checkpoint of step {} of attempt {} is on record with other values",
                   run.scenario.name(), key.second, key.first);
    }
  }
  check_there<StepKey>(
      run.checkpoints, there, [](const auto& sent) { return sent.second; },
      [&](const StepKey& key, const char* what) {
        findings.add("{}: the checkpoint of step {} of attempt {} {}", run.scenario.name(),
                     key.second, key.first, what);
      });
}

void check_notices(SQLite::Database& ledger, const RunRecord& run, Findings& findings) {
  SQLite::Statement rows = rows_of(
      ledger, "SELECT attempt, step FROM notices WHERE run = ? AND kind = 'checkpoint_failed'",
      run);
  std::set<StepKey> there;
  while (rows.executeStep()) {
    const StepKey key{rows.getColumn(0).getInt64(), rows.getColumn(1).getInt64()};
    if (!there.insert(key).second) {
      findings.add("{}: the notice of step {} is there twice", run.scenario.name(), key.second);
    }
  }
  check_there<StepKey>(
      run.notices, there, [](Fate fate) { return fate; },
      [&](const StepKey& key, const char* what) {
        findings.add("{}: the notice of step {} {}", run.scenario.name(), key.second, what);
      });
}

void check_attempts(SQLite::Database& ledger, const RunRecord& run, Findings& findings) {
  SQLite::Statement rows = rows_of(
      ledger, "SELECT attempt, base_step, cause FROM attempts WHERE run = ? ORDER BY attempt", run);
  std::set<int64_t> there;
  while (rows.executeStep()) {
    const int64_t attempt = rows.getColumn(0).getInt64();
    there.insert(attempt);
    const auto sent = run.attempts.find(attempt);
    if (sent == run.attempts.end()) continue;
    const AttemptStart& start = sent->second.first;
    if (rows.getColumn(1).getInt64() != start.base_step ||
        rows.getColumn(2).getString() != start.cause) {
      findings.add("{}: attempt {} is on record with other values", run.scenario.name(), attempt);
    }
  }
  check_there<int64_t>(
      run.attempts, there, [](const auto& sent) { return sent.second; },
      [&](int64_t attempt, const char* what) {
        findings.add("{}: attempt {} {}", run.scenario.name(), attempt, what);
      });
}

void check_end(SQLite::Database& ledger, const RunRecord& run, Findings& findings) {
  SQLite::Statement rows = rows_of(ledger, "SELECT state FROM runs WHERE id = ?", run);
  const std::string state = rows.executeStep() ? rows.getColumn(0).getString() : "nothing";
  if (!run.finished.empty() && state != run.finished) {
    findings.add("{}: was acknowledged as {} and is {}", run.scenario.name(), run.finished, state);
  }
  SQLite::Statement totals = rows_of(
      ledger,
      "SELECT (SELECT count(*) FROM steps WHERE run = ?1), "
      "(SELECT total(steps) FROM step_totals WHERE run = ?1), (SELECT count(*) FROM steps WHERE "
      "run = ?1 AND seq > (SELECT seq FROM decision_state WHERE run = ?1)) + (SELECT count(*) FROM "
      "events WHERE run = ?1 AND type = 'step_reported' AND seq > (SELECT seq FROM decision_state "
      "WHERE run = ?1))",
      run);
  totals.executeStep();
  const int64_t summed = totals.getColumn(1).getInt64() + totals.getColumn(2).getInt64();
  if (totals.getColumn(0).getInt64() != summed) {
    findings.add("{}: {} steps are on record, their totals count {}", run.scenario.name(),
                 totals.getColumn(0).getInt64(), summed);
  }
}

}  // namespace

void check_reports(SQLite::Database& ledger, const RunRecord& run, Findings& findings) {
  check_attempts(ledger, run, findings);
  check_steps(ledger, run, findings);
  check_checkpoints(ledger, run, findings);
  check_notices(ledger, run, findings);
  check_end(ledger, run, findings);
}

}  // namespace gnomon::robustness

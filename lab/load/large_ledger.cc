#include "lab/load/large_ledger.h"

#include <fmt/format.h>

#include "controller/decide/decide.h"
#include "protocol/json.h"
#include "protocol/precision_plan.h"
#include "storage/ledger.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_runs.h"

namespace gnomon::bench {
namespace {

constexpr int64_t kStepsAtOnce = 100'000;

RunRegistration registration_of(int64_t i) {
  RunRegistration registration;
  registration.name = fmt::format("long-{}", i);
  registration.job_id = "bench";
  PrecisionPlan plan = PrecisionPlan::fp8();
  plan.version = 1;
  registration.base_plan = plan.to_toml();
  registration.sites = {"lm_head"};
  registration.layers = 1;
  registration.checkpoint_every = 5;
  registration.total_steps = 100;
  return registration;
}

void insert_runs(Connection& connection, int64_t runs) {
  for (int64_t i = 1; i <= runs; ++i) {
    const RunRegistration registration = registration_of(i);
    const bool live = i == 1;
    const int64_t run =
        ledger::insert_run(connection, {0, registration.name, registration.job_id,
                                        to_json(registration), decide::Policy().to_toml(),
                                        live ? RunStatus("live") : "completed", 1.0, std::nullopt});
    ledger::insert(connection, AttemptRow{run, 1, 0, "start", 1});
    ledger::save_state(connection, run, {1, decide::state_to_json(decide::State{})});
    if (!live) {
      connection.execute("UPDATE runs SET finished_at = 2.0, finished_step = 1 WHERE id = ?", run);
    }
  }
}

void insert_steps(Connection& connection, int64_t run, int64_t from, int64_t to) {
  connection.execute(
      "WITH RECURSIVE n (i) AS (VALUES (?2) UNION ALL SELECT i + 1 FROM n WHERE i < ?3) "
      "INSERT INTO steps (run, attempt, step, plan_version, loss, grad_norm, learning_rate, "
      "tokens, step_seconds, weights_hash, reported_at, batch_hash, seq) SELECT ?1, 1, i, 1, "
      "2.5 + 1.0 / i, 0.7 + 1.0 / i, 3.14e-4, 4194304, 2.7 + 0.1 / i, printf('%016x', i * "
      "2654435761), 1.7e9 + i, printf('%016x', i * 40503), i FROM n",
      run, from, to);
  connection.execute("UPDATE decision_state SET seq = ? WHERE run = ?", to, run);
  const int64_t steps = to - from + 1;
  ledger::add_step_totals(connection, run,
                          {5, steps, steps * 4'194'304, 2.7 * static_cast<double>(steps)});
}

}  // namespace

void make_large_ledger(const std::filesystem::path& file, double bytes, Progress& progress) {
  LedgerOptions options;
  options.file = file;
  Ledger ledger(options);
  constexpr int64_t kRuns = 3;
  ledger.write([](LedgerTransaction& t) { insert_runs(t.connection(), kRuns); });
  for (int64_t from = 1; static_cast<double>(ledger.bytes()) < bytes; from += kStepsAtOnce) {
    for (int64_t run = 1; run <= kRuns; ++run) {
      ledger.write([&](LedgerTransaction& t) {
        insert_steps(t.connection(), run, from, from + kStepsAtOnce - 1);
      });
    }
    progress.update(ledger.bytes() / 1'000'000, "MB");
  }
  progress.finish();
}

}  // namespace gnomon::bench

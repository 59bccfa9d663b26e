// Makes a large ledger, as months of training leave it, to measure starts and backups on: live runs
// and ended ones with steps, events and tensor statistics. Not built by default.
#include <fmt/format.h>
#include <sqlite3.h>

#include <CLI/CLI.hpp>

#include "base/progress.h"
#include "controller/decide/decide.h"
#include "protocol/json.h"
#include "storage/ledger.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_runs.h"
#include "tests/controller/registration.h"

namespace gnomon {
namespace {

constexpr int64_t kStepsAtOnce = 100'000;

void insert_runs(Connection& connection, int64_t runs) {
  for (int64_t i = 1; i <= runs; ++i) {
    RunRegistration registration = small_registration();
    registration.name = fmt::format("long-{}", i);
    const bool live = i == 1;
    const int64_t run = ledger::insert_run(
        connection, {0, registration.name, "1", to_json(registration), decide::Policy().to_toml(),
                     live ? "live" : "completed", 1.0, std::nullopt});
    ledger::insert_attempt(connection, run, {AttemptStart{1, 0, "start", 1}, std::nullopt});
    ledger::save_state(connection, run, {1, decide::state_to_json(decide::State{})});
    if (!live) {
      connection.execute("UPDATE runs SET finished_at = 2.0, finished_step = 1 WHERE id = ?", run);
    }
  }
}

void insert_steps(Connection& connection, int64_t run, int64_t from, int64_t to) {
  connection.execute(
      "WITH RECURSIVE n (i) AS (VALUES (?2) UNION ALL SELECT i + 1 FROM n WHERE i < ?3) "
      "INSERT INTO steps SELECT ?1, 1, i, 1, 2.5 + 1.0 / i, 0.7 + 1.0 / i, 3.14e-4, 4194304, 2.7 + "
      "0.1 / i, printf('%016x', i * 2654435761), 1.7e9 + i, printf('%016x', i * 40503), i FROM n",
      run, from, to);
  connection.execute("UPDATE decision_state SET seq = ? WHERE run = ?", to, run);
  const int64_t steps = to - from + 1;
  ledger::add_step_totals(connection, run,
                          {5, steps, steps * 4'194'304, 2.7 * static_cast<double>(steps)});
}

int run(int argc, char** argv) {
  CLI::App app("Makes a large ledger to measure starts and backups on.", "make_ledger");
  std::string file;
  double gigabytes = 5;
  app.add_option("--ledger", file, "File to make")->required();
  app.add_option("--gigabytes", gigabytes, "Its size")->capture_default_str();
  app.footer("Example:\n  make_ledger --ledger large.sqlite --gigabytes 5");
  CLI11_PARSE(app, argc, argv);
  LedgerOptions options;
  options.file = file;
  Ledger ledger(options);
  constexpr int64_t kRuns = 3;
  ledger.write([](LedgerTransaction& t) { insert_runs(t.connection(), kRuns); });
  Progress progress("making", static_cast<int64_t>(gigabytes * 1000));
  for (int64_t from = 1; static_cast<double>(ledger.bytes()) < gigabytes * 1e9;
       from += kStepsAtOnce) {
    for (int64_t run = 1; run <= kRuns; ++run) {
      ledger.write([&](LedgerTransaction& t) {
        insert_steps(t.connection(), run, from, from + kStepsAtOnce - 1);
      });
    }
    progress.update(ledger.bytes() / 1'000'000, "MB");
  }
  return 0;
}

}  // namespace
}  // namespace gnomon

int main(int argc, char** argv) { return gnomon::run(argc, argv); }

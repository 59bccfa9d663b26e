// What the supervisor keeps in memory is never ahead of the ledger.
#include "controller/supervisor.h"

#include <gtest/gtest.h>

#include "controller/refusal.h"
#include "tests/controller/registration.h"
#include "tests/storage/ledger_fixture.h"

namespace gnomon {
namespace {

TEST_F(LedgerTest, AWriteThatWasUndoneLeavesNoTraceInTheCachedState) {
  Ledger ledger(options());
  Metrics metrics([] { return size_t{0}; });
  Bells bells;
  Supervisor supervisor(
      metrics, bells, SupervisorOptions{"", 3600}, [] { return 1e9; }, [] { return 0.0; });
  int64_t run = 0;
  ledger.write([&](LedgerTransaction& transaction) {
    run = parse_run_id(supervisor.register_run(transaction, small_registration()).run);
    supervisor.start_attempt(transaction, run, {1, 0, "start", 1, 0});
  });
  auto report = [&](LedgerTransaction& transaction) {
    StepReport step;
    step.step = 1;
    step.plan_version = 1;
    step.loss = 2.0;
    EXPECT_EQ(supervisor.report_steps(transaction, run, {{step}}).accepted, 1);
  };
  EXPECT_THROW(ledger.write([&](LedgerTransaction& transaction) {
    report(transaction);
    throw Error("undone");
  }),
               Error);
  ledger.write(report);
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM events"), 2);
  EXPECT_EQ(number(ledger, "SELECT seq FROM steps"), 3);
  ledger.write([&](LedgerTransaction& transaction) { supervisor.save_all(transaction); });
  EXPECT_EQ(number(ledger, "SELECT seq FROM decision_state"), 3);
}

}  // namespace
}  // namespace gnomon

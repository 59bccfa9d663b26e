// `gnomon ledger check` and `gnomon ledger repair` on the ledger of a real controller.
#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>

#include "tests/cli/program.h"
#include "tests/controller/fake_clients.h"
#include "tests/support/daemon_process.h"

namespace gnomon::cli {
namespace {

using test::EndedProcess;
using ::testing::AllOf;
using ::testing::HasSubstr;

class LedgerRepair : public ::testing::Test {
 protected:
  LedgerRepair() {
    daemon.start();
    for (const char* name : {"first", "second"}) {
      FakeTrainer trainer(daemon.url());
      trainer.begin(test_registration(name));
      trainer.train(1, 10);
    }
    EXPECT_EQ(daemon.stop(), 0);
  }
  EndedProcess ledger(const std::string& command) {
    return run_gnomon({"ledger", command, daemon.ledger().string()});
  }
  void edit(const std::string& sql) {
    SQLite::Database(daemon.ledger().string(), SQLite::OPEN_READWRITE).exec(sql);
  }
  std::string text(const std::string& sql) {
    SQLite::Database database(daemon.ledger().string(), SQLite::OPEN_READONLY);
    return database.execAndGet(sql).getString();
  }

  test::DaemonProcess daemon{{}, test_policy()};
};

TEST_F(LedgerRepair, AStateThatDoesNotFitIsNamedAndRebuilt) {
  EndedProcess check = ledger("check");
  EXPECT_EQ(check.status, 0) << check.errors;
  EXPECT_THAT(check.output, HasSubstr("states of runs: 2"));
  const std::string good = text("SELECT group_concat(body) FROM decision_state");
  for (const char* sql :
       {"UPDATE decision_state SET body = json_set(body, '$.newest_step', 3) WHERE run = 2",
        "UPDATE decision_state SET body = 'x' WHERE run = 2",
        "DELETE FROM decision_state WHERE run "
        "= 2",
        "UPDATE decision_state SET seq = 40 WHERE run = 2",
        "UPDATE decision_state SET seq = 4 WHERE run = 2"}) {
    edit(sql);
    check = ledger("check");
    EXPECT_EQ(check.status, 1) << sql;
    EXPECT_THAT(check.errors, AllOf(HasSubstr("run-2 (second/1)"), HasSubstr("event"))) << sql;
    const EndedProcess repair = ledger("repair");
    EXPECT_EQ(repair.status, 0) << repair.errors;
    EXPECT_THAT(repair.output, AllOf(HasSubstr("run-2 (second/1)"), HasSubstr("rebuilt"),
                                     HasSubstr("1 of 2 states fitted")));
    EXPECT_EQ(text("SELECT group_concat(body) FROM decision_state"), good) << sql;
    EXPECT_EQ(text("SELECT total(steps) FROM step_totals"), "20.0") << sql;
    check = ledger("check");
    EXPECT_EQ(check.status, 0) << check.errors;
  }
  EXPECT_EQ(text("SELECT group_concat(DISTINCT what || ' ' || principal) FROM audit WHERE run = 2"),
            "state_rebuilt tester");
  EXPECT_THAT(ledger("repair").output, HasSubstr("2 of 2 states fitted and were left alone"));
}

TEST_F(LedgerRepair, WhatCannotBeRebuiltIsSaidAndLeftAlone) {
  edit(
      "UPDATE decision_state SET body = 'x' WHERE run = 1; DELETE FROM events WHERE run = 1 AND "
      "seq "
      "= 3");
  const EndedProcess check = ledger("check");
  EXPECT_EQ(check.status, 1);
  EXPECT_THAT(check.errors, AllOf(HasSubstr("run-1 (first/1)"), HasSubstr("event 4"),
                                  HasSubstr("sets the run aside")));
  const EndedProcess repair = ledger("repair");
  EXPECT_EQ(repair.status, 1);
  EXPECT_THAT(repair.errors, AllOf(HasSubstr("run-1 (first/1)"), HasSubstr("gnomon runs end")));
  EXPECT_EQ(text("SELECT body FROM decision_state WHERE run = 1"), "x");
}

TEST_F(LedgerRepair, AValueThatItsColumnMayNotHaveIsNamed) {
  edit(
      "UPDATE attempts SET cause = 'whim' WHERE run = 2; UPDATE steps SET tokens = -7 WHERE run = "
      "1");
  const EndedProcess check = ledger("check");
  EXPECT_EQ(check.status, 1);
  EXPECT_THAT(check.errors,
              AllOf(HasSubstr("attempts, run 2, attempt 1: cause is \"whim\"; accepted: "
                              "one of \"start\", \"restart\""),
                    HasSubstr("steps, run 1, attempt 1, step 1: tokens is -7")));
}

TEST_F(LedgerRepair, NotUnderADaemonNorWithoutALedger) {
  daemon.start();
  const EndedProcess busy = ledger("repair");
  EXPECT_EQ(busy.status, 2);
  EXPECT_THAT(busy.errors, HasSubstr("in use by another gnomond"));
  const std::filesystem::path absent = daemon.folder() / "absent.sqlite";
  const EndedProcess none = run_gnomon({"ledger", "repair", "--ledger", absent.string()});
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.errors, HasSubstr("there is no ledger"));
  EXPECT_FALSE(std::filesystem::exists(absent));
}

}  // namespace
}  // namespace gnomon::cli

#include "cli/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "base/errors.h"
#include "controller/decide/decide.h"
#include "tests/cli/program.h"
#include "tests/cli/synthetic_ledger.h"

namespace gnomon::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SummaryTest : public ::testing::Test {
 protected:
  std::filesystem::path file() const { return directory_.path() / "ledger.sqlite"; }
  RunSummary summary() const { return summarize(load_history(LedgerView(file()), "")); }
  TemporaryDirectory directory_;
};

TEST_F(SummaryTest, TellsACaughtFaultFromStartToReturn) {
  write_caught_fault(file());
  RunSummary s = summary();
  EXPECT_EQ(s.run, "demo/1");
  EXPECT_TRUE(s.detected);
  // Windows 4 (31-40) and 5 (41-50) contain the fault; 3 was skipped and 6 came after the alarm.
  EXPECT_EQ(s.windows_to_detect, 2);
  EXPECT_EQ(s.verdict, "fp8_numerics");
  EXPECT_THAT(s.blamed_sites, ElementsAre(kFaultySite));
  EXPECT_EQ(s.action, "pin");
  EXPECT_EQ(s.steps_lost, 55 - 20);
  EXPECT_TRUE(s.recovered);
  EXPECT_TRUE(s.rolled_back);
  EXPECT_TRUE(s.plan_changed);
  EXPECT_TRUE(s.returned_to_fp8);
  EXPECT_EQ(s.false_alarms, 0);
  EXPECT_EQ(s.attempts, 2);
  EXPECT_EQ(s.windows, 6);
  EXPECT_EQ(s.steps, 100);
  EXPECT_DOUBLE_EQ(*s.final_loss, 2.01);
  EXPECT_DOUBLE_EQ(s.wall_seconds, 150);
  EXPECT_DOUBLE_EQ(s.verification_share, 24.0 / (24.0 + 135.0));
  EXPECT_THAT(unmet_expectations(s, "fp8"), IsEmpty());
}

// A hundred steps of a second, and verification for ten.
decide::State paid_state() {
  decide::State state;
  for (int step = 0; step < 100; ++step)
    decide::add_step(state.money.account, decide::StepKind::kFp8, 1);
  decide::add_verification(state.money.account, decide::Where::kTrainer, 10);
  state.newest_step = 100;
  return state;
}

TEST_F(SummaryTest, SaysTheNetSpeedUpThatTheDecisionCoreHasCounted) {
  {
    SyntheticLedger ledger(file());
    ledger.add_run();
    ledger.add_attempt(1, 0, "start");
    ledger.add_steps(1, 1, 100);
    ledger.set_decision_state(decide::state_to_json(paid_state()));
  }
  RunSummary s = summary();
  ASSERT_TRUE(s.net_speedup.has_value());
  EXPECT_DOUBLE_EQ(s.net_speedup->statement.net, 1.3 * 100 / 110);
  EXPECT_THAT(summary_in_words(s),
              AllOf(HasSubstr("FP8's speed is not measured yet"), HasSubstr("1.182")));
  boost::json::value json = boost::json::parse(summary_to_json(s));
  EXPECT_DOUBLE_EQ(json.at("economics").at("net_speedup").as_double(), 1.3 * 100 / 110);
  EXPECT_FALSE(json.at("economics").at("measured").as_bool());
}

TEST_F(SummaryTest, ALedgerWithoutAnAccountOrWithOneOfTheFutureIsToldWithoutIt) {
  write_caught_fault(file());
  EXPECT_FALSE(summary().net_speedup.has_value());
  EXPECT_TRUE(boost::json::parse(summary_to_json(summary())).at("economics").is_null());
  SQLite::Database(file(), SQLite::OPEN_READWRITE)
      .exec("INSERT INTO decision_state (run, seq, body) VALUES (1, 1, '{\"tomorrow\": 1}')");
  EXPECT_FALSE(summary().net_speedup.has_value());
  EXPECT_EQ(summary().steps, 100);
}

TEST_F(SummaryTest, AnAlarmBeforeTheFaultIsFalseAndDetectsNothing) {
  write_caught_fault(file());
  SQLite::Database(file(), SQLite::OPEN_READWRITE)
      .exec("UPDATE decisions SET window = 2, step = 20 WHERE kind = 'alarm'");
  RunSummary s = summary();
  EXPECT_FALSE(s.detected);
  EXPECT_EQ(s.windows_to_detect, 0);
  EXPECT_EQ(s.false_alarms, 1);
  EXPECT_THAT(unmet_expectations(s, "fp8"), Contains(HasSubstr("not detected")));
  EXPECT_THAT(unmet_expectations(s, "fp8"), Contains(HasSubstr("false alarm")));
}

TEST_F(SummaryTest, AnAlarmAfterTheFaultEndedIsFalse) {
  write_caught_fault(file());
  SQLite::Database database(file(), SQLite::OPEN_READWRITE);
  database.exec("UPDATE windows SET start_step = 61 WHERE window = 7");
  database.exec(
      "INSERT INTO decisions SELECT run, 7, time + 9, 'alarm', 'none', 'none', 1, 2, 71, 7, '[]',"
      " 'x', '{}', 99 FROM decisions WHERE decision = 6");
  RunSummary s = summary();
  EXPECT_TRUE(s.detected);
  EXPECT_EQ(s.false_alarms, 1);
}

TEST_F(SummaryTest, AnotherSiteBlamedIsNotEnough) {
  write_caught_fault(file());
  SQLite::Database(file(), SQLite::OPEN_READWRITE)
      .exec("UPDATE decisions SET sites = '[\"lm_head\"]' WHERE sites != '[]'");
  EXPECT_THAT(unmet_expectations(summary(), "fp8"), ElementsAre(HasSubstr("faulty site")));
}

TEST_F(SummaryTest, ARunThatStaysPinnedHasNotReturned) {
  write_caught_fault(file());
  SQLite::Database(file(), SQLite::OPEN_READWRITE)
      .exec("UPDATE steps SET plan_version = 2 WHERE attempt = 2");
  RunSummary s = summary();
  EXPECT_FALSE(s.returned_to_fp8);
  EXPECT_THAT(unmet_expectations(s, "fp8"), ElementsAre(HasSubstr("return")));
}

TEST_F(SummaryTest, ADirectiveThatWasRefusedContainsNothing) {
  write_caught_fault(file());
  SQLite::Database(file(), SQLite::OPEN_READWRITE).exec("UPDATE directives SET state = 'rejected'");
  RunSummary s = summary();
  EXPECT_FALSE(s.plan_changed);
  EXPECT_FALSE(s.rolled_back);
  EXPECT_THAT(unmet_expectations(s, "fp8"), Contains(HasSubstr("not contained")));
}

TEST_F(SummaryTest, AnUnfinishedRunMeetsNoExpectation) {
  write_caught_fault(file());
  SQLite::Database(file(), SQLite::OPEN_READWRITE).exec("UPDATE runs SET state = 'live'");
  EXPECT_THAT(unmet_expectations(summary(), "fp8"), ElementsAre(HasSubstr("live")));
}

TEST_F(SummaryTest, AStepThatNeverArrivedIsMissed) {
  write_caught_fault(file());
  SQLite::Database(file(), SQLite::OPEN_READWRITE).exec("DELETE FROM steps WHERE step = 7");
  EXPECT_EQ(summary().missing_steps, 1);
  EXPECT_THAT(unmet_expectations(summary(), "fp8"), ElementsAre(HasSubstr("not in the ledger")));
}

TEST_F(SummaryTest, ARunWithoutFaultExpectsSilence) {
  {
    SyntheticLedger ledger(file());
    ledger.add_run();
    ledger.add_attempt(1, 0, "start");
    ledger.add_steps(1, 1, 20);
    ledger.add_window({1, 1, 0, "quiet", 0.1, 12});
    ledger.finish("completed", 2.0, 30);
  }
  RunSummary s = summary();
  EXPECT_FALSE(s.detected);
  EXPECT_EQ(s.verdict, "none");
  EXPECT_EQ(s.action, "none");
  EXPECT_FALSE(s.returned_to_fp8);
  EXPECT_THAT(unmet_expectations(s, "none"), IsEmpty());

  SQLite::Database database(file(), SQLite::OPEN_READWRITE);
  database.exec(
      "INSERT INTO decisions VALUES (1, 1, 1.7e9, 'alarm', 'none', 'none', 1, 1, 10, 1, '[]', 'x',"
      " '{}', 1), (1, 2, 1.7e9, 'action', 'unexplained', 'bf16', 1, 1, 10, 1, '[]', 'x', '{}', 2)");
  RunSummary alarmed = summary();
  EXPECT_EQ(alarmed.alarms, 1);
  EXPECT_EQ(alarmed.false_alarms, 0) << "a real run: nobody knows that it was false";
  EXPECT_THAT(unmet_expectations(alarmed, "none"),
              ElementsAre(HasSubstr("alarm"), HasSubstr("bf16")));
}

TEST_F(SummaryTest, ASpikeMayBeSeenButNotBlamedOnFp8) {
  {
    SyntheticLedger ledger(file());
    ledger.add_run();
    ledger.add_fault({"corrupt_batch", "", 15, 16, "random tokens"});
    ledger.add_attempt(1, 0, "start");
    ledger.add_steps(1, 1, 40);
    ledger.add_window({1, 1, 10, "quiet", 0.1, 22, "incident"});
    ledger.add_decision({1, 20, "alarm", "none", "none", 15, 1});
    ledger.add_decision({2, 22, "verdict", "generic_spike", "none", 20, 1});
    ledger.finish("completed", 2.0, 50);
  }
  RunSummary s = summary();
  EXPECT_TRUE(s.detected);
  EXPECT_EQ(s.windows_to_detect, 1);
  EXPECT_EQ(s.verdict, "generic_spike");
  EXPECT_THAT(unmet_expectations(s, "spike"), IsEmpty());

  SQLite::Database(file(), SQLite::OPEN_READWRITE)
      .exec("UPDATE decisions SET verdict = 'fp8_numerics' WHERE decision = 2");
  EXPECT_THAT(unmet_expectations(summary(), "spike"), ElementsAre(HasSubstr("blamed on FP8")));
}

class BitFlipTest : public SummaryTest {
 protected:
  void SetUp() override {
    SyntheticLedger ledger(file());
    ledger.add_run();
    ledger.add_fault({"bit_flip", "model.layers.0.mlp.up_proj.weight", 25, 26, "bit 30 flips"});
    ledger.add_attempt(1, 0, "start");
    ledger.add_steps(1, 1, 38);
    ledger.add_attempt(2, 20, "rollback");
    ledger.add_steps(2, 21, 60);
    ledger.add_window({1, 1, 0, "quiet", 0.1, 12});
    ledger.add_window({2, 1, 30, "alarm", {}, 39, "incident"});
    ledger.add_window({3, 2, 30, "quiet", 0.1, 62});
    ledger.add_decision({1, 38, "alarm", "none", "none", 38, 2});
    ledger.add_decision({2, 39, "verdict", "transient_fault", "none", 38, 2});
    ledger.add_decision({3, 39, "action", "transient_fault", "rollback", 38, 2});
    ledger.add_directive(1, "rollback", "", 1);
    ledger.finish("completed", 2.0, 70);
  }
};

TEST_F(BitFlipTest, StaysInTheWeightsUntilTheRollback) {
  RunSummary s = summary();
  EXPECT_TRUE(s.detected) << "the window after the flip still has the flipped weight";
  EXPECT_EQ(s.windows_to_detect, 1);
  EXPECT_EQ(s.false_alarms, 0);
  EXPECT_EQ(s.action, "rollback");
  EXPECT_EQ(s.steps_lost, 18);
  EXPECT_FALSE(s.plan_changed);
  EXPECT_THAT(unmet_expectations(s, "bitflip"), IsEmpty());
}

// A rollback to step 20 has undone the second window.
TEST_F(BitFlipTest, TheStatusShowsTheNewestWindowThatCounts) {
  SQLite::Database database(file(), SQLite::OPEN_READWRITE);
  database.exec("UPDATE windows SET d_percent = 5 WHERE window = 2");
  const auto status = [&] {
    return run_gnomon({"status", "demo", "--ledger", file().string()}).output;
  };
  EXPECT_THAT(status(), HasSubstr("window 3 (shadow from step 30): gap +0.100%"));
  database.exec("UPDATE windows SET d_percent = 9e999 WHERE window = 3");
  EXPECT_THAT(status(), HasSubstr("window 3 (shadow from step 30): gap not finite"));
  database.exec("UPDATE windows SET kind = 'probe' WHERE window = 3");
  EXPECT_THAT(status(), HasSubstr("window 1 (shadow from step 0): gap +0.100%"));
}

// Steps count once, with the first attempt that begins before them, as in the account.
TEST_F(BitFlipTest, WhatACrashTookIsNotLostToARollbackOnceMore) {
  SQLite::Database(file(), SQLite::OPEN_READWRITE)
      .exec(
          "UPDATE attempts SET cause = 'restart' WHERE attempt = 2;"
          "INSERT INTO attempts SELECT run, 3, 10, 'rollback', plan_version, started_at, "
          "fingerprint, host FROM attempts WHERE attempt = 2");
  EXPECT_EQ(summary().steps_lost, 50) << "10 of the first attempt, 40 of the second";
}

TEST_F(BitFlipTest, AnAlarmAfterTheRollbackIsFalse) {
  SQLite::Database(file(), SQLite::OPEN_READWRITE)
      .exec(
          "INSERT INTO decisions SELECT run, 9, time + 9, kind, verdict, action, 1, 2, 40, 3,"
          " sites, sentence, evidence, 9 FROM decisions WHERE decision = 1");
  EXPECT_EQ(summary().false_alarms, 1);
}

TEST_F(BitFlipTest, BlamingPrecisionOrStayingThereIsNotAccepted) {
  SQLite::Database database(file(), SQLite::OPEN_READWRITE);
  database.exec("UPDATE directives SET state = 'rejected'");
  EXPECT_THAT(unmet_expectations(summary(), "bitflip"), ElementsAre(HasSubstr("rolled back")));
  database.exec("UPDATE decisions SET verdict = 'fp8_numerics' WHERE decision > 1");
  EXPECT_THAT(unmet_expectations(summary(), "bitflip"), Contains(HasSubstr("precision")));
}

TEST_F(SummaryTest, JsonHasTheKeysThatOthersReadInTheirTypes) {
  write_caught_fault(file());
  boost::json::value json = boost::json::parse(summary_to_json(summary()));
  EXPECT_TRUE(json.at("detected").is_bool());
  EXPECT_TRUE(json.at("windows_to_detect").is_int64());
  EXPECT_TRUE(json.at("verdict").is_string());
  EXPECT_TRUE(json.at("blamed_sites").is_array());
  EXPECT_TRUE(json.at("action").is_string());
  EXPECT_TRUE(json.at("steps_lost").is_int64());
  EXPECT_TRUE(json.at("returned_to_fp8").is_bool());
  EXPECT_TRUE(json.at("false_alarms").is_int64());
  EXPECT_TRUE(json.at("final_loss").is_double());
  EXPECT_TRUE(json.at("wall_seconds").is_double());
  EXPECT_TRUE(json.at("verification_share").is_double());
  EXPECT_EQ(json.at("fault").at("site").as_string(), kFaultySite);
}

TEST_F(SummaryTest, AnUnknownExpectationIsRefused) {
  write_caught_fault(file());
  EXPECT_THROW(unmet_expectations(summary(), "everything"), ConfigError);
}

}  // namespace
}  // namespace gnomon::cli

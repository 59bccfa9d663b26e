#include "lab/backtest/backtest.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "tests/cli/recorded_ledger.h"
#include "tests/decide/scenarios.h"
#include "tests/support/temporary_directory.h"

namespace gnomon::cli {
namespace {

using decide::Policy;
using decide::scenario_policy;
using decide::SimulatedRun;
using decide::Truth;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Policy changed(std::function<void(Policy&)> change) { return decide::with(std::move(change)); }

class BacktestTest : public ::testing::Test {
 protected:
  std::filesystem::path file() const { return directory_.path() / "ledger.sqlite"; }

  void record(Truth truth, const Policy& policy, int64_t steps = 1000) {
    truth.bf16_step_seconds = 1.35;
    truth.replay_overhead_seconds = 4;
    SimulatedRun run(truth, policy);
    run.start();
    run.train_until(steps);
    run.end();
    run.drain();
    write_ledger(run, policy, file());
  }
  BacktestResult under(const Policy& policy) const {
    LedgerView ledger(file());
    return backtest(ledger, ledger.run_named(""), policy, file().string());
  }
  // A scale at one site is wrong from step 201 to 459; caught, pinned, and FP8 comes back.
  void record_fault(const Policy& policy = scenario_policy()) {
    record(decide::numerical_fault({decide::kGuilty}, 201, 460), policy);
  }

  test::TemporaryDirectory directory_;
};

void expect_same(const BacktestResult& result) {
  EXPECT_FALSE(result.not_as_recorded_seq.has_value());
  EXPECT_FALSE(result.parting.has_value()) << result.parting->reason;
  EXPECT_FALSE(result.first.has_value());
  EXPECT_THAT(result.differences, IsEmpty());
  EXPECT_THAT(result.shifts, IsEmpty());
  EXPECT_EQ(result.recorded, result.replayed);
  const BacktestSide &was = result.recorded_side, &now = result.replayed_side;
  EXPECT_EQ(was.alarms, now.alarms);
  EXPECT_EQ(was.verdicts, now.verdicts);
  EXPECT_EQ(was.actions, now.actions);
  EXPECT_EQ(was.windows_measured, now.windows_measured);
  EXPECT_EQ(was.windows_skipped, now.windows_skipped);
  EXPECT_EQ(now.windows_unmeasured, 0);
  EXPECT_EQ(was.replays, now.replays);
  EXPECT_EQ(was.steps_lost, now.steps_lost);
  EXPECT_EQ(was.verification_seconds, now.verification_seconds);
  ASSERT_TRUE(was.net_speedup.has_value());
  EXPECT_EQ(*was.net_speedup, now.net_speedup);
  EXPECT_EQ(result.expected_recorded, result.expected_replayed);
}

class BacktestScenarioTest : public BacktestTest,
                             public ::testing::WithParamInterface<decide::Scenario> {};

TEST_P(BacktestScenarioTest, TheRunsOwnPolicyDoesTheSameAgain) {
  const decide::Scenario& scenario = GetParam();
  SimulatedRun run(scenario.truth, scenario.policy);
  scenario.play(run);
  write_ledger(run, scenario.policy, file());
  expect_same(under(scenario.policy));
}

INSTANTIATE_TEST_SUITE_P(AllScenarios, BacktestScenarioTest,
                         ::testing::ValuesIn(decide::all_scenarios()),
                         [](const auto& each) { return each.param.name; });

TEST_F(BacktestTest, HalfAsManyWindowsAreAnsweredFromTheLedger) {
  record(Truth(), scenario_policy());
  const BacktestResult result = under(changed([](Policy& p) { p.window.every = 40; }));
  EXPECT_FALSE(result.parting.has_value());
  EXPECT_EQ(result.recorded_side.windows_measured, 50);
  EXPECT_EQ(result.replayed_side.windows_measured, 25);
  EXPECT_EQ(result.replayed_side.windows_unmeasured, 0);
  EXPECT_LT(result.replayed_side.verification_seconds,
            0.6 * result.recorded_side.verification_seconds);
  EXPECT_GT(*result.replayed_side.net_speedup, *result.recorded_side.net_speedup);
  EXPECT_GT(*result.expected_replayed, *result.expected_recorded);
  ASSERT_TRUE(result.first.has_value());
  EXPECT_THAT(result.first->recorded, Contains("opens a shadow window over steps 20–40"));
  EXPECT_THAT(result.first->replayed, IsEmpty());
}

TEST_F(BacktestTest, WindowsThatNobodyMeasuredAreCountedAndTheirCostIsEstimated) {
  Truth truth;
  truth.verifiers = {"v1:1"};  // nothing is audited: all replays are in BF16
  record(truth, changed([](Policy& p) { p.window.every = 40; }));
  const BacktestResult result = under(changed([](Policy& p) {
    p.verifier.on_loss = "hold";
    p.verifier.loss_windows = 1;
  }));
  EXPECT_FALSE(result.parting.has_value()) << "a window that is not on record is no lost verifier";
  const BacktestSide& side = result.replayed_side;
  EXPECT_EQ(side.windows_measured, 25);
  EXPECT_EQ(side.windows_unmeasured, 25);
  EXPECT_GE(side.replays_unanswered, 25);
  // Each 20 steps of 1.35 seconds and 4 besides.
  EXPECT_NEAR(side.seconds_estimated, 31.0 * static_cast<double>(side.replays_unanswered), 1e-6);
  EXPECT_NEAR(side.verification_seconds,
              result.recorded_side.verification_seconds + side.seconds_estimated, 62);
  EXPECT_LT(*side.net_speedup, *result.recorded_side.net_speedup);
}

TEST_F(BacktestTest, ACaseThatEndsAlikeWithOtherReplaysIsFollowedToTheEnd) {
  record_fault();
  const BacktestResult result = under(changed([](Policy& p) {
    p.triage.pairs = 0;
    p.attribution.parallel = 1;
  }));
  EXPECT_FALSE(result.parting.has_value()) << result.parting->reason;
  EXPECT_THAT(result.differences, IsEmpty());
  EXPECT_TRUE(result.first.has_value());
  EXPECT_LT(result.replayed_side.replays, result.recorded_side.replays);
  EXPECT_EQ(result.replayed_side.steps_lost, result.recorded_side.steps_lost);
  EXPECT_EQ(result.replayed_side.actions, result.recorded_side.actions);
  EXPECT_GT(*result.replayed_side.net_speedup, *result.recorded_side.net_speedup);
}

TEST_F(BacktestTest, ACaseThatTheRecordNeverOpenedEndsTheComparisonAndSaysSo) {
  record(Truth(), scenario_policy());
  const BacktestResult result = under(changed([](Policy& p) {
    p.detector.tolerance_percent = 0.0005;
    p.detector.ceiling_percent = 0.001;
  }));
  ASSERT_TRUE(result.parting.has_value());
  EXPECT_THAT(result.parting->reason, HasSubstr("was never made"));
  EXPECT_EQ(result.recorded_side.alarms, 0);
  EXPECT_EQ(result.replayed_side.alarms, 1);
  EXPECT_GT(result.alarms_after, 3);
  EXPECT_FALSE(result.estimate.has_value()) << "the record has no action to learn from";
  EXPECT_EQ(result.step, result.parting->step);
}

// Under growing_fault(), the bolder policy alarms at the first window, the recorded one at the
// third.
Policy fixed(double percent) {
  return changed([percent](Policy& p) {
    p.detector.kind = "fixed";
    p.detector.fixed_percent = percent;
    p.detector.ceiling_percent = 50;
    p.detector.accept_percent = 0;
  });
}

Truth growing_fault() {
  Truth truth;
  truth.replays_per_step_percent = 40;
  truth.damage = [](int64_t step, const std::set<std::string>& fp8) {
    if (!fp8.contains(decide::kGuilty) || step < 161) return 0.0;
    return step < 201 ? 0.03 : 0.2;
  };
  return truth;
}

TEST_F(BacktestTest, ACaseNearOneOfTheRecordGetsAnEstimateFromThat) {
  record(growing_fault(), fixed(1));
  const BacktestResult result = under(fixed(0.3));
  ASSERT_TRUE(result.parting.has_value());
  EXPECT_LT(result.parting->step, 200);
  ASSERT_TRUE(result.estimate.has_value());
  EXPECT_EQ(result.estimate->action, "pin");
  EXPECT_EQ(result.estimate->verdict, "fp8_numerics");
  EXPECT_GE(result.estimate->alarm_step, 220);
  EXPECT_GT(result.estimate->steps_to_rollback, 0);
  EXPECT_GE(result.estimate->steps_lost, result.estimate->steps_to_rollback);
  EXPECT_LT(*result.estimate->net_speedup, *result.replayed_side.net_speedup);
  EXPECT_GT(*result.estimate->net_speedup, 0);
}

TEST_F(BacktestTest, APolicyThatDoesNotActPartsWhereTheRecordedRunDid) {
  record_fault();
  const BacktestResult result = under(changed([](Policy& p) { p.mode = decide::Mode::kAdvise; }));
  ASSERT_TRUE(result.parting.has_value());
  EXPECT_THAT(result.parting->reason, HasSubstr("went back to step 200"));
  EXPECT_EQ(result.recorded_side.steps_lost > 0, true);
  EXPECT_EQ(result.replayed_side.steps_lost, 0);
  EXPECT_THAT(result.replayed_side.actions, Contains(HasSubstr("(not enforced)")));
}

TEST_F(BacktestTest, APolicyThatActsWhereTheRecordedRunDidNotIsChargedWithTheStepsItThrowsAway) {
  record_fault(changed([](Policy& p) { p.mode = decide::Mode::kAdvise; }));
  const BacktestResult result = under(scenario_policy());
  ASSERT_TRUE(result.parting.has_value());
  EXPECT_THAT(result.parting->reason, HasSubstr("orders rollback to step 200 here"));
  ASSERT_TRUE(result.parting->steps_lost.has_value());
  EXPECT_EQ(*result.parting->steps_lost, result.parting->step - 200);
  EXPECT_EQ(result.replayed_side.steps_lost, *result.parting->steps_lost);
  EXPECT_EQ(result.recorded_side.steps_lost, 0);
  EXPECT_LT(*result.replayed_side.net_speedup, *result.recorded_side.net_speedup);
}

TEST_F(BacktestTest, AReturnThatThePolicyHasNotOrderedEndsTheComparison) {
  record_fault();
  const BacktestResult result = under(changed([](Policy& p) { p.returning.quiet_windows = 30; }));
  ASSERT_TRUE(result.parting.has_value());
  EXPECT_THAT(result.parting->reason, HasSubstr("has not ordered by then"));
  EXPECT_GT(result.parting->step, 460);
}

TEST_F(BacktestTest, ALedgerThatAnotherPolicyDecidedIsComparedAndSaidToBe) {
  const Policy own = scenario_policy();
  record_fault(changed([](Policy& p) { p.mode = decide::Mode::kAdvise; }));
  SQLite::Database database(file(), SQLite::OPEN_READWRITE);
  SQLite::Statement set(database, "UPDATE runs SET policy = ?");
  set.bind(1, own.to_toml());
  set.exec();
  EXPECT_TRUE(under(own).not_as_recorded_seq.has_value());
}

TEST_F(BacktestTest, ARunWhoseEventsWereDeletedIsRefused) {
  record_fault();
  SQLite::Database(file().string(), SQLite::OPEN_READWRITE)
      .exec("DELETE FROM events WHERE seq <= 40");
  try {
    under(scenario_policy());
    FAIL() << "nothing was compared";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("has no event 1 "));
    EXPECT_THAT(error.what(), HasSubstr("[retention]"));
  }
}

TEST_F(BacktestTest, AnEventThatCannotBeReadIsNamed) {
  record(Truth(), scenario_policy(), 50);
  SQLite::Database(file(), SQLite::OPEN_READWRITE)
      .exec("UPDATE events SET body = '{}' WHERE seq = 2");
  try {
    under(scenario_policy());
    FAIL() << "it was read";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("event 2"));
  }
}

}  // namespace
}  // namespace gnomon::cli

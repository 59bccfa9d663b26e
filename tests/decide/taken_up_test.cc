// What an end, a restart, a refusal or a replaced policy has cut off is taken up again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "controller/decide/plans.h"
#include "controller/decide/stability.h"
#include "tests/decide/transition_fixture.h"

namespace gnomon::decide {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(TakenUpTest, AFaultThatWasOnlyReportedIsActedOnOnceThePolicyEnforces) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 2000),
                   with([](Policy& p) { p.mode = Mode::kObserve; }));
  run.start();
  run.train_until(400);
  ASSERT_TRUE(run.state.fault_reported);
  ASSERT_THAT(run.directives(""), IsEmpty());
  run.policy.mode = Mode::kEnforce;
  run.train_until(900);
  EXPECT_FALSE(run.directives("rollback").empty());
  EXPECT_LT(run.damage, 1);
}

TEST_F(TransitionTest, ARestartsSettingsCountThoughTheRunHadEnded) {
  for (int64_t step = 0; step <= 20; step += 10) checkpoint(step);
  handle(RunEnded{"stopped", 20});
  handle(RunRegisteredEvent{"run", "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n", site_names(2), 2,
                            40, 2000});
  EXPECT_EQ(state().run.checkpoint_every, 40);
  EXPECT_EQ(state().run.total_steps, 2000);
  EXPECT_TRUE(state().ended) << "no step has come yet";
  handle(AttemptStarted{2, 20, "restart", 1});
  for (int64_t step = 40; step <= 160; step += 40) checkpoint(step, 2);
  EXPECT_THAT(all<OpenWindow>(), SizeIs(1)) << "windows of the new checkpoints";
}

// Nobody has replaced a policy.
TEST_F(TransitionTest, OtherCheckpointsAreNoReplacedPolicy) {
  policy_.window.every = 60;
  for (int64_t step = 0; step <= 60; step += 10) checkpoint(step);
  handle(RunRegisteredEvent{"run", "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n", site_names(2), 2,
                            40, 2000});
  handle(AttemptStarted{2, 60, "restart", 1});
  for (int64_t step = 80; step <= 160; step += 40) {
    checkpoint(step, 2);
    for (const RecordDecision& decision : all<RecordDecision>())
      EXPECT_NE(decision.kind, "cadence") << decision.sentence;
  }
}

TEST(TakenUpTest, AnActionWhoseRunEndedFirstStillBringsFp8Back) {
  Truth truth = numerical_fault({kGuilty}, 201, 260);
  truth.total_steps = 2000;
  SimulatedRun run(truth, scenario_policy());
  run.start();
  while (run.step < 600 && run.state.attempt.number < 2) run.advance();
  run.train_until(213);
  run.end("stopped");
  ASSERT_TRUE(run.state.containment && !run.state.containment->recovered);
  run.restart_from(run.step / 10 * 10);
  run.train_until(1500);
  EXPECT_FALSE(run.state.containment) << "the fault is over";
  EXPECT_TRUE(said_in(run, "return", "FP8 comes back"));
}

TEST(TakenUpTest, ARollbackThatTheEndCameBeforeIsOrderedAgain) {
  Truth truth;
  truth.bit_flips = {333};
  SimulatedRun run(truth, scenario_policy());
  run.ignores = {"rollback"};
  run.start();
  run.train_until_phase("containing", 500);
  ASSERT_GT(run.damage, 10);
  run.end("failed");
  run.ignores.clear();
  run.restart_from(run.step / 10 * 10);
  run.train_until(800);
  EXPECT_LT(run.damage, 1);
  EXPECT_TRUE(said_in(run, "action", "ended before it could go back"));
}

TEST(TakenUpTest, APlanThatTheEndCameBeforeSilencesNothing) {
  SimulatedRun run(Truth(), scenario_policy());
  run.ignores = {"set_plan"};
  run.start();
  run.train_until(100);
  run.ask("set_plan", 1e6, PrecisionPlan::bf16().to_toml());
  run.end("failed");
  run.ignores.clear();
  run.restart_from(run.step / 10 * 10);
  EXPECT_FALSE(run.state.operator_plan) << "it was never in force";
}

// A recovery needs up to five windows; few may wait for verifiers.
TEST(TakenUpTest, ARecoveryHasRoomForItsWindows) {
  Truth truth = numerical_fault({kGuilty}, 201, 100'000);
  truth.total_steps = 3000;
  truth.noise_percent = 0.8;
  SimulatedRun run(truth, with([](Policy& p) {
                     p.window.open_max = 1;
                     p.detector.prior_scale_percent = 0.4;
                   }));
  run.start();
  run.train_until(2000);
  ASSERT_TRUE(run.state.containment);
  EXPECT_TRUE(run.state.containment->recovered);
  EXPECT_LE(std::ranges::count_if(run.state.windows, &WindowState::unsettled), 4);
}

TEST(TakenUpTest, ASuspicionThatWaitedForARefusedDirectiveIsLookedInto) {
  Truth truth = numerical_fault({kGuilty}, 601, 700);
  truth.total_steps = 4000;
  int64_t nan_at = 0;
  truth.bump = [&](int64_t step, const std::set<std::string>& fp8) {
    return nan_at > 0 && step == nan_at && !fp8.empty() ? std::nan("") : 0.0;
  };
  SimulatedRun run(truth, scenario_policy());
  run.start();
  run.train_until_phase("contained", 1000);
  run.ignores = {"set_plan"};
  run.train_until_phase("returning", 2000);
  while (run.step < 2000 && !(run.state.directive && run.state.directive->purpose == "return"))
    run.advance();
  ASSERT_TRUE(run.state.directive);
  nan_at = run.step + 3;
  run.train_until(run.step + 12);
  ASSERT_TRUE(run.state.suspicion);
  run.feed(DirectiveChanged{run.state.directive->number, "rejected", run.attempt, run.step, "no"});
  run.train_until(run.step + 200);
  EXPECT_TRUE(std::isfinite(run.damage));
}

TEST(TakenUpTest, ABurstEndsWithThePolicyThatHadIt) {
  SimulatedRun run(Truth(), scenario_policy());
  run.start();
  run.train_until(100);
  run.state.watch.gap.evidence.burst_left = 16;
  run.state.watch.burst_left = 16;
  run.policy.detector.burst = false;
  run.train_until(200);
  EXPECT_EQ(run.state.watch.burst_left, 0);
}

TEST(TakenUpTest, ABrokenInstrumentIsMendedThoughNoChecksAreOrderedAnyMore) {
  SimulatedRun run(Truth(), scenario_policy());
  run.start();
  run.train_until(100);
  run.state.watch.instrument.broken = true;
  run.policy.instrument.every = 0;
  run.train_until(600);
  EXPECT_FALSE(run.state.watch.instrument.broken);
}

TEST_F(TransitionTest, ARestartKeepsWhatBf16HasBeenAt) {
  State kept = state();
  kept.watch.stability.lowest = 2;
  kept.watch.stability.lowest_step = 100;
  kept.watch.stability.kept = {.end_step = 400, .deviation = 0.1, .shares = {{"v1:1"}}};
  State all_kept = kept, some_kept = kept, none_kept = kept;
  forget_stability_after(all_kept, 400);
  EXPECT_EQ(all_kept.watch.stability.kept.shares.size(), 1u);
  forget_stability_after(some_kept, 300);
  EXPECT_EQ(some_kept.watch.stability.lowest, 2);
  EXPECT_EQ(some_kept.watch.stability.kept.end_step, 300);
  EXPECT_THAT(some_kept.watch.stability.kept.shares, IsEmpty());
  forget_stability_after(none_kept, 90);
  EXPECT_EQ(none_kept.watch.stability.lowest, 0);
}

// Where its answer comes first, the rollback's steps are lost all the same.
TEST(TakenUpTest, ARollbackToTheStartCountsItsStepsAsLost) {
  SimulatedRun run(numerical_fault({kGuilty}, 1, 100'000), scenario_policy());
  run.start();
  while (run.step < 600 && run.directives("rollback").empty()) run.advance();
  ASSERT_FALSE(run.directives("rollback").empty());
  ASSERT_EQ(run.directives("rollback").front().to_step, 0);
  run.train_until(run.step + 40);
  EXPECT_GT(run.state.money.account.fp8_lost, 0);
}

TEST_F(TransitionTest, ThePlanOfATrainerWithoutAControllerIsBf16) {
  EXPECT_TRUE(plan_of(state(), -1).bf16);
  EXPECT_FALSE(plan_of(state(), 1).bf16);
}

TEST(TakenUpTest, TrainingThatIsCalmInBf16IsNotCalledUnstableForEver) {
  SimulatedRun run(Truth(), scenario_policy());
  run.start();
  run.train_until(100);
  run.state.watch.stability.unstable_since = 90;
  run.ask("set_plan", 1e6, PrecisionPlan::bf16().to_toml());
  run.train_until(600);
  EXPECT_FALSE(run.state.watch.stability.unstable_since);
}

// A NaN that rounding decides is no fault of BF16: the run may not stay NaN for it.
TEST(TakenUpTest, ANanOfFp8AloneIsLeftThoughChanceDecidedIt) {
  Truth truth;
  truth.total_steps = 1500;
  truth.bump = [](int64_t step, const std::set<std::string>& fp8) {
    return step == 433 && !fp8.empty() ? std::nan("") : 0.0;
  };
  SimulatedRun run(truth, scenario_policy());
  // Nudged replays come through.
  run.lie = [](ReplayFinished& answer) {
    if (answer.arm != "bf16" && answer.arm != "same" && !answer.losses.empty() &&
        !std::isfinite(answer.losses.back()))
      answer.losses.back() = 3;
  };
  run.start();
  run.train_until(1000);
  EXPECT_TRUE(std::isfinite(run.damage) || run.paused);
}

}  // namespace
}  // namespace gnomon::decide

// Single transitions where a run begins again, goes back, or changes its plan or its checkpoints.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/decide/transition_fixture.h"

namespace gnomon::decide {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(TransitionTest, AMissingCheckpointMovesTheNextWindow) {
  checkpoint(0);
  checkpoint(10);
  checkpoint(30);  // 20 never came
  checkpoint(40);
  EXPECT_THAT(all<OpenWindow>(), IsEmpty());
  checkpoint(50);
  ASSERT_THAT(all<OpenWindow>(), SizeIs(1));
  EXPECT_EQ(all<OpenWindow>()[0].start_step, 30);
}

TEST_F(TransitionTest, ARestartKeepsFinishedWindowsAndBeginsAtItsBase) {
  for (int64_t step = 0; step <= 30; step += 10) checkpoint(step);
  handle(StepReported{1, 35, 1, 2.0, 1.0});
  handle(AttemptStarted{2, 30, "restart", 1});
  EXPECT_THAT(all<CloseWindow>(), IsEmpty());
  checkpoint(40, 2);
  checkpoint(50, 2);
  ASSERT_THAT(all<OpenWindow>(), SizeIs(1));
  EXPECT_EQ(all<OpenWindow>()[0].start_uri, uri(30, 1));
  EXPECT_EQ(all<OpenWindow>()[0].attempt, 2);
  shadow(1, 0.1);
  EXPECT_EQ(all<CloseWindow>()[0].outcome, "quiet");
}

TEST_F(TransitionTest, ARestartBeforeAWindowsEndMakesItMoot) {
  for (int64_t step = 0; step <= 20; step += 10) checkpoint(step);
  handle(AttemptStarted{2, 10, "restart", 1});
  ASSERT_THAT(all<CloseWindow>(), SizeIs(1));
  EXPECT_EQ(all<CloseWindow>()[0].outcome, "skipped");
  EXPECT_EQ(all<CloseWindow>()[0].why, "the run went back to step 10");
  shadow(1, 9);
  EXPECT_THAT(last_.effects, IsEmpty());
  EXPECT_THAT(last_.reason, HasSubstr("not waited for"));
}

// The trainer finds one on its disk that was forgotten here; an older one is still known as good.
TEST_F(TransitionTest, ARestartFromAnUnknownCheckpointLeavesAnOlderVerifiedOne) {
  for (int64_t step = 0, window = 1; step <= 60; step += 10) {
    checkpoint(step);
    if (!state().windows.empty()) shadow(window++, 0.1);
  }
  ASSERT_TRUE(state().last_verified);
  const int64_t unknown = state().last_verified->step - 5;
  ASSERT_FALSE(state().older_verified.empty());
  handle(AttemptStarted{2, unknown, "restart", 1});
  ASSERT_TRUE(state().last_verified) << "a held run would have nothing to go back to";
  EXPECT_LT(state().last_verified->step, unknown);
}

TEST_F(TransitionTest, ARollbacksFirstWindowIsReproducedUnderTheNewPlan) {
  policy_.ladder.rungs = {"pin", "bf16"};
  checkpoint(0);
  handle(AttemptStarted{2, 0, "rollback", 2});
  checkpoint(10, 2, 2);
  checkpoint(20, 2, 2);
  ASSERT_THAT(all<OpenWindow>(), SizeIs(1));
  EXPECT_EQ(all<OpenWindow>()[0].plan_version, 2);
  shadow(1, 3);
  ASSERT_THAT(all<OrderReplay>(), SizeIs(2)) << "BF16 by a second source, and";
  EXPECT_EQ(all<OrderReplay>()[0].arm, "bf16");
  EXPECT_EQ(all<OrderReplay>()[1].arm, "plan")
      << "the checkpoint holds the plan before the rollback";
}

TEST_F(TransitionTest, AnAlarmOfStepsThatARollbackUndidIsNotRaised) {
  policy_.ladder.rungs = {"bf16"};
  for (int64_t step = 0; step <= 40; step += 10) checkpoint(step);
  shadow(1, 3);
  shadow(2, 4);  // steps 20–40: waits for the case
  answer("same", 3);
  answer("fakequant", 3);
  ASSERT_THAT(all<IssueDirective>(), SizeIs(1));
  ASSERT_EQ(all<IssueDirective>()[0].kind, "rollback");
  ASSERT_EQ(all<IssueDirective>()[0].to_step, 0);
  handle(DirectiveChanged{1, "applied", 1, 45, ""});
  EXPECT_THAT(all<RecordDecision>(), IsEmpty());
  EXPECT_THAT(all<OrderReplay>(), IsEmpty());
  ASSERT_THAT(all<CloseWindow>(), SizeIs(1));
  EXPECT_EQ(all<CloseWindow>()[0].outcome, "alarm");
  handle(AttemptStarted{2, 0, "rollback", 2});
  EXPECT_THAT(all<RecordDecision>(), IsEmpty());
  EXPECT_EQ(state().recovery->attempt, 2);
}

TEST_F(TransitionTest, TheFirstStepsAfterARollbackAreNoSpikesBesideTheLossesTheyReplace) {
  const auto loss = [](int64_t step) {
    return 5.0 - 0.03 * static_cast<double>(step) + 0.001 * static_cast<double>(step % 3);
  };
  checkpoint(0);
  for (int64_t step = 1; step <= 100; ++step) handle(StepReported{1, step, 1, loss(step), 1.0});
  handle(AttemptStarted{2, 50, "rollback", 1});
  for (int64_t step = 51; step <= 60; ++step) {
    handle(StepReported{2, step, 1, loss(step), 1.0});
    EXPECT_THAT(all<RecordDecision>(), IsEmpty()) << step;
  }
  handle(StepReported{2, 61, 1, loss(61) + 1, 1.0});
  EXPECT_THAT(all<RecordDecision>(), SizeIs(1)) << "a true spike";
}

TEST_F(TransitionTest, ARunThatHadStoppedIsSupervisedAgainWhenItGoesOn) {
  checkpoint(0);
  handle(RunEnded{"failed", 7});
  ASSERT_EQ(phase_name(state()), "ended");
  handle(AttemptStarted{1, 0, "start", 1});  // late, and nothing new
  EXPECT_EQ(phase_name(state()), "ended");
  handle(AttemptStarted{2, 0, "restart", 1});
  EXPECT_EQ(phase_name(state()), "watching");
  checkpoint(10, 2);
  checkpoint(20, 2);
  EXPECT_THAT(all<OpenWindow>(), SizeIs(1));
}

// Somebody ended it for its trainer, which was only cut off.
TEST_F(TransitionTest, ARunThatWasSaidToHaveEndedIsSupervisedAgainWhereItIs) {
  checkpoint(0);
  handle(AttemptStarted{1, 3, kContinued, 1});
  EXPECT_THAT(last_.reason, HasSubstr("has not ended"));
  handle(RunEnded{"failed", 7});
  handle(AttemptStarted{2, 13, kContinued, 1});
  EXPECT_EQ(phase_name(state()), "ended") << "no such attempt";
  handle(AttemptStarted{1, 13, kContinued, 1});
  EXPECT_EQ(phase_name(state()), "watching");
  EXPECT_EQ(state().attempt.number, 1);
  for (int64_t step : {20, 30, 40}) checkpoint(step);
  ASSERT_THAT(all<OpenWindow>(), Not(IsEmpty()));
  EXPECT_GE(all<OpenWindow>()[0].start_step, 13) << "what nobody heard of is not verified";
}

TEST_F(TransitionTest, WindowsFollowTheCheckpointIntervalThatARestartBrings) {
  checkpoint(0);
  handle(RunRegisteredEvent{"run", "", {}, 0, 30, 2000});
  handle(AttemptStarted{2, 0, "restart", 1});
  checkpoint(30, 2);
  ASSERT_THAT(all<OpenWindow>(), SizeIs(1));
  EXPECT_EQ(all<OpenWindow>()[0].steps, 30);
  EXPECT_EQ(state().run.total_steps, 2000);
  EXPECT_THAT(state().run.sites, SizeIs(15)) << "the model stays";
}

// The trainer ran a few steps in BF16 because the controller was away: no replay has one plan for
// that, and `same` would be taken for broken hardware.
TEST_F(TransitionTest, AWindowThatRanUnderTwoPlansIsPassedOver) {
  checkpoint(0);
  for (int64_t step = 1; step <= 40; ++step) {
    const bool away = step >= 13 && step <= 17;
    handle(StepReported{1, step, away ? -1 : 1, 2.0, 1.0});
    if (step % 10 != 0) continue;
    checkpoint(step);
    EXPECT_THAT(all<OpenWindow>(), SizeIs(step == 40 ? 1 : 0)) << step;
  }
  EXPECT_EQ(all<OpenWindow>()[0].start_step, 20);
}

}  // namespace
}  // namespace gnomon::decide

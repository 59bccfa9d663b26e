// Single transitions: one event at a time, with the effects it must have and those it must not
// have.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "controller/decide/windows.h"
#include "protocol/json.h"
#include "tests/decide/transition_fixture.h"

namespace gnomon::decide {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

TEST_F(TransitionTest, TheFirstCheckpointOfARunIsVerifiedAndProtected) {
  checkpoint(0);
  ASSERT_THAT(all<MarkVerified>(), SizeIs(1));
  EXPECT_EQ(all<MarkVerified>()[0].step, 0);
  ASSERT_THAT(all<ProtectCheckpoints>(), SizeIs(1));
  EXPECT_THAT(all<ProtectCheckpoints>()[0].uris, ElementsAre(uri(0)));
  EXPECT_THAT(all<OpenWindow>(), IsEmpty());
}

TEST_F(TransitionTest, AWindowOpensWhenItsEndIsCompleteAndOrdersTheBf16Shadow) {
  checkpoint(0);
  checkpoint(10);
  EXPECT_THAT(all<OpenWindow>(), IsEmpty());
  checkpoint(20);
  ASSERT_THAT(all<OpenWindow>(), SizeIs(1));
  const OpenWindow open = all<OpenWindow>()[0];
  EXPECT_EQ(open.kind, "shadow");
  EXPECT_EQ(open.start_step, 0);
  EXPECT_EQ(open.steps, 20);
  EXPECT_EQ(open.start_uri, uri(0));
  EXPECT_EQ(open.end_uri, uri(20));
  ASSERT_THAT(all<OrderReplay>(), SizeIs(1));
  EXPECT_EQ(all<OrderReplay>()[0].arm, "bf16");
  EXPECT_TRUE(all<OrderReplay>()[0].evaluate_endpoints);
}

TEST_F(TransitionTest, QuietWindowsMoveTheVerifiedCheckpointInOrderOnly) {
  for (int64_t step = 0; step <= 40; step += 10) checkpoint(step);
  shadow(2, 0.1);  // the window 20–40 first
  EXPECT_THAT(all<MarkVerified>(), IsEmpty());
  EXPECT_EQ(all<CloseWindow>()[0].outcome, "quiet");
  shadow(1, 0.1);
  ASSERT_THAT(all<MarkVerified>(), SizeIs(2));
  EXPECT_EQ(all<MarkVerified>()[1].step, 40);
  EXPECT_EQ(state().last_verified->step, 40);
}

TEST_F(TransitionTest, ABurnInWindowIsMeasuredTeachesNothingAndHasTheCeiling) {
  policy_.detector.burn_in_steps = 40;
  checkpoint(0);
  checkpoint(20);
  shadow(1, 0.1);
  EXPECT_THAT(all<RecordDecision>(), IsEmpty());
  ASSERT_THAT(all<CloseWindow>(), SizeIs(1));
  EXPECT_EQ(all<CloseWindow>()[0].outcome, "quiet");
  EXPECT_EQ(state().watch.gap.scale.weight, 0);
  EXPECT_EQ(state().last_verified->step, 20);
  checkpoint(40);
  shadow(2, 1.5);
  ASSERT_THAT(all<RecordDecision>(), SizeIs(1));
  EXPECT_EQ(all<RecordDecision>()[0].kind, "alarm");
  EXPECT_EQ(state().watch.gap.scale.weight, 0);
  EXPECT_THAT(all<MarkVerified>(), IsEmpty());
}

TEST_F(TransitionTest, WhatLosesMoreThanIsToleratedIsNeverVerifiedByItself) {
  for (const int64_t burn_in : {0, 1000}) {
    SCOPED_TRACE(burn_in);
    last_ = Outcome();
    SetUp();
    policy_.detector.burn_in_steps = burn_in;
    checkpoint(0);
    checkpoint(20);
    shadow(1, 0.6);
    ASSERT_THAT(all<CloseWindow>(), SizeIs(1));
    EXPECT_EQ(all<CloseWindow>()[0].outcome, "quiet");
    EXPECT_THAT(all<MarkVerified>(), IsEmpty());
    EXPECT_EQ(state().last_verified->step, 0);
    checkpoint(40);
    shadow(2, 0.1);
    ASSERT_THAT(all<MarkVerified>(), SizeIs(1)) << "what is quiet again lies behind it";
    EXPECT_EQ(all<MarkVerified>()[0].step, 40);
  }
}

TEST_F(TransitionTest, AQuietWindowBehindAnAlarmIsNotVerified) {
  for (int64_t step = 0; step <= 40; step += 10) checkpoint(step);
  shadow(1, 3);
  shadow(2, 0.1);
  EXPECT_THAT(all<MarkVerified>(), IsEmpty());
  EXPECT_EQ(state().last_verified->step, 0);
}

TEST_F(TransitionTest, AnAlarmWhileACaseIsOpenWaitsForIt) {
  for (int64_t step = 0; step <= 40; step += 10) checkpoint(step);
  shadow(1, 3);
  ASSERT_THAT(all<RecordDecision>(), SizeIs(1));
  ASSERT_THAT(all<ShowWindow>(), SizeIs(1));
  EXPECT_EQ(all<ShowWindow>()[0].numbers.window, 1);
  EXPECT_EQ(all<ShowWindow>()[0].numbers.rule, "ceiling");
  shadow(2, 4);
  ASSERT_THAT(last_.effects, SizeIs(1)) << "it is shown, and nothing follows";
  EXPECT_EQ(all<ShowWindow>()[0].numbers.window, 2);
  EXPECT_NEAR(*all<ShowWindow>()[0].numbers.d_percent, 4, 1e-9);
  EXPECT_THAT(last_.reason, HasSubstr("waits for the open case"));
}

TEST_F(TransitionTest, AWindowThatCannotBeMeasuredFailsWithoutBlame) {
  for (int64_t step = 0; step <= 20; step += 10) checkpoint(step);
  ReplayFinished result;
  result.replay = 1;
  result.run_end_loss_bf16 = 2.0;
  result.replay_end_loss_bf16 = NAN;
  handle(result);
  EXPECT_EQ(all<CloseWindow>()[0].outcome, "failed");
  EXPECT_EQ(all<RecordDecision>()[0].kind, "instrument");
  EXPECT_FALSE(state().investigation.has_value());
}

TEST_F(TransitionTest, BeyondTheLimitNewWindowsAreSkippedAndRecorded) {
  policy_.window.open_max = 2;
  for (int64_t step = 0; step <= 50; step += 10) checkpoint(step);
  checkpoint(60);
  ASSERT_THAT(all<CloseWindow>(), SizeIs(1));
  EXPECT_EQ(all<CloseWindow>()[0].outcome, "skipped");
  EXPECT_THAT(all<OrderReplay>(), IsEmpty());
  EXPECT_THAT(state().windows, SizeIs(2));
}

// Verifiers that stand still until the queue is full do not hide what a sentinel has seen.
TEST_F(TransitionTest, AWindowThatASentinelCallsForTakesTheNewestOnesPlace) {
  policy_.window.open_max = 2;
  for (int64_t step = 0; step <= 50; step += 10) checkpoint(step);
  last_.state.watch.called_start = 60;
  for (int64_t step = 60; step <= 80; step += 10) checkpoint(step);
  ASSERT_THAT(state().windows, SizeIs(2));
  EXPECT_EQ(state().windows[0].start.step, 0) << "a verifier may be at it";
  EXPECT_TRUE(state().windows[1].called);
  ASSERT_THAT(all<OrderReplay>(), SizeIs(1));
  EXPECT_EQ(all<OrderReplay>()[0].priority, kPriorityCalled);
  for (int64_t step = 90; step <= 130; step += 10) checkpoint(step);
  EXPECT_TRUE(state().windows[1].called) << "it keeps its place";
}

// Steps after a rollback come again; a call in them was of another attempt.
TEST_F(TransitionTest, ARollbackForgetsACallBehindIt) {
  for (int64_t step = 0; step <= 50; step += 10) checkpoint(step);
  last_.state.watch.called_step = 30;
  handle(AttemptStarted{2, 40, "rollback", 1});
  EXPECT_EQ(state().watch.called_step, 30);
  handle(AttemptStarted{3, 20, "rollback", 1});
  EXPECT_EQ(state().watch.called_step, -1);
}

TEST_F(TransitionTest, AWindowThatWaitsForACaseTakesNoVerifiersPlace) {
  policy_.window.open_max = 2;
  for (int64_t step = 0; step <= 40; step += 10) checkpoint(step);
  shadow(1, 3);  // a case
  shadow(2, 4);  // waits for it
  for (int64_t step = 50; step <= 80; step += 10) {
    checkpoint(step);
    EXPECT_THAT(all<CloseWindow>(), IsEmpty()) << step;
  }
  const auto waits = [](const WindowState& window) { return window.shadow_pending; };
  EXPECT_EQ(std::ranges::count_if(state().windows, waits), 2);
}

TEST_F(TransitionTest, ABurstWaitsForTheCaseThatIsOpen) {
  policy_.window.every = 40;
  policy_.window.open_max = 8;
  for (int64_t step = 0; step <= 20; step += 10) checkpoint(step);
  last_.state.watch.burst_left = 10;
  shadow(1, 3);
  ASSERT_TRUE(state().investigation);
  int64_t opened = 0;
  for (int64_t step = 30; step <= 140; step += 10) {
    last_.state.watch.burst_left = 10;
    checkpoint(step);
    opened += std::ssize(all<OpenWindow>());
  }
  EXPECT_EQ(opened, 3) << "40 to 60, 80 to 100, 120 to 140";
}

TEST_F(TransitionTest, WindowsAreRoundedToCheckpointsAndThatIsSaidOnce) {
  policy_.window.every = 25;
  policy_.window.steps = 15;
  checkpoint(0);
  ASSERT_THAT(all<RecordDecision>(), SizeIs(1));
  EXPECT_EQ(all<RecordDecision>()[0].kind, "accept");
  EXPECT_THAT(all<RecordDecision>()[0].sentence, HasSubstr("20 steps every 40 steps"));
  checkpoint(10);
  EXPECT_THAT(all<RecordDecision>(), IsEmpty());
  checkpoint(20);
  EXPECT_EQ(all<OpenWindow>()[0].steps, 20);
  EXPECT_EQ(state().next_start, 40) << "no greater share than 15 of 25";
}

TEST_F(TransitionTest, AWindowMayNotStraddleAChangeOfPlan) {
  checkpoint(0);
  checkpoint(10);
  checkpoint(20, 1, 2);
  EXPECT_THAT(all<OpenWindow>(), IsEmpty());
  checkpoint(30, 1, 2);
  checkpoint(40, 1, 2);
  ASSERT_THAT(all<OpenWindow>(), SizeIs(1));
  EXPECT_EQ(all<OpenWindow>()[0].start_step, 20);
}

TEST_F(TransitionTest, LateAndUnknownEventsAreSaidAndChangeNothing) {
  checkpoint(0);
  const std::string before = state_to_json(state());
  for (const Event& event : std::vector<Event>{
           StepReported{7, 1, 1, 2.0, 1.0}, CheckpointCompleted{3, 10, "elsewhere", 1},
           ReplayFinished{}, ReplayFailed{5, 5, "bf16", "x"},
           DirectiveChanged{4, "applied", 1, 1, ""}, AttemptStarted{1, 0, "start", 1},
           RunRegisteredEvent{}, CheckpointCompleted{1, 0, uri(0), 1}}) {
    handle(event);
    EXPECT_THAT(last_.effects, IsEmpty()) << event_type(event);
    EXPECT_FALSE(last_.reason.empty()) << event_type(event);
    EXPECT_EQ(state_to_json(state()), before) << event_type(event);
  }
}

TEST_F(TransitionTest, OnceSameDiffersTheRollbackGoesBeforeTheMismatch) {
  for (int64_t step = 0; step <= 40; step += 10) checkpoint(step);
  shadow(1, 0.1);
  shadow(2, 3);
  ReplayFinished same;
  same.replay = id_of("same");
  same.fingerprint_equal = true;
  same.compared_steps = 20;
  same.first_mismatch_step = 33;
  same.verifier = "one:1";
  handle(same);
  EXPECT_THAT(all<IssueDirective>(), IsEmpty()) << "another one is asked first";
  same.replay = id_of("same_elsewhere");
  same.verifier = "two:2";
  handle(same);
  ASSERT_THAT(all<IssueDirective>(), SizeIs(1));
  EXPECT_EQ(all<IssueDirective>()[0].kind, "rollback");
  EXPECT_EQ(all<IssueDirective>()[0].to_step, 20);
  EXPECT_EQ(phase_name(state()), "containing");
  handle(AttemptStarted{2, 20, "rollback", 1});
  EXPECT_FALSE(state().directive.has_value());
  handle(DirectiveChanged{1, "applied", 2, 20, ""});
  EXPECT_THAT(last_.reason, HasSubstr("not waited for"));
  checkpoint(30, 2);
  checkpoint(40, 2);
  shadow(3, 0.1);
  ASSERT_THAT(all<RecordDecision>(), SizeIs(1));
  EXPECT_EQ(all<RecordDecision>()[0].kind, "recovered");
  EXPECT_EQ(phase_name(state()), "watching");
}

TEST_F(TransitionTest, WhenNobodyCanReproduceAGapTheRunGoesToBf16Unexplained) {
  for (int64_t step = 0; step <= 20; step += 10) checkpoint(step);
  shadow(1, 3);
  handle(ReplayFailed{id_of("same"), 1, "same", "no verifier"});
  ASSERT_THAT(all<RecordDecision>(), SizeIs(2));
  EXPECT_EQ(all<RecordDecision>()[0].verdict, "unexplained");
  EXPECT_EQ(all<RecordDecision>()[1].action, "bf16");
}

TEST_F(TransitionTest, FailedRescuesEndAttributionInBf16) {
  for (int64_t step = 0; step <= 20; step += 10) checkpoint(step);
  shadow(1, 3);
  ReplayFinished same;
  same.replay = id_of("same");
  same.fingerprint_equal = true;
  same.compared_steps = 20;
  handle(same);
  answer("fakequant", 3);
  answer("fakequant", 3);  // a second source
  EXPECT_EQ(phase_name(state()), "attribution");
  EXPECT_THAT(all<OrderReplay>(), SizeIs(2)) << "two at a time";
  for (int i = 0; i < 3; ++i) handle(ReplayFailed{id_of("rescue"), 1, "plan", "broken"});
  ASSERT_THAT(all<IssueDirective>(), SizeIs(1));
  EXPECT_THAT(all<RecordDecision>()[0].sentence, HasSubstr("3 replays could not be done"));
}

TEST_F(TransitionTest, ASpikeReplaysFromACheckpointWellBeforeIt) {
  for (int64_t step = 1; step <= 52; ++step) {
    handle(StepReported{1, step, 1, step % 2 == 0 ? 2.01 : 1.99, 1.0});
    if (step % 10 == 0) checkpoint(step);
  }
  handle(StepReported{1, 53, 1, 9.0, 1.0});
  ASSERT_THAT(all<OpenWindow>(), SizeIs(1));
  EXPECT_EQ(all<OpenWindow>()[0].kind, "incident");
  EXPECT_EQ(all<OpenWindow>()[0].start_step, 40) << "step 50 may hold what broke step 53";
  EXPECT_EQ(all<OpenWindow>()[0].steps, 13);
  ASSERT_THAT(all<OrderReplay>(), SizeIs(2));
  EXPECT_EQ(all<OrderReplay>()[0].arm, "same");
  EXPECT_EQ(all<OrderReplay>()[1].arm, "bf16");
  EXPECT_GT(all<OrderReplay>()[0].priority, 50);
}

TEST_F(TransitionTest, AfterTheRunsEndWindowsAreJudgedAndNothingIsOrdered) {
  for (int64_t step = 0; step <= 40; step += 10) checkpoint(step);
  handle(RunEnded{"completed", 40});
  EXPECT_EQ(phase_name(state()), "ended");
  shadow(1, 0.1);
  EXPECT_EQ(all<CloseWindow>()[0].outcome, "quiet");
  shadow(2, 5);
  ASSERT_THAT(all<CloseWindow>(), SizeIs(1));
  EXPECT_EQ(all<CloseWindow>()[0].outcome, "alarm");
  EXPECT_THAT(all<OrderReplay>(), IsEmpty());
  EXPECT_THAT(all<IssueDirective>(), IsEmpty());
}

TEST_F(TransitionTest, AWindowWithAGenericSpikeInItIsNotHeldAgainstFp8) {
  SimulatedRun run(spike(333, 3.0), scenario_policy());
  run.start();
  run.train_until(339);
  run.drain();
  ASSERT_THAT(run.state.generic_spike_steps, ElementsAre(333));
  run.train_one_step();
  int64_t replay = 0;
  for (const PendingReplay& pending : run.state.replays) replay = pending.id;
  ReplayFinished result;
  result.replay = replay;
  result.run_end_loss_bf16 = 2.2;
  result.replay_end_loss_bf16 = 2.0;
  run.feed(result);
  ASSERT_THAT(run.decisions("verdict"), SizeIs(2));
  EXPECT_EQ(run.decisions("verdict")[1].verdict, "generic_spike");
  EXPECT_FALSE(run.state.investigation.has_value());
}

TEST(DecideJsonTest, RefusesWhatIsNotAnEventOfThatType) {
  EXPECT_THROW(event_from_json("earthquake", "{}"), JsonError);
  EXPECT_THROW(event_from_json("tick", "{\"extra\":1}"), JsonError);
  EXPECT_THROW(event_from_json("run_ended", "{\"outcome\":\"completed\"}"), JsonError);
  EXPECT_THROW(event_from_json("run_ended", "{\"outcome\":\"completed\",\"step\":\"many\"}"),
               JsonError);
  EXPECT_THROW(state_from_json("[]"), JsonError);
}

TEST(DecideJsonTest, DoublesSurviveToTheLastBit) {
  StepReported step;
  step.loss = 0.1 + 0.2;
  step.grad_norm = 2.2250738585072014e-308;
  const Event read = event_from_json("step_reported", event_to_json(step));
  EXPECT_EQ(std::get<StepReported>(read).loss, step.loss);
  EXPECT_EQ(std::get<StepReported>(read).grad_norm, step.grad_norm);
  step.loss = NAN;
  step.grad_norm = -HUGE_VAL;
  const Event special = event_from_json("step_reported", event_to_json(step));
  EXPECT_TRUE(std::isnan(std::get<StepReported>(special).loss));
  EXPECT_EQ(std::get<StepReported>(special).grad_norm, -HUGE_VAL);
}

}  // namespace
}  // namespace gnomon::decide

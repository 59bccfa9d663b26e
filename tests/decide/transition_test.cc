// Single transitions: one event at a time, with the effects it must have and those it must not
// have.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "protocol/json.h"
#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class TransitionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    policy_ = scenario_policy();
    policy_.instrument.every = 0;
    policy_.triage.pairs = 0;
    policy_.attribution.scores = false;
    handle(RunRegisteredEvent{"run", "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n", site_names(2), 2,
                              10, 1000});
    handle(AttemptStarted{1, 0, "start", 1});
  }

  Outcome& handle(const Event& event) {
    last_ = decide(std::move(last_.state), event, policy_, 0);
    for (const OrderReplay& order : all<OrderReplay>()) {
      if (order.purpose == "shadow") shadows_[order.window] = order.replay;
    }
    return last_;
  }
  void checkpoint(int64_t step, int64_t attempt = 1, int64_t plan = 1) {
    handle(CheckpointCompleted{attempt, step, uri(step, attempt), plan});
  }
  static std::string uri(int64_t step, int64_t attempt = 1) {
    return fmt::format("a{}s{}", attempt, step);
  }

  // Answers a window's BF16 shadow, and what a second source is asked because of it.
  Outcome& shadow(int64_t window, double d_percent) {
    return answer(shadows_[window], window, d_percent);
  }
  // Answers the replay of that role that the open case waits for.
  Outcome& answer(const std::string& role, double d_percent) {
    const PendingReplay* replay = waiting(role);
    EXPECT_NE(replay, nullptr) << role;
    return replay != nullptr ? answer(replay->id, replay->window, d_percent) : last_;
  }
  Outcome& answer(int64_t replay, int64_t window, double d_percent) {
    ReplayFinished result;
    result.replay = replay;
    result.window = window;
    result.replay_end_loss_bf16 = 2.0 - 0.001 * static_cast<double>(window);
    result.run_end_loss_bf16 = *result.replay_end_loss_bf16 * (1 + d_percent / 100);
    result.fingerprint_equal = true;
    result.compared_steps = 20;
    result.verifier = "one:1";
    result.end_hash = fmt::format("bf16-of-{}", window);
    handle(result);
    return confirm(result);
  }
  int64_t id_of(const std::string& role) const {
    const PendingReplay* replay = waiting(role);
    return replay != nullptr ? replay->id : 0;
  }

  // An honest second source says the same. What follows counts as having followed the first answer.
  Outcome& confirm(ReplayFinished said) {
    const PendingReplay* asked = waiting("confirm", said.window);
    if (asked == nullptr) return last_;
    std::vector<Effect> effects = std::move(last_.effects);
    const std::string reason = std::move(last_.reason);
    said.replay = asked->id;
    said.verifier = "two:2";
    handle(said);
    last_.effects.insert(last_.effects.begin(), effects.begin(), effects.end());
    last_.reason = reason + last_.reason;
    return last_;
  }
  const PendingReplay* waiting(const std::string& role, int64_t window = 0) const {
    for (const PendingReplay& replay : state().replays) {
      if (replay.role == role && (window == 0 || replay.window == window)) return &replay;
    }
    return nullptr;
  }

  template <class Kind>
  std::vector<Kind> all() const {
    std::vector<Kind> found;
    for (const Effect& effect : last_.effects) {
      if (const auto* kind = std::get_if<Kind>(&effect)) found.push_back(*kind);
    }
    return found;
  }

  const State& state() const { return last_.state; }

  Policy policy_;
  Outcome last_;
  std::map<int64_t, int64_t> shadows_;  // replays by window
};

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
  shadow(1, 9);
  EXPECT_THAT(last_.effects, IsEmpty());
  EXPECT_THAT(last_.reason, HasSubstr("not waited for"));
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

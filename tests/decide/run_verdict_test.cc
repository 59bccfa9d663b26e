// What a run is called, from what is on record and the clock: every verdict, and which one wins.
#include "controller/decide/run_verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <utility>

#include "controller/decide/decide.h"
#include "tests/decide/scenarios.h"

namespace gnomon::decide {

void PrintTo(VerdictKind kind, std::ostream* out) { *out << verdict_name(kind); }

namespace {

using ::testing::HasSubstr;

constexpr const char* kFp8 = "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n";
constexpr const char* kBf16 = "[[rule]]\nmatch = \"*\"\ngemms = \"bf16\"\n";

// A run whose trainer and verifiers are played by hand: a step a second, a checkpoint every 10.
class RunVerdictTest : public ::testing::Test {
 protected:
  RunVerdictTest() {
    policy_.window.every = 20;
    policy_.window.steps = 10;
    policy_.instrument.every = 0;
  }
  void begin(const char* plan = kFp8, int64_t base = 0) {
    handle(RunRegisteredEvent{"run", plan, {"a", "b"}, 1, 10, 1000});
    handle(AttemptStarted{1, base, "start", 1});
    step_ = base;
    checkpoint();
  }
  void handle(const Event& event) {
    last_ = decide(std::move(last_.state), event, policy_, now_);
    // As after a restart: all that the verdict needs is in the state as it is written down.
    last_.state = state_from_json(state_to_json(last_.state));
    for (const Effect& effect : last_.effects) {
      if (const auto* order = std::get_if<OrderReplay>(&effect)) orders_.push_back(*order);
    }
  }
  void checkpoint() {
    handle(CheckpointCompleted{attempt_, step_, "step-" + std::to_string(step_), 1});
  }
  void train_until(int64_t step) {
    while (step_ < step) {
      now_ += 1;
      handle(
          StepReported{attempt_, ++step_, 1, 3.0 - 0.001 * static_cast<double>(step_), 1.0, 1.0});
      if (step_ % 10 == 0) checkpoint();
    }
  }
  // Answers all replays that wait, with a gap in per cent, and what a second source is asked
  // because of that.
  void answer(double d_percent) {
    answer(std::exchange(orders_, {}), d_percent);
    const auto of_second_source = std::ranges::stable_partition(
        orders_, [&](const OrderReplay& order) { return role_of(order.replay) != "confirm"; });
    const std::vector<OrderReplay> asked(of_second_source.begin(), of_second_source.end());
    orders_.erase(of_second_source.begin(), of_second_source.end());
    answer(asked, d_percent);
  }
  ReplayRole role_of(int64_t id) const {
    const auto found = std::ranges::find(last_.state.replays, id, &PendingReplay::id);
    return found != last_.state.replays.end() ? found->role : ReplayRole();
  }
  // As honest verifiers do: a window's BF16 replay ends at the same loss whoever does it.
  void answer(const std::vector<OrderReplay>& orders, double d_percent) {
    for (const OrderReplay& order : orders) {
      ReplayFinished result;
      result.replay = order.replay;
      result.window = order.window;
      result.arm = order.arm;
      result.purpose = order.purpose;
      result.verifier = avoids(order.avoid, "v") ? "w" : "v";
      result.start_loss_bf16 = 3.0;
      result.start_loss_plan = 3.0;
      result.replay_end_loss_bf16 = 2.9 - 0.0001 * static_cast<double>(order.window);
      result.run_end_loss_bf16 = *result.replay_end_loss_bf16 * (1 + d_percent / 100);
      handle(result);
    }
  }
  void train_verified_until(int64_t step) {
    while (step_ < step) {
      train_until(step_ + 10);
      answer(0.01);
    }
  }
  RunVerdict verdict(double later = 0) const {
    return run_verdict(verdict_facts(last_.state, policy_), now_ + later);
  }
  VerdictKind kind(double later = 0) const { return verdict(later).kind; }

  Policy policy_;
  Outcome last_;
  std::vector<OrderReplay> orders_;
  double now_ = 100'000;
  int64_t step_ = 0;
  int64_t attempt_ = 1;
};

TEST_F(RunVerdictTest, AFreshRunIsNeverGoodAndSaysWhenItsFirstWindowIsExpected) {
  begin();
  EXPECT_EQ(kind(), VerdictKind::kUnverified);
  EXPECT_THAT(verdict().sentence, HasSubstr("the first one is expected at step 10"));
  train_until(12);
  EXPECT_EQ(kind(), VerdictKind::kUnverified);
  EXPECT_THAT(verdict().sentence, HasSubstr("window 1 (steps 1 to 10) waits"));
  answer(0.01);
  EXPECT_EQ(kind(), VerdictKind::kGood) << verdict().sentence;
  EXPECT_EQ(verdict().since, now_);
}

TEST_F(RunVerdictTest, AGoodRunSaysWhereItsNextWindowIsAndWhereNoneIsLeft) {
  begin();
  train_verified_until(50);
  train_until(57);
  EXPECT_THAT(verdict().sentence, HasSubstr("verified up to step 50 of 57"));
  EXPECT_THAT(verdict().sentence, HasSubstr("The next window is from step 60 on"));
  last_.state.next_start = 995;
  EXPECT_THAT(verdict().sentence, HasSubstr("No further window ends before the run does"));
}

// What was spent early is paid back: the next window is planned far away.
TEST_F(RunVerdictTest, BehindAPlannedWindowThatIsMissingARunIsUnverified) {
  policy_.window.every = 0;
  begin();
  train_verified_until(50);
  const int64_t every = last_.state.watch.every = 100;
  const int64_t distance = 4 * every, measured = last_.state.standing.measured_step;
  last_.state.next_start = last_.state.money.spending.last_start + distance;
  train_until(measured + distance + every - 1);
  EXPECT_EQ(kind(), VerdictKind::kGood) << verdict().sentence;
  train_until(measured + distance + every);
  EXPECT_EQ(kind(), VerdictKind::kUnverified) << verdict().sentence;
}

TEST_F(RunVerdictTest, NobodyVerifiesFromTwiceTheWindowDistanceOn) {
  begin();
  train_verified_until(50);
  ASSERT_EQ(last_.state.standing.measured_step, 50);
  train_until(89);
  EXPECT_EQ(kind(), VerdictKind::kGood) << verdict().sentence;
  train_until(90);
  EXPECT_EQ(kind(), VerdictKind::kUnverified);
  const double since = now_;
  train_until(400);  // windows are skipped meanwhile, which measures nothing
  EXPECT_EQ(kind(), VerdictKind::kUnverified);
  EXPECT_EQ(verdict().since, since);
  EXPECT_THAT(verdict().sentence, HasSubstr("350 steps since step 50"));
  EXPECT_THAT(verdict().sentence, HasSubstr("gnomon-verifier"));
  EXPECT_EQ(verdict_facts(last_.state, policy_).lag_steps, 350);
  answer(0.01);
  EXPECT_NE(kind(), VerdictKind::kGood) << "the windows that waited are of long ago";
}

TEST_F(RunVerdictTest, AFreshRunThatNobodyVerifiesIsSoSinceTheMomentAWindowWasDue) {
  begin(kFp8, 5000);
  EXPECT_EQ(last_.state.standing.first_base, 5000);
  train_until(5039);
  EXPECT_THAT(verdict().sentence, HasSubstr("No window"));
  train_until(5040);
  EXPECT_EQ(verdict().since, now_);
  EXPECT_THAT(verdict().sentence, HasSubstr("Nobody verifies this run"));
  EXPECT_EQ(verdict_facts(last_.state, policy_).lag_steps, 40) << "from where the run began";
}

TEST_F(RunVerdictTest, TheDistanceIsThatOfTheCheckpointsWhereTheyAreRarer) {
  policy_.window.every = 2;
  policy_.window.steps = 2;
  begin();
  train_until(19);
  EXPECT_THAT(verdict().sentence, HasSubstr("No window"));
  train_until(20);
  EXPECT_THAT(verdict().sentence, HasSubstr("Nobody verifies"));
}

TEST_F(RunVerdictTest, FailedReplaysMeasureNothing) {
  begin();
  while (step_ < 40) {
    train_until(step_ + 10);
    for (const OrderReplay& order : std::exchange(orders_, {}))
      handle(ReplayFailed{order.replay, order.window, order.arm, "no memory"});
  }
  EXPECT_THAT(verdict().sentence, HasSubstr("Nobody verifies"));
  EXPECT_THAT(verdict().sentence, HasSubstr("the newest replay could not be used: no memory"));
}

TEST_F(RunVerdictTest, WithoutCheckpointsItIsSaidThatTheyAreMissing) {
  begin();
  train_verified_until(20);
  for (int i = 0; i < 60; ++i) handle(StepReported{1, ++step_, 1, 2.9, 1.0, 1.0});
  EXPECT_EQ(kind(), VerdictKind::kUnverified);
  EXPECT_THAT(verdict().sentence, HasSubstr("newest checkpoint is of step 20"));
}

TEST_F(RunVerdictTest, SilentAfterThirtySecondsOrThreeMeanSteps) {
  begin();
  train_verified_until(20);
  EXPECT_EQ(kind(30), VerdictKind::kGood);
  EXPECT_EQ(kind(30.5), VerdictKind::kSilent);
  EXPECT_EQ(verdict(100).since, now_ + 30);
  EXPECT_THAT(verdict(100).sentence, HasSubstr("nothing for 100 s (a step takes 1 s"));
  for (int i = 0; i < 20; ++i) {
    now_ += 40;
    handle(StepReported{1, ++step_, 1, 2.9, 1.0, 40.0});
  }
  EXPECT_NE(kind(119), VerdictKind::kSilent);
  EXPECT_EQ(kind(121), VerdictKind::kSilent);
  EXPECT_NE(kind(-1000), VerdictKind::kSilent) << "a clock that was set back";
}

TEST_F(RunVerdictTest, APaceThatTheTrainerDoesNotSayIsSeenInItsReports) {
  begin();
  for (int i = 0; i < 20; ++i) {
    now_ += 40;
    handle(StepReported{1, ++step_, 1, 2.9, 1.0, 0});
  }
  EXPECT_NE(kind(119), VerdictKind::kSilent);
  EXPECT_EQ(kind(121), VerdictKind::kSilent);
}

TEST_F(RunVerdictTest, AnOutageIsNoPace) {
  begin();
  train_verified_until(20);
  now_ += 3600;  // gnomond was away; then a spool of steps comes at once
  for (int i = 0; i < 8; ++i) handle(StepReported{1, ++step_, 1, 2.9, 1.0, 1.0});
  EXPECT_EQ(kind(), VerdictKind::kGood);
  EXPECT_EQ(kind(31), VerdictKind::kSilent);
}

TEST_F(RunVerdictTest, ATrainerThatReplaysItselfIsNotSilent) {
  begin();
  train_verified_until(20);
  const VerdictFacts facts = verdict_facts(last_.state, policy_);
  EXPECT_EQ(verdict_kind(facts, now_ + 300, now_ + 301), VerdictKind::kGood);
  EXPECT_EQ(verdict_kind(facts, now_ + 302, now_ + 301), VerdictKind::kSilent);
}

TEST_F(RunVerdictTest, ARunThatNeverReportsAStepIsSilentToo) {
  begin();
  EXPECT_EQ(kind(31), VerdictKind::kSilent);
}

TEST_F(RunVerdictTest, APausedRunIsHeldAndNotSilent) {
  begin();
  train_verified_until(20);
  handle(OperatorOverride{"pause", "", "", "anna", "disk", 0});
  EXPECT_EQ(kind(), VerdictKind::kGood) << "the trainer has not paused yet";
  handle(DirectiveChanged{1, "applied", 1, step_, ""});
  EXPECT_EQ(kind(1e6), VerdictKind::kHeld);
  EXPECT_THAT(verdict(1e6).sentence, HasSubstr("paused by an operator"));
  EXPECT_EQ(verdict(1e6).since, now_);
}

TEST_F(RunVerdictTest, InObserveModeHarmIsSaidAsHarmUntilAWindowIsQuiet) {
  policy_.mode = Mode::kObserve;
  policy_.triage.pairs = 0;
  begin();
  train_verified_until(20);
  train_until(30);
  const double before = now_;
  answer(4.0);
  EXPECT_EQ(kind(), VerdictKind::kUnderInvestigation) << verdict().sentence;
  EXPECT_EQ(verdict().since, before);
  for (int i = 0; i < 40 && last_.state.investigation; ++i) answer(4.0);
  EXPECT_EQ(kind(), VerdictKind::kHarmful) << verdict().sentence;
  EXPECT_THAT(verdict().sentence, HasSubstr("the mode is observe"));
  EXPECT_EQ(kind(31), VerdictKind::kSilent) << "a dead trainer is more urgent";
  train_until(60);
  EXPECT_EQ(kind(), VerdictKind::kHarmful);
  answer(0.01);
  EXPECT_EQ(kind(), VerdictKind::kGood) << verdict().sentence;
}

TEST_F(RunVerdictTest, ASilencedDetectorsAlarmIsHarmThatNobodyAnswers) {
  begin();
  train_verified_until(20);
  handle(OperatorOverride{"silence", "", "", "anna", "noise", now_ + 10'000});
  train_until(30);
  answer(4.0);
  EXPECT_EQ(kind(), VerdictKind::kHarmful);
  EXPECT_THAT(verdict().sentence, HasSubstr("anna has silenced the detectors"));
}

TEST_F(RunVerdictTest, ARunInBf16HasNothingToVerify) {
  begin(kBf16);
  train_until(500);
  EXPECT_EQ(kind(), VerdictKind::kGood);
  EXPECT_THAT(verdict().sentence, HasSubstr("in BF16"));
}

TEST_F(RunVerdictTest, AnEndedRunSaysHowMuchOfItWasVerified) {
  begin();
  train_verified_until(50);
  train_until(95);
  handle(RunEnded{"completed", 95});
  EXPECT_EQ(kind(1e6), VerdictKind::kEnded);
  const RunVerdict ended = ended_verdict(verdict_facts(last_.state, policy_), "completed", 7.0);
  EXPECT_EQ(ended.since, 7.0);
  EXPECT_THAT(ended.sentence, HasSubstr("verified up to step 50; what follows, 45 steps, is not"));
}

TEST_F(RunVerdictTest, WhatARollbackTookAwayIsNotMeasuredAnyMore) {
  begin();
  train_verified_until(100);
  handle(AttemptStarted{2, 50, "rollback", 1});
  attempt_ = 2;
  step_ = 50;
  train_until(90);
  EXPECT_EQ(kind(), VerdictKind::kUnverified) << verdict().sentence;
}

TEST_F(RunVerdictTest, ARefusedDirectiveCountsUntilOneIsApplied) {
  begin();
  train_verified_until(20);
  handle(OperatorOverride{"pause", "", "", "anna", "disk", 0});
  handle(DirectiveChanged{1, "rejected", 1, step_, "no"});
  handle(DirectiveChanged{1, "rejected", 1, step_, "the same once more"});
  handle(DirectiveChanged{77, "rejected", 1, step_, "never issued"});
  EXPECT_EQ(verdict_facts(last_.state, policy_).directives_unapplied, 1);
  handle(OperatorOverride{"pause", "", "", "anna", "disk", 0});
  handle(DirectiveChanged{2, "applied", 1, step_, ""});
  EXPECT_EQ(verdict_facts(last_.state, policy_).directives_unapplied, 0);
}

// Verifiers that are busy with a case measure no window, and answer all the same.
TEST(RunVerdictScenario, ARunWhoseCaseIsAnsweredIsVerified) {
  Truth truth = numerical_fault({kGuilty}, 400, 1'000'000);
  truth.replays_per_step_percent = 6;
  SimulatedRun run(truth, scenario_policy());
  run.start();
  int64_t investigated = 0;
  for (int64_t step = 20; step <= 900; step += 1) {
    run.train_until(step);
    if (!run.state.investigation || run.state.investigation->evidence.answers.empty()) continue;
    ++investigated;
    EXPECT_NE(verdict_facts(run.state, scenario_policy()).standing.kind, VerdictKind::kUnverified)
        << step;
  }
  EXPECT_GT(investigated, 40) << "the case takes longer than two distances";
}

// A fault that is caught, contained and recovered from, by the simulator.
TEST(RunVerdictScenario, HarmIsInvestigatedThenContained) {
  SimulatedRun run(numerical_fault({kGuilty}, 400, 1'000'000), scenario_policy());
  run.start();
  std::vector<std::string> seen;
  for (int64_t step = 20; step <= 900; step += 1) {
    run.train_until(step);
    std::string name(verdict_name(verdict_facts(run.state, scenario_policy()).standing.kind));
    if (seen.empty() || seen.back() != name) seen.push_back(name);
  }
  EXPECT_THAT(seen, ::testing::Contains("good"));
  EXPECT_EQ(seen.back(), "contained") << ::testing::PrintToString(seen);
}

}  // namespace
}  // namespace gnomon::decide

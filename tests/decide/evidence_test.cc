// What the evidence is made of: each window once, and none that a spike shared by BF16 has shaken.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "controller/decide/windows.h"
#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kSpikeStep = 225;  // in the window 220–240

double healthy_d(int64_t window_start) {
  return 0.01 * static_cast<double>(window_start % 70) / 10;
}

// A run whose windows are answered when the test says so.
class EvidenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    policy_ = scenario_policy();
    policy_.instrument.every = 0;
    policy_.triage.pairs = 0;
    policy_.window.open_max = 40;
    policy_.detector.burn_in_windows = 4;
    handle(RunRegisteredEvent{"run", "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n", site_names(1), 1,
                              10, 1000});
    handle(AttemptStarted{1, 0, "start", 1});
    checkpoint(0);
  }

  void handle(const Event& event) {
    Outcome outcome = decide(std::move(state_), event, policy_, 0);
    state_ = std::move(outcome.state);
    for (const Effect& effect : outcome.effects) {
      if (const auto* close = std::get_if<CloseWindow>(&effect)) closed_.push_back(*close);
    }
  }
  void checkpoint(int64_t step) {
    handle(CheckpointCompleted{attempt_, step, fmt::format("a{}s{}", attempt_, step), 1});
  }

  // Steps and their checkpoints; windows that open stay unanswered.
  void train_to(int64_t last, bool spike = true) {
    for (int64_t step = state_.newest_step + 1; step <= last; ++step) {
      const bool spikes = spike && step == kSpikeStep;
      handle(StepReported{attempt_, step, 1,
                          spikes ? 50.0 : 2.0 + 0.001 * static_cast<double>(step % 3), 1.0});
      if (step % 10 == 0) checkpoint(step);
    }
  }

  const PendingReplay* pending(const std::string& role, int64_t window_start = -1) const {
    for (const PendingReplay& replay : state_.replays) {
      for (const WindowState& window : state_.windows) {
        const bool meant = window_start < 0 || window.start.step == window_start;
        if (replay.window == window.id && meant && replay.role == role) return &replay;
      }
    }
    return nullptr;
  }

  ReplayFinished shadow_of(int64_t window_start, double d_percent) const {
    const PendingReplay* replay = pending("shadow", window_start);
    EXPECT_NE(replay, nullptr) << window_start;
    ReplayFinished result;
    if (replay == nullptr) return result;
    result.replay = replay->id;
    result.window = replay->window;
    result.replay_end_loss_bf16 = 2.0 - 1e-5 * static_cast<double>(replay->window);
    result.run_end_loss_bf16 = *result.replay_end_loss_bf16 * (1 + d_percent / 100);
    result.start_loss_bf16 = 2.0;
    result.start_loss_plan = 2.002;
    result.verifier = "one:1";
    result.end_hash = fmt::format("bf16-of-{}", replay->window);
    return result;
  }
  // A shadow's answer and, where a second source is asked because of it, what an honest one says.
  void handle_confirmed(ReplayFinished said) {
    handle(said);
    const PendingReplay* asked = nullptr;
    for (const PendingReplay& replay : state_.replays) {
      if (replay.role == "confirm" && replay.window == said.window) asked = &replay;
    }
    if (asked == nullptr) return;
    said.replay = asked->id;
    said.verifier = "two:2";
    handle(said);
  }
  // A shadow of window 240–260, after healthy ones; BF16 itself rises over it.
  ReplayFinished shadow_after_a_rise(double rise_percent, double d_percent) {
    train_to(260, false);
    for (int64_t start = 0; start < 240; start += 20) judge(start, healthy_d(start));
    ReplayFinished result = shadow_of(240, d_percent);
    result.start_loss_bf16 = *result.replay_end_loss_bf16 / (1 + rise_percent / 100);
    return result;
  }
  void judge(int64_t window_start, double d_percent) {
    handle_confirmed(shadow_of(window_start, d_percent));
  }
  void judge_all() {
    for (;;) {
      const PendingReplay* replay = pending("shadow");
      if (replay == nullptr) return;
      const int64_t id = replay->window;
      const auto window = std::find_if(state_.windows.begin(), state_.windows.end(),
                                       [id](const WindowState& known) { return known.id == id; });
      judge(window->start.step, healthy_d(window->start.step));
    }
  }

  // BF16 spikes at the step, too.
  void answer_spike() {
    for (const char* role : {"same", "bf16", "bf16_far", "bf16", "bf16_far"}) {
      const PendingReplay* replay = pending(role);
      if (replay == nullptr) continue;
      ReplayFinished result;
      result.replay = replay->id;
      result.window = replay->window;
      result.fingerprint_equal = true;
      result.compared_steps = 5;
      const WindowState& window = *find_window(state_, replay->window);
      for (int64_t step = window.start.step + 1; step <= window.end_step(); ++step) {
        result.steps.push_back(step);
        result.losses.push_back(step == kSpikeStep ? 50 : 3);
      }
      result.run_losses = result.losses;
      handle(result);
    }
  }
  void share_the_spike() {
    answer_spike();
    ASSERT_THAT(state_.generic_spike_steps, ElementsAre(kSpikeStep));
    ASSERT_FALSE(state_.investigation);
  }

  // All that the detectors have learned and hold.
  std::string evidence() const {
    State bare;
    bare.watch.gap = state_.watch.gap;
    bare.watch.long_gap = state_.watch.long_gap;
    bare.watch.burst_left = state_.watch.burst_left;
    return state_to_json(bare);
  }
  std::string outcome_of(int64_t window) const {
    for (const CloseWindow& close : closed_) {
      if (close.window == window) return close.outcome;
    }
    return "open";
  }

  Policy policy_;
  State state_;
  int64_t attempt_ = 1;
  std::vector<CloseWindow> closed_;
};

TEST_F(EvidenceTest, AWindowWithAKnownGenericSpikeIsMeasuredAndTeachesNothing) {
  train_to(220);
  judge_all();
  train_to(239);
  share_the_spike();
  checkpoint(240);
  train_to(240);
  const std::string before = evidence();
  judge(220, 0.45);  // far above the others, below the ceiling: quiet otherwise
  EXPECT_EQ(evidence(), before);
  ASSERT_FALSE(closed_.empty());
  EXPECT_EQ(closed_.back().outcome, "skipped");
  EXPECT_NEAR(*closed_.back().d_percent, 0.45, 1e-9);
  EXPECT_EQ(state_.last_verified->step, 220) << "nor does it verify its end";
}

TEST_F(EvidenceTest, ASpikeIsTakenOutOfWhatWasJudgedBeforeItsVerdict) {
  train_to(300);
  const std::string twin = state_to_json(state_);
  // In one run the window is judged first, and three others after it; in the other it never is.
  judge_all();
  EXPECT_THAT(state_.watch.seen, SizeIs(15));
  const std::string with = evidence();
  share_the_spike();
  const std::string without = evidence();
  EXPECT_NE(without, with);
  EXPECT_THAT(state_.watch.seen, SizeIs(14));
  state_ = state_from_json(twin);
  share_the_spike();
  judge_all();
  EXPECT_EQ(evidence(), without);
}

TEST_F(EvidenceTest, AnAlarmOfAWindowThatASpikeHasShakenLeavesNoEvidence) {
  train_to(220);
  judge_all();
  const std::string before = evidence();
  train_to(240);
  judge(220, 1.5);  // an alarm that waits for the open case
  share_the_spike();
  EXPECT_EQ(evidence(), before);
  EXPECT_EQ(closed_.back().outcome, "skipped");
  EXPECT_FALSE(state_.investigation);
}

TEST_F(EvidenceTest, AnAlarmThatWaitedFallsWithTheWindowThatItStoodOn) {
  train_to(220);
  judge_all();
  train_to(260);
  judge(220, 0.6);  // holds the spike, under the ceiling
  judge(240, 0.6);
  const WindowState& waiting = state_.windows.back();
  ASSERT_EQ(waiting.start.step, 240);
  ASSERT_TRUE(waiting.deferred) << "two such windows are an alarm, and the spike's case is open";
  ASSERT_EQ(waiting.judged->rule, "evidence");
  const int64_t id = waiting.id;
  share_the_spike();  // which also expects that no case is open afterwards
  EXPECT_EQ(outcome_of(id), "skipped");
}

TEST_F(EvidenceTest, AnAlarmThatWaitedAndStandsOnItsOwnOpensItsCase) {
  train_to(220);
  judge_all();
  train_to(260);
  judge(220, 0.6);
  judge(240, 1.5);  // over the ceiling
  const int64_t id = state_.windows.back().id;
  answer_spike();
  ASSERT_TRUE(state_.investigation);
  EXPECT_EQ(state_.investigation->window, id);
  EXPECT_FALSE(state_.investigation->evidence.chance_excluded)
      << "two windows were evidence, one of them is not";
}

// The learning rate, say: BF16 loses ground as well.
TEST_F(EvidenceTest, AShockThatBf16SuffersMoreFromIsNoEvidence) {
  const ReplayFinished shocked = shadow_after_a_rise(7, 1.5);  // D is over the ceiling
  const std::string before = evidence();
  handle_confirmed(shocked);
  EXPECT_EQ(evidence(), before);
  EXPECT_EQ(outcome_of(shocked.window), "skipped");
  EXPECT_FALSE(state_.investigation);
}

TEST_F(EvidenceTest, AShockThatFp8AddsMoreToIsLookedInto) {
  handle_confirmed(shadow_after_a_rise(7, 9));
  EXPECT_TRUE(state_.investigation);
}

TEST_F(EvidenceTest, ARiseAsHealthyRunsHaveItIsNoShock) {
  handle_confirmed(shadow_after_a_rise(3, 1.5));
  EXPECT_TRUE(state_.investigation);
}

TEST_F(EvidenceTest, WindowsThatACrashMakesTheRunRepeatCountOnce) {
  train_to(200, false);
  judge_all();
  EXPECT_THAT(state_.watch.seen, SizeIs(10));
  attempt_ = 2;
  handle(AttemptStarted{2, 130, "restart", 1});
  EXPECT_THAT(state_.watch.seen, SizeIs(6)) << "those that end at 120 and before";
  checkpoint(130);
  train_to(200, false);
  judge_all();
  EXPECT_THAT(state_.watch.seen, SizeIs(9)) << "and 130–150, 150–170, 170–190";
}

TEST_F(EvidenceTest, ACrashThatUndoesMoreWindowsThanAreKnownBeginsTheEvidenceAnew) {
  policy_.detector.burst = false;
  train_to(500, false);
  judge_all();
  handle(AttemptStarted{2, 60, "restart", 1});
  EXPECT_THAT(state_.watch.seen, IsEmpty());
  EXPECT_THAT(state_.watch.gap.evidence.sums, ::testing::Each(0.0));
}

// A bias that each window shows a little of: the alarm comes when windows before it were quiet.
SimulatedRun slow_bias(const std::string& from) {
  Policy policy = scenario_policy();
  policy.ladder.from = from;
  policy.detector.accept_percent = 0;
  policy.detector.jump_deviations = 0;  // would see it in its first windows
  SimulatedRun run(numerical_fault({kGuilty}, 601, 2000, 0.02), policy);
  run.start();
  run.train_until(600);
  EXPECT_EQ(run.damage, 0);
  run.train_until_phase("containing", 1000);
  run.train_until_phase("contained", 1100);
  return run;
}

// Windows that lost more than is tolerated were quiet, and are no base.
TEST(ChangePointTest, ARollbackToTheLastVerifiedCheckpointGoesBehindWhatWasNotClean) {
  const SimulatedRun run = slow_bias("last_verified");
  ASSERT_THAT(run.directives("rollback"), SizeIs(1));
  EXPECT_LE(run.directives("rollback")[0].to_step, 600);
  EXPECT_GE(run.directives("rollback")[0].to_step, 540);
  EXPECT_NEAR(run.damage, 0, 1e-9);
}

TEST(ChangePointTest, ARollbackToWhereTheEvidenceBeganToRiseUndoesIt) {
  const SimulatedRun run = slow_bias("evidence");
  ASSERT_THAT(run.directives("rollback"), SizeIs(1));
  const int64_t to = run.directives("rollback")[0].to_step;
  EXPECT_LE(to, 600);
  EXPECT_GE(to, 500) << "and not much more";
  EXPECT_NEAR(run.damage, 0, 1e-9);
  EXPECT_THAT(run.directives("rollback")[0].reason,
              ::testing::HasSubstr("where the evidence began to rise"));
  EXPECT_THAT(run.decisions("recovered"), SizeIs(1));
}

// The checkpoints that it may need are kept, and not all of them.
TEST(ChangePointTest, AHealthyRunKeepsAFewCheckpointsForIt) {
  Policy policy = scenario_policy();
  policy.ladder.from = "evidence";
  Truth truth;
  truth.total_steps = 4000;
  SimulatedRun run(truth, policy);
  run.start();
  size_t most = 0;
  while (run.step < 4000) {
    run.advance();
    most = std::max(most, run.state.checkpoints.size());
  }
  EXPECT_GT(most, 5u);
  EXPECT_LE(most, 24u);
}

class EveryScenario : public ::testing::TestWithParam<Scenario> {};

// After each event an earlier answer once more, as it was and spoilt.
TEST_P(EveryScenario, LateAnswersOfAnyArmChangeNothing) {
  SimulatedRun run(GetParam().truth, GetParam().policy);
  GetParam().play(run);
  State state;
  std::vector<ReplayFinished> answers;
  std::set<std::string> arms;
  uint64_t turn = 0;
  for (size_t i = 0; i < run.events.size(); ++i) {
    Outcome outcome = decide(std::move(state), run.events[i], GetParam().policy, run.times[i]);
    state = std::move(outcome.state);
    if (const auto* answer = std::get_if<ReplayFinished>(&run.events[i]))
      answers.push_back(*answer);
    if (answers.empty() || i % 7 != 0) continue;
    ReplayFinished late = answers[turn++ * 2654435761 % answers.size()];
    arms.insert(late.arm);
    if (turn % 2 == 0) {
      late.run_end_loss_bf16 = std::numeric_limits<double>::quiet_NaN();
      late.replay_end_loss_bf16 = std::numeric_limits<double>::infinity();
      late.fingerprint_equal = !late.fingerprint_equal;
      late.seconds = 1e9;
    }
    const std::string before = state_to_json(state);
    outcome = decide(std::move(state), late, GetParam().policy, run.times[i]);
    state = std::move(outcome.state);
    EXPECT_EQ(state_to_json(state), before) << late.arm;
    EXPECT_THAT(outcome.effects, IsEmpty()) << late.arm;
  }
  EXPECT_TRUE(arms.contains("bf16"));
}

INSTANTIATE_TEST_SUITE_P(Scenarios, EveryScenario, ::testing::ValuesIn(all_scenarios()),
                         [](const auto& scenario) { return scenario.param.name; });

}  // namespace
}  // namespace gnomon::decide

// Where windows begin, and where attempts may: replaced policies, long windows, undone steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kReplacedAt = 20'000;

// A healthy run under a budget that pays for windows far apart, up to the step.
SimulatedRun far_between_windows() {
  Truth truth;
  truth.total_steps = 40'000;
  truth.bf16_step_seconds = 1.35;
  truth.replay_overhead_seconds = 4;
  Policy policy;
  policy.window.steps = 20;
  policy.verification.budget_percent = 2;
  SimulatedRun run(truth, policy);
  run.start();
  run.train_until(kReplacedAt);
  return run;
}

std::vector<int64_t> starts_since(const SimulatedRun& run, int64_t step) {
  std::vector<int64_t> starts;
  for (const Effect& effect : run.effects) {
    const auto* open = std::get_if<OpenWindow>(&effect);
    if (open != nullptr && open->kind == "shadow" && open->start_step >= step)
      starts.push_back(open->start_step);
  }
  return starts;
}

std::string replaced(const SimulatedRun& run) {
  for (const RecordDecision& decision : run.decisions("cadence")) {
    if (decision.sentence.starts_with("The policy was replaced")) return decision.sentence;
  }
  return "";
}

TEST(ReplacedPolicyTest, ADistanceInStepsCountsFromTheNewestCheckpointOn) {
  SimulatedRun run = far_between_windows();
  ASSERT_GT(run.state.watch.every, 200) << "the cadence was chosen";
  run.policy.window.every = 100;
  run.train_until(kReplacedAt + 430);
  const std::vector<int64_t> starts = starts_since(run, kReplacedAt - 10);
  ASSERT_THAT(starts, SizeIs(5));
  for (size_t i = 1; i < starts.size(); ++i) EXPECT_EQ(starts[i] - starts[i - 1], 100);
  EXPECT_THAT(replaced(run), HasSubstr("a window every 100 steps instead of "));
}

TEST(ReplacedPolicyTest, ALargerBudgetBringsTheNextWindowForward) {
  SimulatedRun run = far_between_windows();
  const int64_t planned = run.state.next_start;
  ASSERT_GT(planned, kReplacedAt + 200);
  run.policy.verification.budget_percent = 40;
  run.train_until(kReplacedAt + 200);
  EXPECT_GE(starts_since(run, kReplacedAt - 10).size(), 1u);
  EXPECT_THAT(replaced(run), HasSubstr("The policy was replaced"));
}

TEST(ReplacedPolicyTest, TheSameDistanceChangesNothing) {
  SimulatedRun run = far_between_windows();
  const int64_t planned = run.state.next_start;
  run.policy.detector.tolerance_percent *= 2;
  run.train_until(kReplacedAt + 50);
  EXPECT_EQ(run.state.next_start, planned);
  EXPECT_EQ(replaced(run), "");
}

TEST(LongWindowTest, AWindowOfMoreCheckpointsThanAreKeptIsMeasured) {
  Truth truth;
  truth.total_steps = 3000;
  Policy policy = scenario_policy();
  policy.window.every = policy.window.steps = 700;
  SimulatedRun run(truth, policy);
  run.start();
  run.train_until(2900);
  EXPECT_GE(run.state.standing.measured_windows, 3);
}

// What was asked for is rounded to checkpoints; that windows are taken back to back is not that.
TEST(LongWindowTest, ABurstIsNoRounding) {
  Truth truth = numerical_fault({kGuilty}, 401, 2000, 0.02);
  truth.total_steps = 1500;
  Policy policy = scenario_policy();
  policy.window.every = 40;
  SimulatedRun run(truth, policy);
  run.start();
  run.train_until(1500);
  EXPECT_GT(starts_since(run, 0).size(), 1500u / 40) << "windows were taken back to back";
  for (const RecordDecision& decision : run.decisions("accept"))
    EXPECT_THAT(decision.sentence, Not(HasSubstr("were asked for")));
}

class UndoneTest : public ::testing::Test {
 protected:
  // After a rollback, with some steps trained again.
  UndoneTest() : run_(numerical_fault({kGuilty}, 401, 3000), scenario_policy()) {
    run_.start();
    while (run_.state.attempt.number < 2 && run_.step < 1000) run_.advance();
    reached_ = run_.state.standing.undone_step;
  }
  void restart_from(int64_t step) {
    run_.feed(
        AttemptStarted{run_.state.attempt.number + 1, step, "restart", run_.state.plan_version});
  }
  SimulatedRun run_;
  int64_t reached_ = 0;
};

TEST_F(UndoneTest, AnAttemptFromStepsThatWereUndoneIsTakenBack) {
  ASSERT_LT(run_.state.newest_step, reached_);
  const size_t before = run_.directives("rollback").size();
  restart_from(reached_ / 10 * 10);
  ASSERT_EQ(run_.directives("rollback").size(), before + 1);
  EXPECT_LT(run_.directives("rollback").back().to_step, 401);
  EXPECT_THAT(run_.decisions("action").back().sentence, HasSubstr("steps that were undone"));
}

TEST_F(UndoneTest, WhileAPersonSilencesNothingIsOrdered) {
  run_.ask("silence", 1e6);
  const size_t before = run_.directives("rollback").size();
  restart_from(reached_ / 10 * 10);
  EXPECT_EQ(run_.directives("rollback").size(), before);
}

TEST_F(UndoneTest, OneFromItsOwnStepsIsNot) {
  const size_t before = run_.directives("rollback").size();
  restart_from(run_.state.newest_step / 10 * 10);
  EXPECT_EQ(run_.directives("rollback").size(), before);
}

}  // namespace
}  // namespace gnomon::decide

// Runs that are not finite, in moments when something else is under way: none may go on so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<std::string> done(const SimulatedRun& run) {
  std::vector<std::string> sentences;
  for (const RecordDecision& action : run.decisions("action")) sentences.push_back(action.sentence);
  return sentences;
}

void expect_finite_or_held(const SimulatedRun& run) {
  EXPECT_TRUE(std::isfinite(run.damage) || run.paused) << "at step " << run.step;
}

// A fault until step 700 is pinned; FP8 comes back, and `after` steps later gives a NaN.
class NanAfterReturn : public ::testing::TestWithParam<int64_t> {};

TEST_P(NanAfterReturn, IsRolledBackThoughNoCheckpointOfThatPlanIsThere) {
  Truth truth = numerical_fault({kGuilty}, 601, 700);
  truth.total_steps = 4000;
  truth.checkpoint_every = 20;
  int64_t returned = -1;
  truth.bump = [&](int64_t step, const std::set<std::string>& fp8) {
    return returned > 0 && step == returned + GetParam() && fp8.contains(kGuilty) ? kNan : 0.0;
  };
  SimulatedRun run(truth, scenario_policy());
  run.filter = [&](const Event& event) {
    const auto* changed = std::get_if<DirectiveChanged>(&event);
    const bool back = changed != nullptr && run.state.directive &&
                      run.state.directive->purpose == "return" && changed->state == "applied";
    if (back && returned < 0) returned = run.step;
    return true;
  };
  run.start();
  run.train_until(2000);
  ASSERT_GT(returned, 0);
  EXPECT_TRUE(std::isfinite(run.damage));
  EXPECT_FALSE(run.paused);
}

INSTANTIATE_TEST_SUITE_P(Steps, NanAfterReturn, ::testing::Values(2, 5, 17, 25));

// A gap that leads to a pin from here on, while the weights have become NaN.
Truth pinned_from_here() {
  Truth truth = numerical_fault({kGuilty}, 201, 100'000);
  truth.bump = [](int64_t step, const std::set<std::string>& fp8) {
    return step == 222 && fp8.contains(kGuilty) ? kNan : 0.0;
  };
  truth.replays_per_step_percent = 20;
  return truth;
}

TEST(NonFiniteTest, ANanOfACaseThatEndsFromHereIsRolledBack) {
  SimulatedRun run(pinned_from_here(), with([](Policy& policy) { policy.ladder.from = "here"; }));
  run.start();
  run.train_until(1000);
  EXPECT_TRUE(std::isfinite(run.damage));
  EXPECT_THAT(done(run), Contains(HasSubstr("No checkpoint before it can be replayed")));
}

TEST(NonFiniteTest, ASilenceThatEndsIsFollowedByACase) {
  SimulatedRun run(spike(333, kNan, kGuilty), scenario_policy());
  run.start();
  run.train_until(300);
  run.ask("silence", 100);
  run.train_until(1000);
  EXPECT_TRUE(std::isfinite(run.damage));
  ASSERT_EQ(run.decisions("verdict").size(), 1u);
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "fp8_numerics");
}

TEST(NonFiniteTest, AModeThatEnforcesAgainIsFollowedByACase) {
  SimulatedRun run(spike(333, kNan, kGuilty),
                   with([](Policy& policy) { policy.mode = Mode::kObserve; }));
  run.start();
  run.train_until(400);
  EXPECT_FALSE(std::isfinite(run.damage));
  run.ask("mode", 0, "enforce");
  run.train_until(1000);
  EXPECT_TRUE(std::isfinite(run.damage));
}

TEST(NonFiniteTest, AStepBehindASpikeThatWaitsIsNotForgotten) {
  for (int64_t at = 400; at < 900; at += 13) {
    Truth truth;
    truth.noise_percent = 2;
    truth.replays_per_step_percent = 20;
    truth.total_steps = 2000;
    truth.bump = [at](int64_t step, const std::set<std::string>& fp8) {
      if (step == at) return 3.0;
      return step == at + 4 && fp8.contains(kGuilty) ? kNan : 0.0;
    };
    SimulatedRun run(truth, scenario_policy());
    run.start();
    run.train_until(2000);
    expect_finite_or_held(run);
  }
}

// v1 says of each replay for a case that the run's bits are others than it gets.
void lie_about_bits(ReplayFinished& answer) {
  if (answer.verifier != "v1:1" || answer.arm != "same" || answer.purpose != "triage") return;
  if (!answer.steps.empty()) answer.first_mismatch_step = answer.steps.front();
}

TEST(NonFiniteTest, OneThatLiesInItsCaseDoesNotEndIt) {
  Truth truth = spike(433, kNan, kGuilty);
  truth.replays_per_step_percent = 100;
  SimulatedRun run(truth, with([](Policy& policy) { policy.window.every = 0; }));
  run.lie = lie_about_bits;
  run.start();
  run.train_until(1000);
  EXPECT_TRUE(std::isfinite(run.damage));
  EXPECT_THAT(done(run), Contains(HasSubstr("v1:1")));
  EXPECT_THAT(done(run), Contains(HasSubstr(kGuilty)));
}

TEST(NonFiniteTest, OneThatBf16SharesIsLeftAlone) {
  SimulatedRun run(spike(333, kNan), scenario_policy());
  run.start();
  run.train_until(1000);
  EXPECT_THAT(done(run), IsEmpty());
  EXPECT_EQ(run.decisions("alarm").size(), 1u);
}

TEST(NonFiniteTest, NothingGoesBeyondTheLimitOfActions) {
  SimulatedRun run(pinned_from_here(), with([](Policy& policy) {
                     policy.ladder.from = "here";
                     policy.limits.actions_max = 1;
                   }));
  run.start();
  run.train_until(1000);
  EXPECT_TRUE(run.paused);
  EXPECT_THAT(done(run), Contains(HasSubstr("the limit of 1 automatic actions is reached")));
}

TEST(NonFiniteTest, ATrainerThatCannotGoBackIsHeld) {
  Truth truth = spike(433, kNan, kGuilty);
  truth.capabilities.rollback = "none";
  truth.in_memory = true;  // no verifier can replay it
  SimulatedRun run(truth, scenario_policy());
  run.start();
  run.train_until(1000);
  EXPECT_TRUE(run.paused);
}

// Scaling of the loss skips the first steps, whose gradients overflow; no checkpoint is there yet.
TEST(NonFiniteTest, StepsThatATrainerSkipsLeadToNothing) {
  for (const bool of_loss : {false, true}) {
    Truth truth;
    truth.checkpoint_every = 50;
    truth.casts = [of_loss](StepReported& step) {
      if (!of_loss && step.step <= 12) step.grad_norm = std::numeric_limits<double>::infinity();
      if (of_loss && step.step <= 3) step.loss = kNan;
    };
    SimulatedRun run(truth, scenario_policy());
    run.filter = [](const Event& event) {
      const auto* checkpoint = std::get_if<CheckpointCompleted>(&event);
      return checkpoint == nullptr || checkpoint->step > 0;
    };
    run.start();
    run.train_until(1000);
    EXPECT_THAT(done(run), IsEmpty()) << of_loss;
    EXPECT_FALSE(run.paused);
  }
}

}  // namespace
}  // namespace gnomon::decide

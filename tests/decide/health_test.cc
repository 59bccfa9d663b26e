// Health of data and training, which no precision explains.
#include "controller/decide/health.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

using Batch = std::function<std::string(int64_t step)>;

// Steps of a registered run with these batches and losses.
struct Trained {
  State state;
  std::vector<RecordDecision> said;
  Policy policy = scenario_policy();
  double now = 0;

  Trained() {
    SimulatedRun run({}, policy);
    run.start();
    state = run.state;
  }
  void handle(const Event& event) {
    for (const Effect& effect : decide_in_place(state, event, policy, ++now).effects) {
      const auto* decision = std::get_if<RecordDecision>(&effect);
      if (decision != nullptr && decision->kind == "health") said.push_back(*decision);
    }
  }
  void steps(int64_t from, int64_t to, const Batch& batch, double loss = 3) {
    for (int64_t step = from; step <= to; ++step)
      handle(StepReported{state.attempt.number, step, 1, loss, 1.0, 1, batch(step)});
  }
};

const Batch kNew = [](int64_t step) { return fmt::format("b{}", step); };

TEST(HealthTest, BatchesThatComeAgainAreSaidOnce) {
  for (const int64_t period : {1, 7, 100}) {
    Trained run;
    run.steps(1, 300, kNew);
    EXPECT_TRUE(run.said.empty());
    run.steps(301, 600, [&](int64_t step) { return fmt::format("again {}", step % period); });
    ASSERT_EQ(run.said.size(), 1U) << period;
    EXPECT_EQ(run.said[0].verdict, "repeated_data");
    EXPECT_NE(run.said[0].sentence.find(fmt::format("{} steps before", period)), std::string::npos)
        << run.said[0].sentence;
    EXPECT_EQ(run.said[0].action, "none");
    // It begins anew, and is said anew.
    run.steps(601, 700, kNew);
    run.steps(701, 710, [&](int64_t) { return std::string("the same"); });
    EXPECT_EQ(run.said.size(), 2U);
  }
}

TEST(HealthTest, OneBatchTwiceAndAnEpochLaterAreNoRepeats) {
  Trained run;
  run.steps(1, 600, [](int64_t step) { return fmt::format("b{}", step % 200); });
  run.steps(601, 700, [](int64_t step) { return fmt::format("c{}", step / 2); });
  EXPECT_TRUE(run.said.empty());
}

TEST(HealthTest, AnAttemptThatTakesItsBatchesAgainDoesNotRepeatThem) {
  Trained run;
  run.steps(1, 100, kNew);
  run.handle(AttemptStarted{2, 50, "restart", 1, "trainer-host"});
  run.steps(51, 150, kNew);
  EXPECT_TRUE(run.said.empty());
}

TEST(HealthTest, ATrainerThatSaysNoHashesRepeatsNothing) {
  Trained run;
  run.steps(1, 300, [](int64_t) { return std::string(); });
  EXPECT_TRUE(run.said.empty());
}

TEST(HealthTest, ALossThatCollapsesIsSaid) {
  Trained run;
  for (int64_t step = 1; step <= 900; ++step) {
    const double loss =
        step < 300 ? 4.05 : std::max(0.07, 4.05 - 0.01 * static_cast<double>(step - 300));
    run.steps(step, step, kNew, loss);
  }
  ASSERT_EQ(run.said.size(), 1U);
  EXPECT_EQ(run.said[0].verdict, "loss_collapse");
  EXPECT_NE(run.said[0].sentence.find("the data repeats itself"), std::string::npos);
}

// What a fault of FP8 does to a loss: it explodes and comes back, again and again. No mean of it is
// below what it was at best.
TEST(HealthTest, ALossThatExplodesAndComesBackHasNotCollapsed) {
  Trained run;
  for (int64_t step = 1; step <= 4000; ++step) {
    const int64_t since = step % 200;
    const double loss = step < 1000 ? 1.3 : 1.3 + 40 * std::exp(-static_cast<double>(since) / 20);
    run.steps(step, step, kNew, loss);
  }
  EXPECT_TRUE(run.said.empty());
}

// BF16's held-out loss climbs while the training loss falls: nothing that a precision could mend,
// and no instability.
TEST(HealthTest, TextLearnedByHeartIsNoInstability) {
  Truth truth;
  truth.total_steps = 4000;
  truth.level = [](int64_t step) {
    return step < 1000 ? 1.0 : 1 + static_cast<double>(step - 1000) / 4000;
  };
  SimulatedRun run(truth, scenario_policy());
  run.start();
  // What is reported of the steps is the training loss: it falls all the while.
  run.filter = [](const Event& event) {
    if (auto* step = const_cast<StepReported*>(std::get_if<StepReported>(&event)))
      step->loss = 0.4 + 4 * std::exp(-static_cast<double>(step->step) / 300);
    return true;
  };
  run.train_until(3000);
  const auto said = run.decisions("health");
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0].verdict, "overfitting");
  for (const RecordDecision& verdict : run.decisions("verdict"))
    EXPECT_NE(verdict.verdict, "unstable_training") << verdict.sentence;
}

}  // namespace
}  // namespace gnomon::decide

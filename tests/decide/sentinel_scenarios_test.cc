// The window that a sentinel's call orders, and what follows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "controller/decide/decide.h"
#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

constexpr double kSlowBudget = 5;

Policy sparse() {
  Policy policy;
  policy.window.steps = 20;
  policy.verification.budget_percent = kSlowBudget;
  policy.economics.switch_steps = 4;
  return policy;
}

// Damage of some steps, far between two windows, that stays in the weights for a while.
Truth hidden_fault(int64_t from, int64_t steps, double percent) {
  Truth truth = numerical_fault({kGuilty}, from, from + steps, percent);
  truth.total_steps = 40'000;
  truth.bf16_step_seconds = 1.35;
  truth.replay_overhead_seconds = 4;
  return truth;
}

std::vector<OpenWindow> windows_of(const SimulatedRun& run) {
  std::vector<OpenWindow> all;
  for (const Effect& effect : run.effects) {
    const auto* open = std::get_if<OpenWindow>(&effect);
    if (open != nullptr && open->kind == "shadow") all.push_back(*open);
  }
  return all;
}

// The middle between two far windows of the healthy run.
int64_t hiding_place() {
  SimulatedRun healthy(hidden_fault(39'000, 1, 0), sparse());
  healthy.start();
  healthy.train_until(20'000);
  const std::vector<OpenWindow> all = windows_of(healthy);
  for (size_t i = 1; i < all.size(); ++i) {
    const int64_t between = all[i].start_step - all[i - 1].start_step;
    if (all[i].start_step > 8000 && between > 400)
      return (all[i - 1].start_step + between / 2) / 10 * 10 + 3;
  }
  ADD_FAILURE() << "no two windows are far apart";
  return 0;
}

TEST(SentinelScenarioTest, DamageOfFourStepsBetweenTwoWindowsIsFound) {
  const int64_t from = hiding_place();
  SimulatedRun run(hidden_fault(from, 4, 0.7), sparse());
  run.start();
  run.train_until(from + 300);
  run.drain();
  const auto sentinels = run.decisions("sentinel");
  ASSERT_EQ(sentinels.size(), 1U);
  EXPECT_NE(sentinels[0].sentence.find("blames nobody"), std::string::npos);
  const bool looked = std::ranges::any_of(windows_of(run), [&](const OpenWindow& window) {
    return window.start_step < from && window.start_step + window.steps >= from + 4;
  });
  EXPECT_TRUE(looked) << "a window over just those steps";
  EXPECT_FALSE(run.decisions("alarm").empty());
  EXPECT_FALSE(run.decisions("action").empty());
}

TEST(SentinelScenarioTest, AHealthyRunPaysNothingForThem) {
  SimulatedRun run(hidden_fault(39'000, 1, 0), sparse());
  run.start();
  run.train_until(20'000);
  EXPECT_LE(run.decisions("sentinel").size(), 1U);
}

// Gradients three times as large for 100 steps, which every precision has.
SimulatedRun restless(const std::string& then, int actions_max = 8) {
  Policy policy = sparse();
  policy.limits.actions_max = actions_max;
  policy.verification.on_gradient_norm = then;
  SimulatedRun run(hidden_fault(39'000, 1, 0), policy);
  run.filter = [&run](const Event& event) {
    const auto* step = std::get_if<StepReported>(&event);
    if (step == nullptr || step->step < 9003 || step->step > 9102 || *step->grad_norm > 2)
      return true;
    StepReported changed = *step;
    *changed.grad_norm *= 3;
    run.feed(changed);
    return false;
  };
  run.start();
  run.train_until(16'000);
  run.drain();
  run.filter = nullptr;
  return run;
}

TEST(SentinelScenarioTest, AGradientNormMayTakeTheRunToBf16AndProbesBringItBack) {
  const SimulatedRun run = restless("bf16");
  const auto actions = run.decisions("action");
  ASSERT_GE(actions.size(), 1U);
  EXPECT_EQ(actions[0].action, "bf16");
  EXPECT_NE(actions[0].sentence.find("gradient norm"), std::string::npos);
  EXPECT_FALSE(run.decisions("return").empty());
  EXPECT_EQ(run.state.containment, std::nullopt);
  EXPECT_TRUE(run.state.rollbacks.empty()) << "nothing was blamed";
}

TEST(SentinelScenarioTest, NoActionOfAGradientNormIsBeyondTheLimit) {
  const SimulatedRun run = restless("bf16", 0);
  const auto actions = run.decisions("action");
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_EQ(actions[0].action, "hold");
  EXPECT_NE(actions[0].sentence.find("the limit of 0 automatic actions is reached"),
            std::string::npos);
  EXPECT_TRUE(run.paused);
}

TEST(SentinelScenarioTest, ByDefaultAGradientNormAccusesNobody) {
  const SimulatedRun run = restless("window");
  EXPECT_FALSE(run.decisions("sentinel").empty());
  EXPECT_TRUE(run.decisions("action").empty());
}

// A level of the loss that every precision shares: each call orders a window, and no more than one
// in the distance of two windows.
TEST(SentinelScenarioTest, CallsThatFindNothingAreBounded) {
  Truth truth = hidden_fault(39'000, 1, 0);
  truth.level = [](int64_t step) { return step % 1500 > 1300 ? 1.03 : 1.0; };
  SimulatedRun run(truth, sparse());
  run.start();
  run.train_until(20'000);
  run.drain();
  const auto sentinels = run.decisions("sentinel");
  EXPECT_GE(sentinels.size(), 3U);
  for (size_t i = 1; i < sentinels.size(); ++i)
    EXPECT_GE(sentinels[i].step - sentinels[i - 1].step, 200);
  EXPECT_LE(sentinels.size(), 20'000 / 400);
  double replayed = 0;
  for (const Event& event : run.events) {
    if (const auto* done = std::get_if<ReplayFinished>(&event)) replayed += done->seconds;
  }
  EXPECT_LE(replayed, 0.08 * 20'000) << "the budget pays for them";
  EXPECT_TRUE(run.decisions("action").empty());
}

TEST(SentinelScenarioTest, CastsThatChangeBetweenTwoWindowsOrderOneAndSayWhatWasSeen) {
  const int64_t from = hiding_place();
  Truth truth = hidden_fault(39'000, 1, 0);
  truth.casts = [from](StepReported& report) {
    report.cast_saturated = 1e-6;
    report.cast_peak = report.step < from ? 1 : 64;
  };
  SimulatedRun run(truth, sparse());
  run.start();
  run.train_until(from + 100);
  const auto sentinels = run.decisions("sentinel");
  ASSERT_EQ(sentinels.size(), 1U);
  const int64_t start = (from - 1) / 10 * 10;
  EXPECT_EQ(sentinels[0].sentence,
            fmt::format("Casts to FP8 have changed since step {}: the largest value is 64 times "
                        "what the format holds (1 before). A window over steps {} to {} will show "
                        "whether it costs loss.",
                        from, start + 1, start + 20));
  EXPECT_TRUE(std::ranges::any_of(windows_of(run), [&](const OpenWindow& window) {
    return window.start_step == start && window.steps == 20;
  }));
}

TEST(SentinelScenarioTest, ClippingThatEndsOrdersNothing) {
  const int64_t from = hiding_place();
  Truth truth = hidden_fault(39'000, 1, 0);
  truth.casts = [from](StepReported& report) {
    report.cast_saturated = report.step < from ? 1e-3 : 1e-6;
  };
  SimulatedRun run(truth, sparse());
  run.start();
  run.train_until(from + 100);
  EXPECT_TRUE(run.decisions("sentinel").empty());
}

// Windows that touch each other leave no step for a sentinel to order one over.
TEST(SentinelScenarioTest, WhereEveryStepIsReplayedNothingIsOrdered) {
  Truth truth = numerical_fault({kGuilty}, 503, 507, 0.7);
  SimulatedRun run(truth, scenario_policy());
  run.start();
  run.train_until(900);
  EXPECT_TRUE(run.decisions("sentinel").empty());
}

// BF16 spikes from the weights that it is given, whoever has spoilt them.
TEST(SentinelScenarioTest, AWindowFollowsASpikeThatBf16Shares) {
  const int64_t at = hiding_place();
  Truth truth = hidden_fault(39'000, 1, 0);
  truth.bump = [at](int64_t step, const std::set<std::string>&) { return step == at ? 3.0 : 0.0; };
  SimulatedRun run(truth, sparse());
  run.start();
  run.train_until(at + 200);
  run.drain();
  const auto verdicts = run.decisions("verdict");
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0].verdict, "generic_spike");
  EXPECT_EQ(std::ranges::count_if(windows_of(run),
                                  [&](const OpenWindow& window) {
                                    return window.start_step >= at + 20 &&
                                           window.start_step < at + 200;
                                  }),
            1);
}

// The default policy, and a fault that begins right behind a checkpoint: the forecast is passed
// from some steps before it on, and a window up to that checkpoint shows nothing.
TEST(SentinelScenarioTest, WindowsReachTheChangeThatCalledForThem) {
  for (const int64_t every : {10, 50, 100, 500}) {
    for (const int64_t from : {3001, 3010, 6003, 9040}) {
      Truth truth = numerical_fault({kGuilty}, from, from + 2000, 0.2);
      truth.total_steps = 60'000;
      truth.bf16_step_seconds = 1.3;
      truth.checkpoint_every = every;
      SimulatedRun run(truth, Policy());
      run.start();
      run.train_until(from + 8000);
      run.drain();
      EXPECT_LT(run.damage, 20) << "checkpoints every " << every << ", from step " << from;
    }
  }
}

// The newest checkpoint before the change is one of BF16.
TEST(SentinelScenarioTest, AWindowIsOrderedRightAfterAReturn) {
  Truth truth = numerical_fault({kGuilty}, 1223, 3092, 0.079);
  truth.total_steps = 4000;
  truth.checkpoint_every = 5;
  Policy policy;
  policy.window.steps = 49;
  policy.ladder.rungs = {"bf16", "hold"};
  SimulatedRun run(truth, policy);
  run.start();
  run.train_until(4000);
  run.drain();
  EXPECT_LT(run.damage, 20);
}

}  // namespace
}  // namespace gnomon::decide

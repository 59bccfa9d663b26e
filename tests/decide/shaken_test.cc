// Windows that shared shocks have shaken count by the sign of D.
#include "controller/decide/shaken.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

class Shaken : public ::testing::Test {
 protected:
  bool alarms(double d_percent, int64_t plan_version = 1) {
    Core core{state_, policy_};
    WindowState window;
    window.kind = "shadow";
    window.plan_version = plan_version;
    window.measured.emplace();
    window.measured->d_percent = d_percent;
    return observe_shaken(core, window).has_value();
  }
  // Windows up to the alarm, over by 5% each.
  int64_t windows_to_alarm() {
    int64_t windows = 1;
    while (!alarms(5) && windows < 1000) ++windows;
    return windows;
  }

  State state_;
  Policy policy_;
};

TEST_F(Shaken, EvenSignsAlarmAsSeldomAsTheDetector) {
  constexpr int64_t kWindows = 400'000;
  std::mt19937_64 bits(1);
  int64_t count = 0;
  for (int64_t i = 0; i < kWindows; ++i) count += alarms(bits() % 2 == 0 ? 5 : -5) ? 1 : 0;
  EXPECT_LE(static_cast<double>(count),
            kWindows / policy_.detector.windows_between_false_alarms * 1.2);
}

TEST_F(Shaken, OneSignAloneAlarmsWithinSixteenWindows) { EXPECT_LE(windows_to_alarm(), 16); }

TEST_F(Shaken, WhatIsToleratedIsNoSign) {
  for (int i = 0; i < 1000; ++i)
    EXPECT_FALSE(alarms(policy_.detector.tolerance_percent * 0.9)) << i;
}

TEST_F(Shaken, AnotherPlanBeginsAnew) {
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(alarms(5));
  EXPECT_FALSE(alarms(5, 2));
  EXPECT_GE(windows_to_alarm(), 10);
}

// Every window has a spike that BF16 shares, and FP8 costs loss beside it.
TEST_F(Shaken, SpikesInEveryWindowHideNoFault) {
  Truth truth = numerical_fault({kGuilty}, 501, 1'000'000, 0.1);
  truth.total_steps = 4000;
  truth.bump = [](int64_t step, const std::set<std::string>&) {
    return step > 300 && step % 50 == 7 ? 1.5 : 0.0;
  };
  SimulatedRun run(truth,
                   with([](Policy& policy) { policy.window.every = policy.window.steps = 50; }));
  run.start();
  run.train_until(2500);
  ASSERT_FALSE(run.decisions("attribution").empty());
  EXPECT_EQ(run.decisions("attribution")[0].sites, std::vector<std::string>{kGuilty});
  EXPECT_LT(run.damage, 1);
}

// The run takes other tokens in every window, which does no harm, and FP8 costs loss beside it.
TEST_F(Shaken, OtherTokensInEveryWindowHideNoFault) {
  Truth truth = numerical_fault({kGuilty}, 501, 1'000'000, 0.02);
  truth.total_steps = 4000;
  truth.other_batch_damage = 0;
  for (int64_t step = 10; step < 4000; step += 20) truth.other_batches.push_back(step);
  SimulatedRun run(truth, scenario_policy());
  run.start();
  run.train_until(1500);
  ASSERT_FALSE(run.decisions("alarm").empty());
  EXPECT_NE(run.decisions("alarm")[0].sentence.find("tokens have shaken"), std::string::npos);
  EXPECT_LT(run.damage, 10) << "a person is called before more";
}

}  // namespace
}  // namespace gnomon::decide

// The level of offsets: healthy ones grow as a run learns, drifts leave it.
#include "controller/decide/offset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "controller/decide/gap_noise.h"

namespace gnomon::decide {
namespace {

// Per cent of the loss. As in the budget study's healthy runs: nothing in the first 400 steps, 1%
// after 20,000, with a deviation of 0.3%.
double healthy(int64_t step) {
  return std::max(0.0, 0.18 * std::log2(static_cast<double>(step) / 400));
}
constexpr double kDeviation = 0.3;

std::vector<int64_t> every(int64_t distance, int64_t from = 0) {
  std::vector<int64_t> starts;
  for (int64_t step = from; step < 20'000; step += distance) starts.push_back(step);
  return starts;
}

// The first alarm's place among `starts`, or -1. The plan is another one from `new_plan_at` on.
int first_alarm(const std::vector<int64_t>& starts, const std::function<double(int64_t)>& offset,
                uint64_t seed, int64_t new_plan_at = 0) {
  const Policy policy;
  State state;
  GapNoise noise(noise_shape("gaussian"), seed);
  for (size_t i = 0; i < starts.size(); ++i) {
    Core core{state, policy};
    WindowState window;
    window.id = static_cast<int64_t>(i) + 1;
    window.kind = "shadow";
    window.start.step = starts[i];
    window.steps = 25;
    window.plan_version = starts[i] < new_plan_at ? 1 : 2;
    Measurement measured;
    measured.reference = 2;
    measured.d_percent = 0;
    const double deviation = starts[i] < 400 ? 0.05 : kDeviation;
    measured.offset = (offset(starts[i]) + deviation * noise.next()) * 2 / 100;
    window.measured = measured;
    if (observe_offset(core, window).alarm) return static_cast<int>(i);
  }
  return -1;
}

int alarms(const std::vector<int64_t>& starts, const std::function<double(int64_t)>& offset,
           int64_t new_plan_at = 0) {
  int found = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed)
    found += first_alarm(starts, offset, seed, new_plan_at) >= 0;
  return found;
}

TEST(OffsetTest, WhatGrowsAsARunLearnsIsNoDrift) {
  EXPECT_EQ(alarms(every(100), healthy), 0);
  EXPECT_EQ(alarms({0, 50, 150, 350, 2550, 9900, 19'000}, healthy), 0);
  EXPECT_EQ(alarms(every(4000), healthy), 0);
}

TEST(OffsetTest, ANewPlanOfAnOldRunHasALevelOfItsOwn) {
  for (int64_t at : {1000, 6000, 15'000}) EXPECT_EQ(alarms(every(100), healthy, at), 0) << at;
}

TEST(OffsetTest, AScaleThatMultipliesItIsFoundByTheNextWindows) {
  for (int64_t from : {1000, 4000, 12'000}) {
    const auto drift = [from](int64_t step) { return healthy(step) + (step < from ? 0 : 4); };
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      const int place = first_alarm(every(500), drift, seed);
      EXPECT_EQ(place, from / 500) << "seed " << seed;
    }
  }
}

TEST(OffsetTest, AFallBelowZeroIsFoundToo) {
  const auto falls = [](int64_t step) { return step < 8000 ? healthy(step) : -3.0; };
  for (uint64_t seed = 1; seed <= 20; ++seed) EXPECT_EQ(first_alarm(every(500), falls, seed), 16);
}

TEST(OffsetTest, AnOffsetThatIsWrongFromTheFirstStepIsFoundByTheFirstWindow) {
  const auto wrong = [](int64_t) { return 3.0; };
  EXPECT_EQ(first_alarm(every(500, 50), wrong, 1), 0);
}

}  // namespace
}  // namespace gnomon::decide

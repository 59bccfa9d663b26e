#include "controller/decide/spikes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/philox.h"
#include "tests/support/special_numbers.h"

namespace gnomon::decide {
namespace {

class SpikeTest : public ::testing::Test {
 protected:
  std::optional<SpikeFinding> step(double loss, double grad_norm = 1) {
    StepReported report;
    report.step = ++step_;
    report.loss = loss;
    report.grad_norm = grad_norm;
    return observe_step(state_, report, policy_);
  }
  // Losses around 3 with a deviation of about 0.1.
  void calm(int steps) {
    for (int i = 0; i < steps; ++i) EXPECT_FALSE(step(i % 2 == 0 ? 2.9 : 3.1).has_value());
  }
  Policy::Detector policy_;
  SpikeState state_;
  int64_t step_ = 0;
};

TEST_F(SpikeTest, NeedsThirtyTwoLossesBeforeItSpeaks) {
  calm(31);
  EXPECT_FALSE(step(30).has_value());
}

TEST_F(SpikeTest, FindsALossOverTheThresholdWithoutCountingItself) {
  calm(40);
  const auto finding = step(3.8);  // mean 3, deviation 0.101: threshold 3.709
  ASSERT_TRUE(finding.has_value());
  EXPECT_EQ(finding->kind, "spike");
  EXPECT_EQ(finding->step, 41);
  EXPECT_NEAR(finding->expected, 3.0, 0.01);
  EXPECT_NEAR(*finding->threshold, finding->expected + 7 * finding->deviation, 1e-9);
}

TEST_F(SpikeTest, AFallingLossDoesNotHideASpike) {
  // 5.5 down to 3.5 over 110 steps with noise of 0.05: about the mean the deviation would be 0.6.
  for (int i = 0; i < 110; ++i) {
    EXPECT_FALSE(step(5.5 - 2.0 * i / 110 + (i % 2 == 0 ? 0.05 : -0.05)).has_value());
  }
  const auto finding = step(5.0);
  ASSERT_TRUE(finding.has_value());
  EXPECT_NEAR(finding->expected, 3.5, 0.02);
  EXPECT_LT(finding->deviation, 0.06);
}

TEST_F(SpikeTest, SevenSigmaIsPossibleEvenWithTheShortestHistory) {
  policy_.spike_history = 32;  // with the current sample counted, no z-score could exceed √31 = 5.6
  calm(32);
  EXPECT_TRUE(step(3.8).has_value());
}

TEST_F(SpikeTest, SmallLossesUnderTheThresholdAreNoSpike) {
  calm(40);
  EXPECT_FALSE(step(3.6).has_value());
}

TEST_F(SpikeTest, ATinyDeviationDoesNotMakeSpikesOfNothing) {
  for (int i = 0; i < 60; ++i) EXPECT_FALSE(step(3.0 + 1e-9 * i).has_value());
  EXPECT_FALSE(step(3.1).has_value()) << "3% above a flat line";
  EXPECT_TRUE(step(3.2).has_value()) << "7% above a flat line";
}

TEST_F(SpikeTest, TheRatioRuleHoldsWhenTheDeviationIsWide) {
  for (int i = 0; i < 120; ++i) step(i % 2 == 0 ? 0.1 : 6.0);
  policy_.spike_sigma = 1000;
  EXPECT_FALSE(step(50).has_value());
  const auto finding = step(61);
  ASSERT_TRUE(finding.has_value());
  EXPECT_NE(finding->rule.find("10 times the largest"), std::string::npos);
}

TEST_F(SpikeTest, NonFiniteValuesAreFoundAtOnceAndNeverEnterTheHistory) {
  const auto finding = step(std::nan(""));
  ASSERT_TRUE(finding.has_value());
  EXPECT_EQ(finding->kind, "non_finite");
  EXPECT_TRUE(state_.recent.empty());
  EXPECT_FALSE(step(std::nan("")).has_value()) << "one finding for one episode";
  EXPECT_FALSE(step(3.0).has_value());
  EXPECT_TRUE(step(3.0, kInfinity).has_value()) << "a gradient norm counts too";
}

TEST_F(SpikeTest, ABurstIsOneFinding) {
  calm(40);
  EXPECT_TRUE(step(9).has_value());
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(step(9 - i * 0.5).has_value());
  calm(40);
  EXPECT_TRUE(step(30).has_value()) << "after the cool-down a new one is found";
}

TEST_F(SpikeTest, ASpikeDoesNotBlindTheRuleForTheNext) {
  calm(128);
  EXPECT_TRUE(step(300).has_value());
  calm(40);
  EXPECT_TRUE(step(5).has_value());
}

// Most steps are let through by a sum in another order than the rule's own: never one over the
// threshold, however near.
TEST(SpikesTest, CalmStepsAreLetThroughExactlyBelowTheThreshold) {
  Policy::Detector policy;
  policy.spike_sigma = 1;
  int over = 0, under = 0;
  for (uint64_t run = 0; run < 400; ++run) {
    const double level = run % 3 == 0 ? 1e-3 : run % 3 == 1 ? 3.0 : -2.0;
    const double noise = run % 2 == 0 ? 1e-4 : 0.03;
    SpikeState state;
    int64_t step = 0;
    double sum = 0, moment = 0;
    const int n = 33 + static_cast<int>(run % 60);  // too few for the rule of ratios
    for (int i = 0; i < n; ++i) {
      const double loss =
          level * (1 + noise * philox_uniform(philox(run, 1, static_cast<uint64_t>(i))[0]));
      observe_step(state, {1, ++step, 1, loss, 1.0, 1.0}, policy);
    }
    const double middle = (n - 1) / 2.0;
    double variance = 0, squares = 0;
    for (int i = 0; i < n; ++i) {
      sum += state.recent[static_cast<size_t>(i)];
      moment += (i - middle) * state.recent[static_cast<size_t>(i)];
      variance += (i - middle) * (i - middle);
    }
    for (int i = 0; i < n; ++i) {
      const double line = sum / n + moment / variance * (i - middle);
      squares += std::pow(state.recent[static_cast<size_t>(i)] - line, 2);
    }
    const double next = sum / n + moment / variance * (n - middle);
    const double threshold =
        next + std::max(std::sqrt(squares / (n - 2)), kSpikeRiseMin * std::abs(next));
    const double off = (run / 2 % 2 == 0 ? 1 : -1) * 1e-7 * std::abs(level);
    state.silent_until = 0;
    const auto finding = observe_step(state, {1, ++step, 1, threshold + off, 1.0, 1.0}, policy);
    EXPECT_EQ(finding.has_value(), off > 0) << "run " << run;
    EXPECT_NEAR(state.recent.back(), threshold + std::min(off, 0.0), 1e-9 * std::abs(level));
    (off > 0 ? over : under) += 1;
  }
  EXPECT_GT(over, 100);
  EXPECT_GT(under, 100);
}

}  // namespace
}  // namespace gnomon::decide

#include "controller/decide/hazard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/errors.h"

namespace gnomon::decide {
namespace {

TEST(HazardTest, ThePriorsMeanIsOneFaultIn20kSteps) { EXPECT_DOUBLE_EQ(hazard_mean({}), 1 / 20e3); }

TEST(HazardTest, StepsLowerAndFaultsRaiseTheMean) {
  Hazard hazard;
  ASSERT_TRUE(observe_steps(hazard, 90'000));
  EXPECT_DOUBLE_EQ(hazard_mean(hazard), 0.5 / 100'000);
  ASSERT_TRUE(observe_faults(hazard, 3));
  EXPECT_DOUBLE_EQ(hazard_mean(hazard), 3.5 / 100'000);
}

TEST(HazardTest, QuantilesOfShapeHalfAreThoseOfASquaredNormal) {
  // Gamma(½) is half a chi-squared with one degree of freedom: its quantile at erf(z) is z².
  for (double z : {0.1, 0.5, 1.0, 2.0}) {
    EXPECT_NEAR(hazard_quantile({}, std::erf(z)), z * z / 10'000, 1e-9 * z * z);
  }
}

TEST(HazardTest, QuantilesOfAnExponentialPosterior) {
  Hazard hazard{1, 1000, 0, 0};
  EXPECT_NEAR(hazard_quantile(hazard, 0.5), std::log(2.0) / 1000, 1e-15);
  EXPECT_NEAR(hazard_quantile(hazard, 0.95), -std::log(0.05) / 1000, 1e-15);
}

TEST(HazardTest, TheChanceOfMoreIsTheQuantilesInverse) {
  for (double probability : {0.05, 0.5, 0.99}) {
    const Hazard hazard{0.5, 10'000, 30'000, 2};
    EXPECT_NEAR(hazard_above(hazard, hazard_quantile(hazard, probability)), 1 - probability, 1e-9);
  }
  EXPECT_EQ(hazard_above({}, 0), 1);
}

TEST(HazardTest, TheIntervalHoldsTheTruthAsOftenAsItSays) {
  std::mt19937_64 random(1);
  const double truth = 1 / 8e3;
  int held = 0;
  for (int run = 0; run < 2000; ++run) {
    Hazard hazard;
    observe_steps(hazard, 100'000);
    observe_faults(hazard, std::poisson_distribution<int64_t>(100'000 * truth)(random));
    held += hazard_quantile(hazard, 0.05) < truth && truth < hazard_quantile(hazard, 0.95);
  }
  // 90% up to the prior's pull and the counts' being whole.
  EXPECT_GT(held, 1740);
  EXPECT_LT(held, 1880);
}

TEST(HazardTest, APriorHasTheMeanThatWasAsked) {
  EXPECT_DOUBLE_EQ(hazard_mean(hazard_prior(1 / 100e3)), 1 / 100e3);
  EXPECT_DOUBLE_EQ(hazard_prior(1 / 100e3, 2).prior_steps, 200e3);
}

TEST(HazardTest, NonsenseIsRefused) {
  Hazard hazard;
  EXPECT_FALSE(observe_steps(hazard, -1));
  EXPECT_FALSE(observe_faults(hazard, -1));
  EXPECT_DOUBLE_EQ(hazard_mean(hazard), 1 / 20e3);
  for (double wrong : {0.0, 1.0, -1.0, 2.0, static_cast<double>(NAN)}) {
    EXPECT_THROW(hazard_quantile(hazard, wrong), ConfigError);
  }
  for (double wrong : {0.0, -1.0, 2.0, static_cast<double>(NAN)}) {
    EXPECT_THROW(hazard_prior(wrong), ConfigError);
  }
  EXPECT_THROW(hazard_prior(1e-5, NAN), ConfigError);
  EXPECT_THROW(check_prior({0.5, 0, 0, 0}), ConfigError);
}

}  // namespace
}  // namespace gnomon::decide

#include <gtest/gtest.h>

#include <limits>

#include "numerics/scales.h"
#include "tests/support/special_numbers.h"

namespace gnomon {
namespace {

TEST(CurrentScale, TakesTheMaximumToTheLargestValueOfTheFormat) {
  EXPECT_EQ(current_scale(448.0f, Format::kE4m3), 1.0f);
  EXPECT_EQ(current_scale(1.0f, Format::kE4m3), 448.0f);
  EXPECT_EQ(current_scale(3.0f, Format::kE4m3), 448.0f / 3.0f);
  EXPECT_EQ(current_scale(2.0f, Format::kE5m2), 28672.0f);
  EXPECT_EQ(current_scale(0.5f, Format::kE2m1), 12.0f);
}

TEST(CurrentScale, IsOneWhenTheMaximumSaysNothing) {
  for (float amax : {0.0f, -0.0f, kInfinityF, -kInfinityF, kNanF, -1.0f}) {
    EXPECT_EQ(current_scale(amax, Format::kE4m3), 1.0f) << amax;
  }
}

TEST(CurrentScale, StaysBelowItsLimitForTheSmallestMaxima) {
  EXPECT_EQ(current_scale(std::numeric_limits<float>::denorm_min(), Format::kE4m3), kLargestScale);
  EXPECT_EQ(current_scale(1e-30f, Format::kE5m2), kLargestScale);
  EXPECT_LT(current_scale(1e-12f, Format::kE5m2), kLargestScale);
  float alpha = 1.0f / (kLargestScale * kLargestScale);
  EXPECT_GE(alpha, std::numeric_limits<float>::min());
}

TEST(DelayedScale, DividesByTwoToTheMargin) {
  EXPECT_EQ(delayed_scale(2.0f, Format::kE4m3, 0, 7.0f), 224.0f);
  EXPECT_EQ(delayed_scale(2.0f, Format::kE4m3, 3, 7.0f), 28.0f);
  EXPECT_EQ(delayed_scale(2.0f, Format::kE5m2, -1, 7.0f), 57344.0f);
}

TEST(DelayedScale, KeepsTheOldScaleWhenTheHistorySaysNothing) {
  for (float amax : {0.0f, kInfinityF, kNanF, -1.0f}) {
    EXPECT_EQ(delayed_scale(amax, Format::kE4m3, 1, 7.0f), 7.0f) << amax;
  }
}

TEST(DelayedScale, StaysBelowItsLimit) {
  EXPECT_EQ(delayed_scale(1e-38f, Format::kE4m3, 0, 7.0f), kLargestScale);
}

TEST(FormatMax, IsTheLargestFiniteValue) {
  EXPECT_EQ(format_max(Format::kE4m3), 448.0f);
  EXPECT_EQ(format_max(Format::kE5m2), 57344.0f);
  EXPECT_EQ(format_max(Format::kBf16), 0x1.FEp127f);
}

}  // namespace
}  // namespace gnomon

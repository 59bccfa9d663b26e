#include "base/slewed_clock.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gnomon {
namespace {

class SlewedClockTest : public ::testing::Test {
 protected:
  // Both clocks go on, looked at each second.
  void pass(double seconds) {
    for (double left = seconds; left > 0; left -= 1) {
      wall_ += std::min(left, 1.0);
      steady_ += std::min(left, 1.0);
      clock_.now();
    }
  }
  double wall_ = 1e9;
  double steady_ = 50;
  SlewedClock clock_{[this] { return wall_; }, [this] { return steady_; }};
};

TEST_F(SlewedClockTest, IsTheWallClockWhileThatBehaves) {
  EXPECT_EQ(clock_.now(), 1e9);
  pass(1000);
  EXPECT_NEAR(clock_.now(), 1e9 + 1000, 1e-6);
  EXPECT_NEAR(clock_.wall_ahead(), 0, 1e-6);
}

TEST_F(SlewedClockTest, FollowsAJumpAheadByATenth) {
  wall_ += 86400;
  EXPECT_EQ(clock_.now(), 1e9);
  EXPECT_EQ(clock_.wall_ahead(), 86400);
  pass(100);
  EXPECT_NEAR(clock_.now(), 1e9 + 110, 1e-5);
}

TEST_F(SlewedClockTest, NeverGoesBackAndWaitsForAWallClockThatDid) {
  pass(10);
  wall_ -= 86400;
  double before = clock_.now();
  EXPECT_NEAR(before, 1e9 + 10, 1e-6);
  pass(100);
  EXPECT_NEAR(clock_.now(), before + 90, 1e-5);
  EXPECT_NEAR(clock_.wall_ahead(), -86390, 1e-5);
}

TEST_F(SlewedClockTest, AgreesWithTheWallClockInTheEnd) {
  wall_ += 60;
  pass(601);
  EXPECT_NEAR(clock_.wall_ahead(), 0, 1e-5);
  wall_ -= 60;
  pass(601);
  EXPECT_NEAR(clock_.wall_ahead(), 0, 1e-5);
  EXPECT_NEAR(clock_.now(), wall_, 1e-5);
}

TEST_F(SlewedClockTest, AJumpThatIsTakenBackIsForgotten) {
  wall_ += 3 * 86400;
  pass(30);
  wall_ -= 3 * 86400;
  pass(40);
  EXPECT_NEAR(clock_.wall_ahead(), 0, 1e-5);
}

}  // namespace
}  // namespace gnomon

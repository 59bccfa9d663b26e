#include "controller/bell.h"

#include <gtest/gtest.h>

namespace gnomon {
namespace {

TEST(BellTest, ARingWakesEveryWaiterOnce) {
  Bell bell;
  int woken = 0;
  EXPECT_NE(bell.wait(bell.count(), [&] { ++woken; }), 0u);
  EXPECT_NE(bell.wait(bell.count(), [&] { ++woken; }), 0u);
  bell.ring();
  EXPECT_EQ(woken, 2);
  bell.ring();
  EXPECT_EQ(woken, 2);
}

TEST(BellTest, ARingBetweenLookingAndWaitingIsNotLost) {
  Bell bell;
  uint64_t seen = bell.count();
  bell.ring();
  EXPECT_EQ(bell.wait(seen, [] { FAIL() << "was not registered"; }), 0u);
  bell.ring();
}

TEST(BellTest, AForgottenWaiterIsNotCalled) {
  Bell bell;
  uint64_t ticket = bell.wait(bell.count(), [] { FAIL() << "was taken back"; });
  bell.forget(ticket);
  bell.ring();
}

}  // namespace
}  // namespace gnomon

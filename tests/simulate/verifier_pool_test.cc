#include "lab/simulate/verifier_pool.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gnomon::simulate {
namespace {

constexpr double kLease = 10;

VerifierPool::Task task(int64_t replay, const std::string& avoid = "") {
  VerifierPool::Task made;
  made.order.replay = replay;
  made.order.avoid = avoid;
  return made;
}

TEST(VerifierPoolTest, EachDoesOneReplayAtATimeInItsOwnTime) {
  RunModel model;
  model.verifiers = 2;
  model.verifier_speed = 2;
  VerifierPool pool(model, kLease, 1);
  EXPECT_TRUE(pool.idle());
  pool.start(task(1), {}, 100, 60);
  pool.start(task(2), {}, 110, 60);
  EXPECT_FALSE(pool.may_start(task(3).order, {}, 120));
  EXPECT_FALSE(pool.pop_done(129.9));
  EXPECT_DOUBLE_EQ(pool.next_change(120), 130);
  const auto done = pool.pop_done(200);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->task.order.replay, 1) << "the earliest first";
  EXPECT_EQ(done->verifier, "verifier-1");
  EXPECT_DOUBLE_EQ(done->seconds, 30);
  EXPECT_FALSE(done->died);
  EXPECT_TRUE(pool.may_start(task(3).order, {}, 200));
  EXPECT_EQ(pool.pop_done(200)->task.order.replay, 2);
  EXPECT_TRUE(pool.idle());
}

TEST(VerifierPoolTest, TheOneToAvoidIsTakenOnlyWhenThereIsNoOther) {
  RunModel model;
  model.verifiers = 2;
  VerifierPool pool(model, kLease, 1);
  pool.start(task(1, "verifier-1"), {}, 0, 5);
  EXPECT_FALSE(pool.may_start(task(2, "verifier-1").order, {}, 0)) << "the other will be free";
  EXPECT_EQ(pool.pop_done(5)->verifier, "verifier-2");
  pool.start(task(2, "verifier-1"), {"verifier-2"}, 5, 5);
  EXPECT_EQ(pool.pop_done(10)->verifier, "verifier-1");
  EXPECT_FALSE(pool.may_start(task(3).order, {"verifier-1", "verifier-2"}, 10));
}

TEST(VerifierPoolTest, ADeadOnesWorkComesBackWhenItsLeaseHasRunOut) {
  RunModel model;
  model.verifiers = 1;
  model.verifier_dies = 1;
  model.verifier_back_seconds = 1000;
  VerifierPool pool(model, kLease, 1);
  pool.start(task(1), {}, 0, 60);
  const auto done = pool.pop_done(60 + kLease);
  ASSERT_TRUE(done);
  EXPECT_TRUE(done->died);
  EXPECT_EQ(done->task.leases, 1);
  EXPECT_GE(done->seconds, kLease);
  EXPECT_FALSE(pool.may_start(task(1).order, {}, 100)) << "nobody is there yet";
  EXPECT_GE(pool.next_change(100), 1000) << "somebody comes";
  EXPECT_EQ(pool.next_change(1100), HUGE_VAL) << "and is free";
  EXPECT_TRUE(pool.may_start(task(1).order, {}, 1100));
}

TEST(VerifierPoolTest, OneThatHasBegunToComputeWronglyGoesOnWithIt) {
  RunModel model;
  model.verifiers = 1;
  model.verifier_lies = 0.2;
  VerifierPool pool(model, kLease, 3);
  bool lied = false;
  int lies = 0;
  for (int i = 0; i < 50; ++i) {
    pool.start(task(i), {}, i, 1);
    const bool lies_now = pool.pop_done(i + 1)->lies;
    EXPECT_TRUE(lies_now || !lied);
    lied = lied || lies_now;
    lies += lies_now ? 1 : 0;
  }
  EXPECT_GT(lies, 0);
  EXPECT_LT(lies, 50);
}

}  // namespace
}  // namespace gnomon::simulate

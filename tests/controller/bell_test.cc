#include "controller/supervisor/bell.h"

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

// Who rings is the ledger's writer: with ten thousand waiters it hands them over and goes on.
TEST(BellTest, ManyWaitersAreCarriedElsewhere) {
  std::shared_ptr<Bell::Waiting> carried;
  const Bell::Carrier carrier = [&](std::shared_ptr<Bell::Waiting> waiting) {
    carried = std::move(waiting);
  };
  Bell bell(&carrier);
  int woken = 0;
  for (int i = 0; i < 10'000; ++i) bell.wait(bell.count(), [&] { ++woken; });
  bell.ring();
  EXPECT_EQ(woken, 0);
  ASSERT_NE(carried, nullptr);
  EXPECT_EQ(carried->size(), 10'000u);
  EXPECT_EQ(bell.count(), 1u);
  bell.wait(bell.count(), [&] { ++woken; });
  bell.ring();
  EXPECT_EQ(woken, 1) << "a few are called at once";
}

TEST(BellTest, ARunsBellWakesThoseWhoWaitForItAlone) {
  RunBells bells(nullptr);
  int first = 0;
  int second = 0;
  bells.of(1).wait(0, [&] { ++first; });
  bells.of(2).wait(0, [&] { ++second; });
  bells.of(1).ring();
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 0);
  bells.ring_all();
  EXPECT_EQ(second, 1);
}

TEST(StreamTailTest, HasTheNewestRowsAndSaysWhenItDoesNotKnow) {
  StreamTail tail(3, 1'000);
  EXPECT_FALSE(tail.after(0, 10).has_value()) << "it has heard of nothing yet";
  for (int64_t id = 5; id <= 9; ++id) tail.push(make_stream_event(id, 1, "run", "{}"));
  EXPECT_FALSE(tail.after(5, 10).has_value()) << "6 is gone";
  ASSERT_TRUE(tail.after(6, 10).has_value());
  EXPECT_EQ(tail.after(6, 10)->size(), 3u);
  EXPECT_EQ(tail.after(6, 2)->back()->id, 8);
  EXPECT_TRUE(tail.after(9, 10)->empty());
  EXPECT_EQ(tail.after(8, 10)->front()->text, "id: 9\nevent: run\ndata: {}\n\n");
  tail.push(make_stream_event(10, 1, "run", std::string(2'000, 'x')));
  EXPECT_FALSE(tail.after(8, 10).has_value()) << "bytes are bounded too";
  EXPECT_EQ(tail.after(9, 10)->size(), 1u);
  tail.push(make_stream_event(12, 1, "run", "{}"));
  EXPECT_FALSE(tail.after(10, 10).has_value()) << "11 was never here";
}

}  // namespace
}  // namespace gnomon

#include "controller/supervisor/change_notifier.h"

#include <gtest/gtest.h>

namespace gnomon {
namespace {

TEST(ChangeNotifierTest, ANotificationWakesEveryWaiterOnce) {
  ChangeNotifier notifier;
  int woken = 0;
  EXPECT_NE(notifier.wait(notifier.count(), [&] { ++woken; }), 0u);
  EXPECT_NE(notifier.wait(notifier.count(), [&] { ++woken; }), 0u);
  notifier.notify_all();
  EXPECT_EQ(woken, 2);
  notifier.notify_all();
  EXPECT_EQ(woken, 2);
}

TEST(ChangeNotifierTest, ANotificationBetweenCountAndWaitIsNotLost) {
  ChangeNotifier notifier;
  uint64_t seen = notifier.count();
  notifier.notify_all();
  EXPECT_EQ(notifier.wait(seen, [] { FAIL() << "was not registered"; }), 0u);
  notifier.notify_all();
}

TEST(ChangeNotifierTest, AForgottenWaiterIsNotCalled) {
  ChangeNotifier notifier;
  uint64_t ticket = notifier.wait(notifier.count(), [] { FAIL() << "was taken back"; });
  notifier.forget(ticket);
  notifier.notify_all();
}

// The caller is the ledger's writer: it hands ten thousand waiters over and continues.
TEST(ChangeNotifierTest, ManyWaitersAreCalledByTheDispatcher) {
  std::shared_ptr<ChangeNotifier::Waiting> carried;
  const ChangeNotifier::Dispatcher dispatcher =
      [&](std::shared_ptr<ChangeNotifier::Waiting> waiting) { carried = std::move(waiting); };
  ChangeNotifier notifier(&dispatcher);
  int woken = 0;
  for (int i = 0; i < 10'000; ++i) notifier.wait(notifier.count(), [&] { ++woken; });
  notifier.notify_all();
  EXPECT_EQ(woken, 0);
  ASSERT_NE(carried, nullptr);
  EXPECT_EQ(carried->size(), 10'000u);
  EXPECT_EQ(notifier.count(), 1u);
  notifier.wait(notifier.count(), [&] { ++woken; });
  notifier.notify_all();
  EXPECT_EQ(woken, 1) << "a few are called at once";
}

TEST(ChangeNotifierTest, ARunsNotifierWakesOnlyItsOwnWaiters) {
  RunNotifiers notifiers(nullptr);
  int first = 0;
  int second = 0;
  notifiers.of(1).wait(0, [&] { ++first; });
  notifiers.of(2).wait(0, [&] { ++second; });
  notifiers.of(1).notify_all();
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 0);
  notifiers.notify_all();
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

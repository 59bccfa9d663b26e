// Whose turn it is: shares of runs, labels of verifiers, who is woken.
#include "controller/supervisor/replay_queue.h"

#include <gmock/gmock.h>

namespace gnomon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ReplayQueueTest : public ::testing::Test {
 protected:
  void order(int64_t run, int64_t replay, int64_t priority = 0, double ordered_at = 0,
             bool on_trainer = false) {
    queue_.add({run, replay, 1, 0, priority, ordered_at, on_trainer});
  }
  static ReplayQueue::Worker verifier(const Labels& labels = {}) { return {"v", labels}; }
  // Runs in the order of their turns.
  std::vector<int64_t> turns(const ReplayQueue::Worker& worker = verifier(), double now = 0) {
    std::vector<int64_t> runs;
    for (const QueuedReplay& entry : queue_.candidates(worker, 100, now)) runs.push_back(entry.run);
    return runs;
  }
  std::vector<int64_t> replays(const ReplayQueue::Worker& worker = verifier()) {
    std::vector<int64_t> found;
    for (const QueuedReplay& entry : queue_.candidates(worker, 100, 0)) {
      found.push_back(entry.replay);
    }
    return found;
  }
  // Waits; `name` is noted when it is woken.
  uint64_t wait(const std::string& name, const ReplayQueue::Worker& worker = verifier()) {
    return queue_.wait(worker, [this, name] { woken_.push_back(name); });
  }

  ReplayQueue queue_;
  std::vector<std::string> woken_;
};

TEST_F(ReplayQueueTest, InsideARunPriorityComesBeforeAge) {
  order(1, 1, 0, 10);
  order(1, 2, 5, 20);
  order(1, 3, 5, 15);
  EXPECT_THAT(replays(), ElementsAre(3, 2, 1));
}

// Priorities: 100 for a case, 50 for shadows.
TEST_F(ReplayQueueTest, TheReplaysOfACaseLeaveTheirRunsShadowsTheirTurns) {
  for (int64_t i = 1; i <= 3; ++i) order(1, i, 100, 10);
  order(1, 4, 50, 20);
  order(1, 5, 50, 30);
  order(1, 6, 20, 5);  // may wait
  EXPECT_THAT(replays(), ElementsAre(1, 2, 3, 4, 5, 6));
  for (const int64_t of_case : {1, 2}) {
    EXPECT_EQ(replays().front(), of_case);
    queue_.remove(1, of_case);
    queue_.lease_began(1, true);
  }
  EXPECT_THAT(replays(), ElementsAre(4, 5, 3, 6)) << "one turn of three";
  queue_.remove(1, 4);
  queue_.lease_began(1, false);
  EXPECT_THAT(replays(), ElementsAre(3, 5, 6));
}

TEST_F(ReplayQueueTest, ARunWithManyUrgentReplaysDoesNotKeepAnotherWaiting) {
  for (int64_t i = 1; i <= 5; ++i) order(1, i, 9);
  order(2, 6, 0, 100);
  queue_.lease_began(1);
  EXPECT_EQ(turns().front(), 2);
  queue_.lease_began(2);
  EXPECT_EQ(turns().front(), 1);
}

TEST_F(ReplayQueueTest, AShareOfTwoHoldsTwoLeasesForOne) {
  queue_.set_terms(1, {2, {}});
  order(1, 1);
  order(2, 2);
  queue_.lease_began(1);
  queue_.lease_began(2);
  EXPECT_EQ(turns().front(), 1);
  queue_.lease_began(1);
  queue_.lease_began(1);
  EXPECT_EQ(turns().front(), 2);
  EXPECT_EQ(turns().back(), 1);
}

TEST_F(ReplayQueueTest, TimeUsedLatelyDecidesBetweenIdleRunsAndIsForgotten) {
  order(1, 1);
  order(2, 2, 5);
  queue_.lease_began(1);
  queue_.lease_began(2);
  queue_.lease_ended(1, 100, 0);
  queue_.lease_ended(2, 300, 0);
  EXPECT_EQ(turns(verifier(), 0).front(), 1);
  // Twenty minutes later a quarter is left: 25 and 75.
  queue_.lease_began(1);
  queue_.lease_ended(1, 40, 1200);
  EXPECT_EQ(turns(verifier(), 1200).front(), 1);
  queue_.lease_began(1);
  queue_.lease_ended(1, 20, 1200);
  EXPECT_EQ(turns(verifier(), 1200).front(), 2);
}

// A simulated hour: three verifiers, replays of ten seconds, shares 1, 1 and 2, one run always with
// urgent work.
TEST_F(ReplayQueueTest, OverAnHourEachRunGetsItsShare) {
  queue_.set_terms(3, {2, {}});
  std::map<int64_t, int> done;
  int64_t number = 0;
  for (const int64_t run : {1, 2, 3}) {
    for (int i = 0; i < 4; ++i) {
      ++number;
      order(run, number, run == 1 ? 9 : 0, static_cast<double>(number));
    }
  }
  struct Busy {
    double until;
    int64_t run;
  };
  std::vector<Busy> busy;
  for (double now = 0; now < 3600; now += 1) {
    std::erase_if(busy, [&](const Busy& lease) {
      if (lease.until > now) return false;
      queue_.lease_ended(lease.run, 10, now);
      ++done[lease.run];
      order(lease.run, ++number, lease.run == 1 ? 9 : 0, now);
      return true;
    });
    while (busy.size() < 3) {
      const QueuedReplay next = queue_.candidates(verifier(), 1, now).at(0);
      queue_.remove(next.run, next.replay);
      queue_.lease_began(next.run);
      busy.push_back({now + 10, next.run});
    }
  }
  const int all = done[1] + done[2] + done[3];
  EXPECT_NEAR(static_cast<double>(done[1]) / all, 0.25, 0.03);
  EXPECT_NEAR(static_cast<double>(done[2]) / all, 0.25, 0.03);
  EXPECT_NEAR(static_cast<double>(done[3]) / all, 0.5, 0.03);
}

TEST_F(ReplayQueueTest, AReplayGoesOnlyToAVerifierThatFits) {
  queue_.set_terms(1, {1, {"backend=cuda", "device=NVIDIA*", "pool=night"}});
  order(1, 1);
  EXPECT_THAT(turns(verifier({{"backend", "cpu"}})), IsEmpty());
  EXPECT_THAT(turns(verifier({{"backend", "cuda"}, {"device", "NVIDIA H200"}})), IsEmpty());
  EXPECT_THAT(turns(verifier({{"backend", "cuda"}, {"device", "NVIDIA H200"}, {"pool", "night"}})),
              ElementsAre(1));
}

TEST_F(ReplayQueueTest, VerifiersGetNoReplayThatOnlyTheTrainerCanDo) {
  order(1, 1, 0, 0, true);
  order(2, 2);
  EXPECT_THAT(turns(), ElementsAre(2));
  EXPECT_THAT(turns({"t", {}, 1, {}}), ElementsAre(1));
  EXPECT_THAT(turns({"t", {}, 3, {}}), IsEmpty());
}

TEST_F(ReplayQueueTest, ACancelledOrTakenReplayIsGone) {
  order(1, 1);
  order(1, 2);
  queue_.add({1, 3, 2, 0, 0, 0, false});
  EXPECT_EQ(queue_.queued(), 3);
  queue_.remove(1, 2);
  queue_.cancel(1, 1);
  EXPECT_THAT(replays(), ElementsAre(3));
}

TEST_F(ReplayQueueTest, ANewReplayWakesTheOneThatWaitedLongestAndFits) {
  queue_.set_terms(1, {1, {"backend=cuda"}, true});
  wait("cpu", verifier({{"backend", "cpu"}}));
  wait("trainer", {"t", {}, 1, {}});
  wait("first", verifier({{"backend", "cuda"}}));
  wait("second", verifier({{"backend", "cuda"}}));
  order(1, 1);
  EXPECT_THAT(woken_, ElementsAre("first"));
  order(2, 2);
  EXPECT_THAT(woken_, ElementsAre("first", "cpu"));
  order(1, 3);
  order(1, 4);
  EXPECT_THAT(woken_, ElementsAre("first", "cpu", "second", "trainer"));
}

TEST_F(ReplayQueueTest, WaitingReturnsAtOnceWhileAReplayIsQueued) {
  order(1, 1);
  EXPECT_EQ(wait("one"), 0);
  ReplayQueue::Worker worker = verifier();
  worker.declined.insert({1, 1, 0});
  EXPECT_NE(wait("two", worker), 0);
  queue_.remove(1, 1);
  queue_.add({1, 1, 1, 1, 0, 0, false});  // back in the queue after a lease
  EXPECT_THAT(woken_, ElementsAre("two"));
}

TEST_F(ReplayQueueTest, WhenOneLeavesWithoutWorkAnotherIsWoken) {
  const uint64_t gone = wait("gone");
  wait("next");
  wait("after");
  queue_.forget(gone);
  order(1, 1);
  EXPECT_THAT(woken_, ElementsAre("next"));
  queue_.wake_matching();
  EXPECT_THAT(woken_, ElementsAre("next", "after"));
  queue_.wake_matching();
  EXPECT_EQ(woken_.size(), 2);
}

TEST_F(ReplayQueueTest, ForgetReportsAWorkerThatWasWoken) {
  const uint64_t woken = wait("woken");
  const uint64_t waiting = wait("waiting");
  order(1, 1);
  EXPECT_FALSE(queue_.forget(woken));
  EXPECT_TRUE(queue_.forget(waiting));
}

TEST_F(ReplayQueueTest, NewTermsWakeWorkersThatFitNow) {
  queue_.set_terms(1, {1, {"backend=cuda"}});
  order(1, 1);
  wait("cpu", verifier({{"backend", "cpu"}}));
  queue_.set_terms(1, {3, {"backend=cuda"}});
  EXPECT_THAT(woken_, IsEmpty());
  queue_.set_terms(1, {3, {"backend=cpu"}});
  EXPECT_THAT(woken_, ElementsAre("cpu"));
}

TEST_F(ReplayQueueTest, AVerifierInQuarantineHasNoTurnInTheRun) {
  order(1, 1);
  order(1, 2);
  order(2, 3);
  queue_.set_terms(1, {.quarantined = {"v"}});
  EXPECT_THAT(turns(), ElementsAre(2));
  EXPECT_FALSE(queue_.suits(1, "v", nullptr));
  EXPECT_TRUE(queue_.suits(2, "v", nullptr));
  queue_.remove(2, 3);
  EXPECT_NE(wait("in quarantine"), 0);
  order(1, 4);
  EXPECT_THAT(woken_, IsEmpty());
  EXPECT_EQ(wait("another", {"w", {}}), 0);
}

TEST_F(ReplayQueueTest, ALeaseThatNeverWasLeavesNoTrace) {
  order(1, 1, 0, 0);
  order(2, 2, 0, 1);
  queue_.lease_began(1);
  EXPECT_EQ(turns().front(), 2);
  queue_.lease_undone(1);
  EXPECT_EQ(turns().front(), 1);
}

TEST_F(ReplayQueueTest, TheFirstTurnsOfManyRunsAreTheFirstOfAll) {
  for (int64_t run = 1; run <= 40; ++run) {
    for (int64_t i = 0; i < 5; ++i) order(run, run * 10 + i, i % 2, static_cast<double>(50 - run));
  }
  const std::vector<QueuedReplay> all = queue_.candidates(verifier(), 1000, 0);
  ASSERT_EQ(all.size(), 200);
  const std::vector<QueuedReplay> few = queue_.candidates(verifier(), 7, 0);
  ASSERT_EQ(few.size(), 7);
  for (size_t i = 0; i < few.size(); ++i) EXPECT_EQ(few[i].replay, all[i].replay);
  EXPECT_TRUE(std::ranges::is_sorted(all, {}, [](const QueuedReplay& entry) {
    return std::tuple(-entry.priority, entry.ordered_at, entry.run, entry.replay);
  }));
}

TEST_F(ReplayQueueTest, TheBacklogLeavesOutWhatOnlyTrainersDo) {
  queue_.set_terms(2, {1, {"pool=a"}});
  order(1, 1, 0, 0, true);
  order(2, 2, 0, 0, true);
  order(2, 3);
  order(2, 4);
  const std::vector<ReplayQueue::Backlog> backlog = queue_.backlog();
  ASSERT_EQ(backlog.size(), 1);
  EXPECT_EQ(backlog[0].run, 2);
  EXPECT_EQ(backlog[0].replays.size(), 2);
  EXPECT_THAT(backlog[0].terms.requirements, ElementsAre("pool=a"));
}

}  // namespace
}  // namespace gnomon

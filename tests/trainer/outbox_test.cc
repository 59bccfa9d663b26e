#include "trainer/outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/basic_file_sink.h>

#include <future>

#include "base/files.h"
#include "protocol/json.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace gnomon {
namespace {

using test::eventually;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kSpoolBytes = 64 << 10;

class OutboxTest : public ::testing::Test {
 protected:
  void SetUp() override { log_.flush_on(spdlog::level::info); }
  bool comes_to_say(const std::string& text) {
    return eventually(
        [&] { return read_file(directory_ / "log").find(text) != std::string::npos; });
  }
  void make(FullSpool policy) { outbox_.emplace(spool_, policy, shutdown_, log_); }

  static StepReport step(int64_t number, int64_t attempt = 1) {
    StepReport report;
    report.attempt = attempt;
    report.step = number;
    report.weights_hash = "0123456789abcdef";
    return report;
  }
  // Steps from `first` on, until one is dropped; that one.
  int64_t fill(int64_t first) {
    while (outbox_->steps_dropped() == 0) outbox_->step(step(first++));
    return first - 1;
  }
  // No record finds room any more, steps or not.
  void fill_wholly() {
    const std::string filler = to_json(step(1));
    while (spool_.append("steps", filler) == Spool::Outcome::kWritten) {
    }
    while (spool_.append("x", "") == Spool::Outcome::kWritten) {
    }
  }
  void deliver_all() {
    while (!spool_.empty()) spool_.acknowledge(spool_.oldest(1, 1).front().number);
  }
  std::vector<std::string> targets() const { return spool_.pending_targets(); }
  TrainerNotice notice(size_t index) const {
    return from_json<TrainerNotice>(spool_.pending("notices").at(index));
  }

  test::TemporaryDirectory directory_;
  spdlog::logger log_{
      "test", std::make_shared<spdlog::sinks::basic_file_sink_mt>((directory_ / "log").string())};
  Shutdown shutdown_;
  Spool spool_{directory_ / "spool", kSpoolBytes};
  std::optional<Outbox> outbox_;
};

TEST_F(OutboxTest, StepsThatFindNoRoomAreDroppedAndToldOnceThereIsRoom) {
  make(FullSpool::kDropSteps);
  const int64_t first = fill(1);
  for (int64_t number = first + 1; number <= first + 5; ++number) outbox_->step(step(number));
  EXPECT_EQ(outbox_->steps_dropped(), 6);
  EXPECT_TRUE(spool_.pending("notices").empty()) << "while it goes on";
  deliver_all();
  outbox_->step(step(first + 6));
  EXPECT_THAT(targets(), ElementsAre("notices", "steps"));
  EXPECT_EQ(notice(0).kind, "reports_dropped");
  EXPECT_EQ(notice(0).attempt, 1);
  EXPECT_EQ(notice(0).step, first + 5);
  EXPECT_THAT(notice(0).text,
              HasSubstr(fmt::format("steps {} to {} of attempt 1", first, first + 5)));
  EXPECT_GT(notice(0).time, 0);
  outbox_->step(step(first + 7));
  EXPECT_THAT(targets(), ElementsAre("notices", "steps", "steps")) << "told once";
}

TEST_F(OutboxTest, EachAttemptsGapIsToldByItself) {
  make(FullSpool::kDropSteps);
  const int64_t first = fill(1);
  outbox_->record("attempts", "{}");
  outbox_->step(step(3, 2));
  outbox_->step(step(4, 2));
  deliver_all();
  ASSERT_TRUE(outbox_->store_kept());
  ASSERT_EQ(spool_.pending("notices").size(), 2u);
  EXPECT_THAT(notice(0).text, HasSubstr(fmt::format("steps {} to {} of attempt 1", first, first)));
  EXPECT_THAT(notice(1).text, HasSubstr("steps 3 to 4 of attempt 2"));
}

TEST_F(OutboxTest, StepsLeaveRoomForEverythingElse) {
  make(FullSpool::kDropSteps);
  fill(1);
  outbox_->record("checkpoints", "{}");
  outbox_->notice({});
  const auto all = targets();
  EXPECT_EQ(all[all.size() - 2], "checkpoints");
  EXPECT_EQ(all.back(), "notices");
}

TEST_F(OutboxTest, WhatIsNoStepIsKeptInMemoryAndKeepsItsPlace) {
  make(FullSpool::kDropSteps);
  fill_wholly();
  outbox_->record("attempts", "{\"attempt\":2}");
  outbox_->record("checkpoints", "{\"uri\":\"x\"}");
  outbox_->step(step(7, 2));
  EXPECT_THAT(outbox_->pending("checkpoints"), ElementsAre("{\"uri\":\"x\"}"));
  EXPECT_FALSE(outbox_->store_kept());
  EXPECT_TRUE(spool_.pending("attempts").empty());
  deliver_all();
  outbox_->step(step(8, 2));
  EXPECT_THAT(targets(), ElementsAre("attempts", "checkpoints", "notices", "steps"));
  EXPECT_TRUE(outbox_->store_kept());
}

TEST_F(OutboxTest, AStepWaitsForRoomWhereStepsMayNotBeDropped) {
  make(FullSpool::kWait);
  fill_wholly();
  const size_t before = spool_.records();
  auto waiting = std::async(std::launch::async, [this] { outbox_->step(step(9)); });
  ASSERT_TRUE(comes_to_say("TRAINING WAITS at step 9"));
  EXPECT_EQ(spool_.records(), before);
  deliver_all();
  waiting.get();
  EXPECT_EQ(from_json<StepReport>(spool_.pending("steps").back()).step, 9);
  EXPECT_EQ(outbox_->steps_dropped(), 0);
}

TEST_F(OutboxTest, AShutdownEndsTheWait) {
  make(FullSpool::kWait);
  fill_wholly();
  shutdown_.request();
  EXPECT_THROW(outbox_->step(step(9)), Interrupted);
  EXPECT_THROW(outbox_->record("attempts", "{}"), Interrupted);
}

TEST_F(OutboxTest, ANoticeNeverWaits) {
  make(FullSpool::kWait);
  fill_wholly();
  TrainerNotice failed;
  failed.kind = "checkpoint_failed";
  outbox_->notice(failed);
  deliver_all();
  outbox_->step(step(9));
  EXPECT_THAT(targets(), ElementsAre("notices", "steps"));
}

TEST_F(OutboxTest, WhatMayBeLostTakesOnlyRoomThatNothingElseNeeds) {
  for (FullSpool policy : {FullSpool::kWait, FullSpool::kDropSteps}) {
    make(policy);
    const std::string body(1000, 's');
    int offered = 0;
    while (outbox_->offer("statistics", body)) ASSERT_LT(++offered, 1000);
    EXPECT_GT(offered, 20);
    EXPECT_LE(spool_.bytes(), kSpoolBytes / 2);
    const size_t before = spool_.records();
    for (int64_t number = 1; number <= 20; ++number) outbox_->step(step(number));
    outbox_->record("checkpoints", "{}");
    EXPECT_EQ(spool_.records(), before + 21);
    EXPECT_EQ(outbox_->steps_dropped(), 0);
    EXPECT_FALSE(outbox_->offer("statistics", body));
    deliver_all();
    EXPECT_TRUE(outbox_->offer("statistics", body));
    deliver_all();
  }
}

TEST_F(OutboxTest, NothingIsOfferedAheadOfWhatWaits) {
  make(FullSpool::kDropSteps);
  fill_wholly();
  outbox_->record("attempts", "{}");  // is kept in memory
  EXPECT_FALSE(outbox_->offer("statistics", "{}"));
  EXPECT_EQ(outbox_->pending("statistics").size(), 0u);
  deliver_all();
  EXPECT_TRUE(outbox_->offer("statistics", "{}"));
  EXPECT_THAT(targets(), ElementsAre("attempts", "statistics"));
}

TEST_F(OutboxTest, NothingIsOfferedWhileAGapOfStepsIsUntold) {
  make(FullSpool::kDropSteps);
  fill(1);
  EXPECT_FALSE(outbox_->offer("statistics", "{}"));
  deliver_all();
  EXPECT_FALSE(outbox_->offer("statistics", "{}")) << "the gap comes first";
  outbox_->step(step(1000));
  EXPECT_TRUE(outbox_->offer("statistics", "{}"));
  EXPECT_THAT(targets(), ElementsAre("notices", "steps", "statistics"));
}

TEST_F(OutboxTest, AtTheEndEverythingThatIsKeptFindsItsRoomFirst) {
  make(FullSpool::kDropSteps);
  fill_wholly();
  outbox_->record("finished", "{}");
  auto settling = std::async(std::launch::async, [this] { outbox_->settle(); });
  ASSERT_TRUE(comes_to_say("WAITS"));
  deliver_all();
  settling.get();
  EXPECT_THAT(targets(), ElementsAre("finished"));
}

}  // namespace
}  // namespace gnomon

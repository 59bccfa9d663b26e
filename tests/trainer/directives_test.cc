#include "trainer/directives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>

#include <atomic>

#include "protocol/json.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/words.h"
#include "tests/trainer/fake_controller.h"

namespace gnomon {
namespace {

using test::eventually;
using test::FakeController;
using test::HttpReply;
using test::HttpRequest;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

class DirectiveInboxTest : public ::testing::Test {
 protected:
  void start(int64_t last_answered = 0) {
    ReporterOptions reporter;
    reporter.standing.last_directive = last_answered;
    reporter.controller.url = controller_.url();
    reporter.backoff_first = 1ms;
    reporter.backoff_longest = 20ms;
    reporter_ = std::make_unique<Reporter>(reporter, spool_, contact_, log_);
    DirectiveOptions options;
    options.controller.url = controller_.url();
    options.backoff_first = 1ms;
    options.backoff_longest = 20ms;
    inbox_ = std::make_unique<DirectiveInbox>(options, *reporter_, spool_, contact_, log_);
  }
  void issue(const std::string& kind, int64_t number = 0) {
    Directive directive;
    directive.kind = test::any_word(kind);
    directive.number = number;
    controller_.issue(directive);
  }
  std::optional<Directive> next() {
    std::optional<Directive> directive;
    const bool came = eventually([&] { return (directive = inbox_->pop()).has_value(); }, 10s);
    return came ? directive : std::nullopt;
  }

  test::TemporaryDirectory directory_;
  spdlog::logger log_{"test", std::make_shared<spdlog::sinks::null_sink_mt>()};
  FakeController controller_;
  Spool spool_{directory_ / "spool", 1 << 20};
  Contact contact_;
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<DirectiveInbox> inbox_;
};

TEST_F(DirectiveInboxTest, HandsOutEachDirectiveOnceInOrderAndAcknowledgesIt) {
  issue("pause");
  issue("resume");
  start();
  ASSERT_EQ(next()->kind, "pause");
  ASSERT_EQ(next()->kind, "resume");
  EXPECT_TRUE(eventually([this] { return controller_.ack_state(2) == "acknowledged"; }));
  EXPECT_EQ(controller_.ack_state(1), "acknowledged");
  issue("stop");
  const auto third = next();
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ(third->number, 3);
  EXPECT_FALSE(inbox_->pop().has_value());
}

TEST_F(DirectiveInboxTest, WhatWasAnsweredBeforeIsNotHandedOutAgainNorAnsweredTwice) {
  issue("pause");
  issue("stop");
  std::atomic<bool> hold_answers = true;
  controller_.interfere([&](const HttpRequest& request) -> std::optional<HttpReply> {
    if (hold_answers && request.method == "POST" && request.target.ends_with("/ack"))
      return HttpReply{503, "{}"};
    return std::nullopt;
  });
  DirectiveAck applied;
  applied.state = "applied";
  spool_.append("directives/1/ack", to_json(applied));
  start(1);
  EXPECT_EQ(next()->number, 2);
  EXPECT_FALSE(inbox_->pop().has_value());
  hold_answers = false;
  ASSERT_TRUE(eventually([this] { return spool_.empty(); }));
  const auto acks = controller_.received().acks;
  ASSERT_EQ(acks.size(), 2u);
  EXPECT_EQ(acks[0].second.state, "applied");
  EXPECT_EQ(acks[1].first, 2);
}

TEST_F(DirectiveInboxTest, ANumberThatWasUsedIsRejectedVisiblyAndHigherOnesAreTaken) {
  issue("pause", 3);
  issue("resume", 6);
  start(5);
  const auto taken = next();
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->number, 6);
  ASSERT_TRUE(eventually([this] { return controller_.ack_state(3) == "rejected"; }));
  EXPECT_THAT(controller_.received().acks.at(0).second.reason, HasSubstr("above 5"));
  EXPECT_FALSE(inbox_->pop().has_value());
}

TEST_F(DirectiveInboxTest, ALostLedgerIsNoticedWithoutAReportAndNumbersGoOn) {
  issue("pause");
  start();
  ASSERT_EQ(next()->kind, "pause");
  ASSERT_TRUE(eventually([this] { return spool_.empty(); }));
  Standing standing;
  standing.last_directive = 1;
  standing.newest_plan_version = 4;
  reporter_->knows(standing);
  controller_.lose_ledger();
  ASSERT_TRUE(eventually([this] { return !controller_.received().registrations.empty(); }));
  EXPECT_EQ(controller_.received().registrations[0].last_directive, 1);
  EXPECT_EQ(controller_.received().registrations[0].newest_plan_version, 4);
  issue("resume");
  const auto second = next();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->number, 2);
  EXPECT_EQ(second->kind, "resume");
}

TEST_F(DirectiveInboxTest, WhatALostLedgerWantedAndWasNotDoneIsGivenUp) {
  issue("pause");
  start();
  ASSERT_TRUE(eventually([this] { return controller_.ack_state(1) == "acknowledged"; }));
  controller_.lose_ledger();
  ASSERT_TRUE(eventually([this] { return !controller_.received().registrations.empty(); }));
  issue("resume");
  ASSERT_TRUE(eventually([this] { return controller_.ack_state(1) == "acknowledged"; }));
  EXPECT_EQ(next()->kind, "resume");
  EXPECT_FALSE(inbox_->pop().has_value());
}

TEST_F(DirectiveInboxTest, ClosedItReturnsWhatWasLeftAndTakesNoMore) {
  issue("pause");
  issue("resume");
  start();
  ASSERT_TRUE(eventually([this] { return controller_.ack_state(2) == "acknowledged"; }));
  EXPECT_EQ(inbox_->pop()->number, 1);
  const std::vector<Directive> left = inbox_->close();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].number, 2);
  EXPECT_FALSE(inbox_->pop().has_value());
}

TEST_F(DirectiveInboxTest, ComesThroughAfterTheControllerWasAway) {
  start();
  ASSERT_TRUE(eventually([this] { return reporter_->wait_for_run(0ms).has_value(); }));
  controller_.go_away();
  ASSERT_TRUE(eventually([this] { return contact_.away_seconds() > 0; }));
  issue("pause");
  controller_.come_back();
  EXPECT_EQ(next()->kind, "pause");
}

}  // namespace
}  // namespace gnomon

#include "trainer/directives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>

#include "tests/trainer/child_process.h"
#include "tests/trainer/fake_controller.h"

namespace gnomon {
namespace {

using gnomon::testing::eventually;
using gnomon::testing::FakeController;
using namespace std::chrono_literals;

class DirectiveInboxTest : public ::testing::Test {
 protected:
  void start(int64_t last_applied = 0) {
    ReporterOptions reporter;
    reporter.url = controller_.url();
    reporter.backoff_first = 1ms;
    reporter.backoff_longest = 20ms;
    reporter_ = std::make_unique<Reporter>(reporter, spool_, contact_, log_);
    DirectiveOptions options;
    options.url = controller_.url();
    options.last_applied = last_applied;
    options.backoff_first = 1ms;
    options.backoff_longest = 20ms;
    inbox_ = std::make_unique<DirectiveInbox>(options, *reporter_, spool_, contact_, log_);
  }
  void issue(const std::string& kind) {
    Directive directive;
    directive.kind = kind;
    controller_.issue(directive);
  }
  std::optional<Directive> next() {
    std::optional<Directive> directive;
    eventually([&] { return (directive = inbox_->take()).has_value(); }, 10s);
    return directive;
  }

  gnomon::testing::TemporaryDirectory directory_;
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
  EXPECT_FALSE(inbox_->take().has_value());
}

TEST_F(DirectiveInboxTest, WhatWasAppliedBeforeIsNotHandedOutAgain) {
  issue("pause");
  issue("stop");
  start(1);
  EXPECT_EQ(next()->number, 2);
  EXPECT_FALSE(inbox_->take().has_value());
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

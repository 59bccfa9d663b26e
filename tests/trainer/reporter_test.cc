#include "trainer/reporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <atomic>
#include <sstream>

#include "protocol/json.h"
#include "tests/trainer/child_process.h"
#include "tests/trainer/fake_controller.h"

namespace gnomon {
namespace {

using gnomon::testing::eventually;
using gnomon::testing::FakeController;
using gnomon::testing::HttpReply;
using gnomon::testing::HttpRequest;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

class ReporterTest : public ::testing::Test {
 protected:
  ReporterOptions options() {
    ReporterOptions options;
    options.url = controller_.url();
    options.registration.name = "demo";
    options.registration.job_id = "1";
    options.backoff_first = 1ms;
    options.backoff_longest = 20ms;
    options.sync_interval = 10ms;
    options.batch_records_max = 7;
    return options;
  }
  void start() { reporter_ = std::make_unique<Reporter>(options(), spool_, contact_, log_); }

  void spool_step(int64_t step, double loss = 1.0) {
    StepReport report;
    report.attempt = 1;
    report.step = step;
    report.loss = loss;
    report.weights_hash = "h" + std::to_string(step);
    ASSERT_EQ(spool_.append("steps", to_json(report)), Spool::Outcome::kWritten);
  }
  bool delivered() {
    return eventually([this] { return spool_.empty(); }, 30s);
  }
  void expect_steps_in_order(int64_t count) {
    const auto told = controller_.told();
    ASSERT_EQ(told.step_order.size(), static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
      EXPECT_EQ(told.step_order[static_cast<size_t>(i)].second, i + 1);
  }

  gnomon::testing::TemporaryDirectory directory_;
  std::ostringstream text_;
  spdlog::logger log_{"test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)};
  FakeController controller_;
  Spool spool_{directory_ / "spool", 1 << 20};
  Contact contact_;
  std::unique_ptr<Reporter> reporter_;
};

TEST_F(ReporterTest, RegistersTheRunAndSendsEveryRecordInOrder) {
  spool_.append("attempts", to_json(AttemptStart{}));
  for (int64_t step = 1; step <= 30; ++step) spool_step(step);
  spool_.append("checkpoints", to_json(CheckpointReport{1, 30, "/c/30", 0, 1, "m", "w", 1}));
  spool_.append("finished", to_json(RunFinished{"completed", 30, 1, 1, 1}));
  start();
  ASSERT_TRUE(delivered());
  EXPECT_EQ(reporter_->wait_for_run(1s), "run-1");
  expect_steps_in_order(30);
  const auto told = controller_.told();
  EXPECT_EQ(told.registrations.size(), 1u);
  EXPECT_EQ(told.attempts.size(), 1u);
  EXPECT_EQ(told.checkpoints.size(), 1u);
  EXPECT_EQ(told.finished.size(), 1u);
  EXPECT_EQ(reporter_->refused(), 0);
}

TEST_F(ReporterTest, ManyStepsTravelInFewRequests) {
  for (int64_t step = 1; step <= 70; ++step) spool_step(step);
  start();
  ASSERT_TRUE(delivered());
  EXPECT_EQ(controller_.told().requests, 1 + 70 / 7);
}

TEST_F(ReporterTest, WhatIsSpooledWhileTheControllerIsAwayArrivesOnceItIsBack) {
  start();
  for (int64_t step = 1; step <= 10; ++step) spool_step(step);
  ASSERT_TRUE(delivered());
  EXPECT_EQ(contact_.away_seconds(), 0);
  controller_.go_away();
  for (int64_t step = 11; step <= 40; ++step) spool_step(step);
  ASSERT_TRUE(eventually([this] { return contact_.away_seconds() > 0; }));
  EXPECT_FALSE(spool_.empty());
  controller_.come_back();
  ASSERT_TRUE(delivered());
  expect_steps_in_order(40);
  EXPECT_EQ(contact_.away_seconds(), 0);
}

TEST_F(ReporterTest, ErrorsOfTheServerAreTriedAgainUntilTheyPass) {
  std::atomic<int> failures = 0;
  controller_.interfere([&](const HttpRequest&) -> std::optional<HttpReply> {
    const int n = failures++;
    if (n % 4 == 3 || n > 60) return std::nullopt;
    return HttpReply{n % 2 == 0 ? 500 : 503, "{}"};
  });
  for (int64_t step = 1; step <= 40; ++step) spool_step(step);
  start();
  ASSERT_TRUE(delivered());
  expect_steps_in_order(40);
  EXPECT_EQ(reporter_->refused(), 0);
}

TEST_F(ReporterTest, AnAnswerThatGotLostMakesARepeatNotALoss) {
  std::atomic<int> requests = 0;
  controller_.interfere([&](const HttpRequest& request) -> std::optional<HttpReply> {
    if (!request.target.ends_with("/steps") || requests++ % 3 != 0) return std::nullopt;
    return HttpReply{.status = 200, .body = {}, .close_unanswered = true};
  });
  for (int64_t step = 1; step <= 40; ++step) spool_step(step);
  start();
  ASSERT_TRUE(delivered());
  expect_steps_in_order(40);
}

TEST_F(ReporterTest, RecordsThatWereTakenButNotAcknowledgedAreRepeatedHarmlessly) {
  for (int64_t step = 1; step <= 20; ++step) spool_step(step);
  start();
  ASSERT_TRUE(delivered());
  for (int64_t step = 11; step <= 25; ++step) spool_step(step);  // as after a crash between the two
  ASSERT_TRUE(delivered());
  expect_steps_in_order(25);
  EXPECT_EQ(controller_.told().repeats, 10);
}

TEST_F(ReporterTest, ARefusedStepIsDroppedLoudlyAndTheOthersArrive) {
  for (int64_t step = 1; step <= 5; ++step) spool_step(step);
  start();
  ASSERT_TRUE(delivered());
  for (int64_t step = 4; step <= 9; ++step) spool_step(step, step == 4 ? 99.0 : 1.0);
  ASSERT_TRUE(delivered());
  expect_steps_in_order(9);
  ASSERT_TRUE(eventually([this] { return reporter_->refused() == 1; }));
  reporter_.reset();
  EXPECT_EQ(controller_.told().steps.at({1, 4}).loss, 1.0);
  EXPECT_THAT(text_.str(), HasSubstr("dropped"));
}

TEST_F(ReporterTest, ARefusalOfAnythingElseIsDroppedToo) {
  controller_.interfere([](const HttpRequest& request) -> std::optional<HttpReply> {
    if (request.target.ends_with("/checkpoints")) return HttpReply{409, "{}"};
    return std::nullopt;
  });
  spool_.append("checkpoints", to_json(CheckpointReport{}));
  spool_step(1);
  start();
  ASSERT_TRUE(delivered());
  expect_steps_in_order(1);
  EXPECT_EQ(reporter_->refused(), 1);
}

TEST_F(ReporterTest, AnUnknownRunIsRegisteredAgain) {
  std::atomic<bool> forgot = false;
  controller_.interfere([&](const HttpRequest& request) -> std::optional<HttpReply> {
    if (request.target == "/v1/runs") forgot = false;
    if (forgot) return HttpReply{404, "{}"};
    return std::nullopt;
  });
  start();
  spool_step(1);
  ASSERT_TRUE(delivered());
  forgot = true;
  spool_step(2);
  ASSERT_TRUE(delivered());
  expect_steps_in_order(2);
  EXPECT_EQ(controller_.told().registrations.size(), 2u);
}

TEST_F(ReporterTest, ADirectiveTheControllerDoesNotKnowDoesNotHoldUpTheSteps) {
  controller_.interfere([](const HttpRequest& request) -> std::optional<HttpReply> {
    if (request.target.ends_with("/ack")) return HttpReply{404, "{}"};
    return std::nullopt;
  });
  spool_.append("directives/9/ack", to_json(DirectiveAck{}));
  spool_step(1);
  start();
  ASSERT_TRUE(delivered());
  expect_steps_in_order(1);
}

TEST_F(ReporterTest, KeepsWhatTheControllerProtects) {
  start();
  EXPECT_FALSE(reporter_->protected_checkpoints().has_value()) << "unknown before the first answer";
  controller_.protect({"/c/10", "/c/20"});
  spool_step(1);
  ASSERT_TRUE(delivered());
  ASSERT_TRUE(eventually([this] { return reporter_->protected_checkpoints().has_value(); }));
  EXPECT_THAT(*reporter_->protected_checkpoints(), ::testing::ElementsAre("/c/10", "/c/20"));
}

TEST_F(ReporterTest, EndsAtOnceWhileTheControllerDoesNotAnswer) {
  controller_.go_away();
  start();
  spool_step(1);
  ASSERT_TRUE(eventually([this] { return contact_.away_seconds() > 0; }));
  const auto begin = std::chrono::steady_clock::now();
  reporter_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  EXPECT_EQ(spool_.records(), 1u);
}

}  // namespace
}  // namespace gnomon

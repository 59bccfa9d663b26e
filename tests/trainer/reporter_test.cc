#include "trainer/reporter.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <atomic>
#include <sstream>

#include "base/files.h"
#include "protocol/json.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/fake_controller.h"

namespace gnomon {
namespace {

using test::eventually;
using test::FakeController;
using test::HttpReply;
using test::HttpRequest;
using test::problem;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

class ReporterTest : public ::testing::Test {
 protected:
  ReporterOptions options() {
    ReporterOptions options;
    options.controller.url = controller_.url();
    options.registration.name = "demo";
    options.registration.job_id = "1";
    options.backoff_first = 1ms;
    options.backoff_longest = 20ms;
    options.sync_interval = 10ms;
    options.batch_records_max = 7;
    options.standing = standing_;
    options.tries_max = tries_max_;
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
  AttemptStart attempt(int64_t number) {
    AttemptStart start;
    start.attempt = number;
    start.base_step = 10 * (number - 1);
    start.cause = number == 1 ? AttemptCause("start") : "restart";
    return start;
  }
  std::string refused_file() const { return read_file(spool_.directory() / "refused.jsonl"); }
  bool delivered() {
    return eventually([this] { return spool_.empty(); }, 30s);
  }
  void expect_steps_in_order(int64_t count) {
    const auto received = controller_.received();
    ASSERT_EQ(received.step_order.size(), static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
      EXPECT_EQ(received.step_order[static_cast<size_t>(i)].second, i + 1);
  }

  test::TemporaryDirectory directory_;
  std::ostringstream text_;
  spdlog::logger log_{"test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)};
  FakeController controller_;
  Spool spool_{directory_ / "spool", 1 << 20};
  Contact contact_;
  Standing standing_;
  int tries_max_ = 20;
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
  const auto received = controller_.received();
  EXPECT_EQ(received.registrations.size(), 1u);
  EXPECT_EQ(received.attempts.size(), 1u);
  EXPECT_EQ(received.checkpoints.size(), 1u);
  EXPECT_EQ(received.finished.size(), 1u);
  EXPECT_EQ(reporter_->refused(), 0);
}

TEST_F(ReporterTest, ManyStepsTravelInFewRequests) {
  for (int64_t step = 1; step <= 70; ++step) spool_step(step);
  start();
  ASSERT_TRUE(delivered());
  EXPECT_EQ(controller_.received().requests, 1 + 70 / 7);
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
  EXPECT_EQ(controller_.received().repeats, 10);
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
  EXPECT_EQ(controller_.received().steps.at({1, 4}).loss, 1.0);
  EXPECT_THAT(text_.str(), HasSubstr("refused.jsonl"));
  EXPECT_THAT(refused_file(), HasSubstr("\"target\":\"steps\",\"status\":409"));
  EXPECT_THAT(refused_file(), HasSubstr("\"step\":4"));
}

TEST_F(ReporterTest, ARefusalOfAnythingElseIsDroppedToo) {
  controller_.interfere([](const HttpRequest& request) -> std::optional<HttpReply> {
    if (request.target.ends_with("/checkpoints")) return problem(409, "Refused");
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
    if (forgot) return problem(404, "Unknown run");
    return std::nullopt;
  });
  start();
  spool_step(1);
  ASSERT_TRUE(delivered());
  forgot = true;
  spool_step(2);
  ASSERT_TRUE(delivered());
  expect_steps_in_order(2);
  EXPECT_EQ(controller_.received().registrations.size(), 2u);
}

TEST_F(ReporterTest, ADirectiveTheControllerDoesNotKnowDoesNotHoldUpTheSteps) {
  controller_.interfere([](const HttpRequest& request) -> std::optional<HttpReply> {
    if (request.target.ends_with("/ack")) return problem(404, "Unknown directive");
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

TEST_F(ReporterTest, TheRegistrationSaysHowFarDirectivesAndPlansAreNumbered) {
  standing_.last_directive = 12;
  standing_.newest_plan_version = 7;
  start();
  ASSERT_TRUE(eventually([this] { return !controller_.received().registrations.empty(); }));
  EXPECT_EQ(controller_.received().registrations[0].last_directive, 12);
  EXPECT_EQ(controller_.received().registrations[0].newest_plan_version, 7);
}

TEST_F(ReporterTest, ALostLedgerIsToldAllAttemptsBeforeAnythingElse) {
  standing_.attempts = {attempt(1), attempt(2)};
  start();
  spool_step(1);
  ASSERT_TRUE(delivered());
  controller_.lose_ledger();
  for (int64_t step = 2; step <= 20; ++step) spool_step(step);
  ASSERT_TRUE(delivered());
  const auto received = controller_.received();
  ASSERT_EQ(received.attempts.size(), 2u);
  EXPECT_EQ(received.attempts[1].base_step, 10);
  EXPECT_EQ(received.steps.size(), 19u);
  EXPECT_EQ(reporter_->refused(), 0);
}

// Their steps stand before the next attempt's record, and so they must come.
TEST_F(ReporterTest, AttemptsThatAreStillSpooledKeepTheirPlace) {
  standing_.attempts = {attempt(1), attempt(2)};
  spool_step(11);
  spool_.append("attempts", to_json(attempt(2)));
  std::vector<std::string> order;
  controller_.interfere([&](const HttpRequest& request) -> std::optional<HttpReply> {
    order.push_back(request.target.substr(request.target.rfind('/') + 1));
    return std::nullopt;
  });
  start();
  ASSERT_TRUE(delivered());
  reporter_.reset();
  EXPECT_THAT(order, ::testing::ElementsAre("runs", "attempts", "steps", "attempts"));
}

// As when the ledger was exchanged between two requests and the run's id is the same.
TEST_F(ReporterTest, StepsOfAnUnknownAttemptAreTakenOnceTheAttemptsWereToldAgain) {
  start();
  spool_step(1);
  ASSERT_TRUE(delivered());
  reporter_->knows({{attempt(1)}, 0, 0});
  std::atomic<int> attempts = 0;
  controller_.interfere([&](const HttpRequest& request) -> std::optional<HttpReply> {
    if (request.target.ends_with("/attempts")) {
      ++attempts;
      return HttpReply{200, to_json(ReportAck{})};
    }
    if (!request.target.ends_with("/steps")) return std::nullopt;
    if (attempts == 0) return problem(409, "Unknown attempt");
    return HttpReply{200, to_json(ReportAck{})};
  });
  for (int64_t step = 2; step <= 9; ++step) spool_step(step);
  ASSERT_TRUE(delivered());
  EXPECT_EQ(reporter_->refused(), 0);
  EXPECT_EQ(attempts, 1);
}

TEST_F(ReporterTest, AnAttemptThatStaysUnknownIsRefusedAfterAll) {
  standing_.attempts = {attempt(1)};
  controller_.interfere([](const HttpRequest& request) -> std::optional<HttpReply> {
    if (request.target.ends_with("/steps")) return problem(409, "Unknown attempt");
    return std::nullopt;
  });
  start();
  spool_step(1);
  ASSERT_TRUE(delivered());
  ASSERT_TRUE(eventually([this] { return reporter_->refused() == 1; }));
}

TEST_F(ReporterTest, AfterABrokenConnectionTheRunIsRegisteredAgain) {
  start();
  spool_step(1);
  ASSERT_TRUE(delivered());
  controller_.go_away();
  spool_step(2);
  ASSERT_TRUE(eventually([this] { return contact_.away_seconds() > 0; }));
  controller_.come_back();
  ASSERT_TRUE(delivered());
  EXPECT_EQ(controller_.received().registrations.size(), 2u);
}

TEST_F(ReporterTest, ARecordThatAlwaysFailsIsSetAsideAndTheOthersArrive) {
  tries_max_ = 5;
  std::atomic<int> tries = 0;
  controller_.interfere([&](const HttpRequest& request) -> std::optional<HttpReply> {
    if (!request.target.ends_with("/steps")) return std::nullopt;
    if (request.body.find("\"step\":4,") == std::string::npos) return std::nullopt;
    if (from_json<StepBatch>(request.body).steps.size() == 1) ++tries;
    return problem(500, "Internal error");
  });
  for (int64_t step = 1; step <= 20; ++step) spool_step(step);
  start();
  ASSERT_TRUE(delivered());
  EXPECT_EQ(tries, 5);
  ASSERT_TRUE(eventually([this] { return reporter_->refused() == 1; }));
  EXPECT_EQ(controller_.received().steps.size(), 19u);
  EXPECT_THAT(refused_file(), HasSubstr("\"status\":500"));
  EXPECT_THAT(refused_file(), HasSubstr("\"step\":4,"));
  reporter_.reset();
  EXPECT_THAT(text_.str(), HasSubstr("tried 5 times"));
}

TEST_F(ReporterTest, NothingIsSetAsideWhileTheControllerTakesNothingAtAll) {
  tries_max_ = 3;
  std::atomic<bool> broken = false;
  std::atomic<int> requests = 0;
  controller_.interfere([&](const HttpRequest&) -> std::optional<HttpReply> {
    if (!broken) return std::nullopt;
    ++requests;
    return problem(500, "Internal error");
  });
  start();
  spool_step(1);
  ASSERT_TRUE(delivered());
  broken = true;
  spool_step(2);
  ASSERT_TRUE(eventually([&] { return requests > 20; }));
  EXPECT_EQ(reporter_->refused(), 0);
  broken = false;
  ASSERT_TRUE(delivered());
  expect_steps_in_order(2);
}

// A proxy's page, say: nobody who spoke for the ledger.
TEST_F(ReporterTest, ARefusalThatIsNoProblemDocumentIsTriedAgain) {
  std::atomic<int> failures = 0;
  controller_.interfere([&](const HttpRequest& request) -> std::optional<HttpReply> {
    if (!request.target.ends_with("/steps") || ++failures > 5) return std::nullopt;
    return HttpReply{404, "<html>not here</html>"};
  });
  spool_step(1);
  start();
  ASSERT_TRUE(delivered());
  expect_steps_in_order(1);
  EXPECT_EQ(reporter_->refused(), 0);
}

class ReporterNotices : public ReporterTest,
                        public ::testing::WithParamInterface<std::pair<int, const char*>> {};
INSTANTIATE_TEST_SUITE_P(Answers, ReporterNotices,
                         ::testing::Values(std::pair(404, "Unknown path"),
                                           std::pair(405, "Method not allowed")));

TEST_P(ReporterNotices, AControllerThatKnowsNoNoticesIsNotHeldAgainstThem) {
  controller_.interfere([](const HttpRequest& request) -> std::optional<HttpReply> {
    if (!request.target.ends_with("/notices")) return std::nullopt;
    return problem(GetParam().first, GetParam().second);
  });
  spool_.append("notices", to_json(TrainerNotice{}));
  spool_step(1);
  start();
  ASSERT_TRUE(delivered());
  expect_steps_in_order(1);
  EXPECT_EQ(reporter_->refused(), 0);
  EXPECT_EQ(controller_.received().registrations.size(), 1u);
  reporter_.reset();
  EXPECT_THAT(text_.str(), HasSubstr("[info] this controller takes no notices"));
}

TEST_F(ReporterTest, TheFileOfRefusedReportsIsBounded) {
  const std::filesystem::path file = directory_ / "refused.jsonl";
  RefusedLog log(file, 2000);
  for (int i = 0; i < 100; ++i)
    log.append({i, "steps", fmt::format("{{\"step\":{}}}", i)}, 409, "said \"no\"");
  const std::filesystem::path former = directory_ / "refused.1.jsonl";
  EXPECT_LE(std::filesystem::file_size(file) + std::filesystem::file_size(former), 2000u);
  EXPECT_THAT(read_file(file), HasSubstr("{\"step\":99}}\n"));
  EXPECT_THAT(read_file(file), HasSubstr("said \\\"no\\\""));
  EXPECT_THROW(log.append({1, "steps", std::string(1500, ' ')}, 409, "no"), Error);
}

// A token may be replaced, and what was measured must not be lost meanwhile.
TEST_F(ReporterTest, WhileItsTokenIsRefusedEverythingWaitsAndItIsSaidOnce) {
  tries_max_ = 3;
  std::atomic<int> refused = 0;
  std::atomic<bool> good = false;
  controller_.interfere([&](const HttpRequest&) -> std::optional<HttpReply> {
    if (good) return std::nullopt;
    return problem(refused++ % 2 == 0 ? 401 : 403, "Token not accepted");
  });
  for (int64_t step = 1; step <= 20; ++step) spool_step(step);
  start();
  ASSERT_TRUE(eventually([&] { return refused >= 10; }));
  good = true;
  ASSERT_TRUE(delivered());
  // Also of a run that is registered.
  refused = 0;
  good = false;
  for (int64_t step = 21; step <= 40; ++step) spool_step(step);
  ASSERT_TRUE(eventually([&] { return refused >= 10; }));
  EXPECT_EQ(spool_.records(), 20u);
  good = true;
  ASSERT_TRUE(delivered());
  expect_steps_in_order(40);
  EXPECT_EQ(reporter_->refused(), 0);
  reporter_.reset();
  const std::string text = text_.str();
  const size_t said = text.find("token_file");
  EXPECT_NE(said, std::string::npos) << text;
  EXPECT_EQ(text.find("token_file", said + 1), std::string::npos) << "within a minute: " << text;
}

TEST_F(ReporterTest, WaitsAsLongAsTheControllerAsksAndNotAtTheEnd) {
  std::atomic<int> asked = 0;
  controller_.interfere([&](const HttpRequest&) -> std::optional<HttpReply> {
    if (asked++ == 1) return std::nullopt;
    return HttpReply{
        .status = 429, .body = "{}", .headers = {{"retry-after", asked == 1 ? "1" : "50"}}};
  });
  const auto begin = std::chrono::steady_clock::now();
  spool_step(1);
  start();
  ASSERT_TRUE(eventually([&] { return asked >= 2; }));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 1s);
  ASSERT_TRUE(eventually([&] { return asked >= 3; }));
  const auto end = std::chrono::steady_clock::now();
  reporter_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - end, 5s);
  EXPECT_EQ(asked, 3);
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

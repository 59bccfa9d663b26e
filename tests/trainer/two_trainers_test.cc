// Two real trainers of one run under a real daemon, and a trainer whose controller was away.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <boost/json.hpp>

#include "protocol/json.h"
#include "tests/trainer/daemon_fixture.h"

namespace gnomon {
namespace {

using test::DaemonFixture;
using test::eventually;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace json = boost::json;

class TwoTrainers : public DaemonFixture {
 protected:
  // The same run in a directory of its own, as a job that was queued again on another host.
  std::unique_ptr<test::ChildProcess> start_second() {
    const std::filesystem::path config =
        test::write_tiny_config(other_.path(), *shared_ / "data", 1000000);
    return start_supervised(config);
  }
  bool trains() {
    return eventually([&] { return daemon_.rows("steps").size() > 20; });
  }
  void order_pause() {
    daemon_.client().checked("POST", "/v1/runs/run-1/overrides",
                             to_json(OverrideRequest{"pause", "", "", "ann", "to look", 0}));
  }
  test::TemporaryDirectory other_;
};

TEST_F(TwoTrainers, TheOneThatStartedLaterHasTheRunAndTheOtherEndsAndSaysWhy) {
  daemon_.start();
  auto first = start_supervised(config(1000000));
  ASSERT_TRUE(trains()) << first->output();
  auto second = start_second();
  EXPECT_EQ(first->wait(), 1) << first->output();
  EXPECT_THAT(first->output(), AllOf(HasSubstr("another trainer has taken over tiny/7"),
                                     Not(HasSubstr("refused a report"))));
  EXPECT_FALSE(std::filesystem::exists(run_dir() / "spool" / "refused.jsonl"));
  order_pause();
  EXPECT_TRUE(reaches(1, "applied")) << second->output();
  second->signal(SIGTERM);
  EXPECT_EQ(second->wait(), 0) << second->output();
}

// One that was cut off does not take the run back when it is there again.
TEST_F(TwoTrainers, AZombieThatComesBackEnds) {
  daemon_.start();
  auto zombie = start_supervised(config(1000000));
  ASSERT_TRUE(trains()) << zombie->output();
  zombie->signal(SIGSTOP);
  auto second = start_second();
  ASSERT_TRUE(eventually([&] {
    return second->output().find("registered at") != std::string::npos;
  })) << second->output();
  order_pause();
  ASSERT_TRUE(reaches(1, "applied")) << second->output();
  // Its connections are broken, so that it registers again before anything else.
  daemon_.kill();
  daemon_.start_again();
  zombie->signal(SIGCONT);
  EXPECT_EQ(zombie->wait(), 1) << zombie->output();
  EXPECT_THAT(zombie->output(), HasSubstr("another trainer has taken over tiny/7"));
  EXPECT_TRUE(second->running()) << second->output();
  second->signal(SIGTERM);
  EXPECT_EQ(second->wait(), 0) << second->output();
}

// What it did meanwhile reaches the ledger, which takes steps of a plan that it has on record
// alone.
TEST_F(TwoTrainers, AStepInBf16WithoutAControllerIsOnRecordWithItsPlan) {
  daemon_.start();
  auto trainer =
      start_supervised(config(1000000, "[controller]\non_loss = \"bf16\"\ngrace_seconds = 0.1\n"));
  ASSERT_TRUE(trains()) << trainer->output();
  daemon_.kill();
  ASSERT_TRUE(eventually([&] {
    return trainer->output().find("BF16 from step") != std::string::npos;
  })) << trainer->output();
  daemon_.start_again();
  ASSERT_TRUE(eventually([&] {
    const json::array steps = daemon_.rows("steps");
    return std::ranges::any_of(
        steps, [](const json::value& step) { return step.at("plan_version").as_int64() == -1; });
  })) << trainer->output();
  trainer->signal(SIGTERM);
  EXPECT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_THAT(trainer->output(), Not(HasSubstr("refused a report"))) << trainer->output();
}

}  // namespace
}  // namespace gnomon

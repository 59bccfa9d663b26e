// The real gnomon-verifier against a small server that hands out leases: it answers under its
// token, gives up what it lost, survives a controller that goes away, and drains.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <condition_variable>
#include <deque>
#include <mutex>

#include "protocol/json.h"
#include "tests/trainer/trainer_fixture.h"

namespace gnomon {
namespace {

using gnomon::testing::ChildProcess;
using gnomon::testing::eventually;
using gnomon::testing::FakeController;
using gnomon::testing::HttpReply;
using gnomon::testing::HttpRequest;
using gnomon::testing::HttpTestServer;
using gnomon::testing::TrainerFixture;
using ::testing::HasSubstr;

constexpr double kLongTtl = 60;

// Hands out queued leases and records the answers.
class LeaseServer {
 public:
  LeaseServer() : server_([this](const HttpRequest& request) { return answer(request); }) {}

  std::string url() const { return server_.url(); }
  HttpTestServer& server() { return server_; }

  void queue(Lease lease) {
    std::lock_guard lock(mutex_);
    leases_.push_back(std::move(lease));
    changed_.notify_all();
  }
  void set_status(int heartbeat, int answer) {
    std::lock_guard lock(mutex_);
    heartbeat_status_ = heartbeat;
    answer_status_ = answer;
  }
  std::vector<ReplayResult> completed() {
    std::lock_guard lock(mutex_);
    return completed_;
  }
  std::vector<LeaseFailure> failed() {
    std::lock_guard lock(mutex_);
    return failed_;
  }
  std::vector<LeaseHeartbeat> heartbeats() {
    std::lock_guard lock(mutex_);
    return heartbeats_;
  }
  int asked() {
    std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  HttpReply answer(const HttpRequest& request) {
    std::unique_lock lock(mutex_);
    if (request.target.starts_with("/v1/leases?")) {
      ++asked_;
      verifier_ = from_json<LeaseRequest>(request.body).verifier;
      changed_.wait_for(lock, std::chrono::milliseconds(100), [this] { return !leases_.empty(); });
      if (leases_.empty()) return {204, ""};
      const Lease lease = leases_.front();
      leases_.pop_front();
      return {200, to_json(lease)};
    }
    if (request.target.ends_with("/heartbeat")) {
      heartbeats_.push_back(from_json<LeaseHeartbeat>(request.body));
      return {heartbeat_status_, "{}"};
    }
    if (request.target.ends_with("/complete") && answer_status_ == 200) {
      completed_.push_back(from_json<ReplayResult>(request.body));
    }
    if (request.target.ends_with("/fail")) failed_.push_back(from_json<LeaseFailure>(request.body));
    return {answer_status_, "{}"};
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Lease> leases_;
  int heartbeat_status_ = 200;
  int answer_status_ = 200;
  int asked_ = 0;
  std::string verifier_;
  std::vector<ReplayResult> completed_;
  std::vector<LeaseFailure> failed_;
  std::vector<LeaseHeartbeat> heartbeats_;
  HttpTestServer server_;
};

class VerifierProcess : public TrainerFixture {
 protected:
  // A finished run of 20 steps with checkpoints at 0, 10 and 20, and what it reported.
  void SetUp() override {
    FakeController controller;
    std::string text = read_file(config(20));
    text.replace(text.find("keep_last = 2"), 13, "keep_last = 9");
    write_file_atomically(directory_ / "run.toml", text);
    const auto trainer = start(directory_ / "run.toml", {"--controller", controller.url()});
    ASSERT_EQ(trainer->wait(), 0) << trainer->output();
    told_ = controller.told();
  }

  Lease lease(const std::string& arm, int64_t steps = 10) const {
    Lease lease;
    lease.lease = 4;
    lease.token = 17;
    lease.ttl_seconds = kLongTtl;
    lease.task.run = "run-1";
    lease.task.replay = 2;
    lease.task.window = 1;
    lease.task.arm = arm;
    lease.task.purpose = "shadow";
    lease.task.checkpoint_uri = uri_at(0);
    lease.task.steps = steps;
    lease.task.end_checkpoint_uri = uri_at(10);
    lease.task.evaluate_endpoints = true;
    return lease;
  }
  std::string uri_at(int64_t step) const {
    for (const CheckpointReport& checkpoint : told_.checkpoints) {
      if (checkpoint.step == step) return checkpoint.uri;
    }
    return "missing";
  }
  std::unique_ptr<ChildProcess> verify(const std::vector<std::string>& more = {}) {
    std::vector<std::string> command = {GNOMON_VERIFIER, "--controller", leases_.url(), "--name",
                                        "v1"};
    command.insert(command.end(), more.begin(), more.end());
    return std::make_unique<ChildProcess>(command,
                                          directory_ / ("verifier" + std::to_string(++logs_)));
  }
  // A replay that takes long enough to be interrupted.
  Lease long_lease() const {
    constexpr int64_t kManySteps = 100000;
    return lease("bf16", kManySteps);
  }

  FakeController::Told told_;
  LeaseServer leases_;
};

TEST_F(VerifierProcess, TheSamePlanReproducesTheRunBitForBit) {
  leases_.queue(lease("same"));
  const auto verifier = verify({"--once"});
  ASSERT_EQ(verifier->wait(), 0) << verifier->output();
  const auto results = leases_.completed();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].token, 17);
  EXPECT_EQ(results[0].fingerprint, told_.registrations.at(0).fingerprint);
  ASSERT_EQ(results[0].steps.size(), 10u);
  for (const ReplayStep& step : results[0].steps) {
    const StepReport& original = told_.steps.at({1, step.step});
    EXPECT_EQ(step.weights_hash, original.weights_hash) << step.step;
    EXPECT_EQ(step.loss, original.loss) << step.step;
    EXPECT_EQ(step.grad_norm, original.grad_norm) << step.step;
  }
  EXPECT_EQ(results[0].run_end_loss_bf16, results[0].replay_end_loss_bf16) << "the same weights";
}

TEST_F(VerifierProcess, TheShadowRunsInBf16AndMeasuresTheEndpoints) {
  leases_.queue(lease("bf16"));
  const auto verifier = verify({"--once"});
  ASSERT_EQ(verifier->wait(), 0) << verifier->output();
  const auto results = leases_.completed();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_NE(results[0].steps.back().weights_hash, told_.steps.at({1, 10}).weights_hash);
  EXPECT_TRUE(results[0].start_loss_bf16 && results[0].start_loss_plan &&
              results[0].run_end_loss_bf16 && results[0].replay_end_loss_bf16);
  EXPECT_LT(*results[0].replay_end_loss_bf16, *results[0].start_loss_bf16) << "it learned";
  EXPECT_GT(results[0].heldout_tokens, 0);
}

TEST_F(VerifierProcess, ALostLeaseIsAbandonedWithoutAnAnswer) {
  leases_.set_status(409, 200);
  Lease lost = long_lease();
  lost.ttl_seconds = 0.1;
  leases_.queue(lost);
  const auto verifier = verify({"--once"});
  EXPECT_EQ(verifier->wait(), 1) << verifier->output();
  EXPECT_THAT(verifier->output(), HasSubstr("abandoned"));
  ASSERT_FALSE(leases_.heartbeats().empty());
  EXPECT_EQ(leases_.heartbeats()[0].token, 17);
  EXPECT_TRUE(leases_.completed().empty());
  EXPECT_TRUE(leases_.failed().empty());
}

TEST_F(VerifierProcess, ARefusedAnswerIsGivenUpAndTheNextLeaseTaken) {
  leases_.set_status(200, 409);
  leases_.queue(lease("bf16", 2));
  const auto verifier = verify();
  ASSERT_TRUE(eventually([&] { return verifier->output().find("refused") != std::string::npos; }));
  leases_.set_status(200, 200);
  leases_.queue(lease("bf16", 3));
  ASSERT_TRUE(eventually([this] { return leases_.completed().size() == 1; }));
  EXPECT_EQ(leases_.completed()[0].steps.size(), 3u);
  verifier->signal(SIGTERM);
  EXPECT_EQ(verifier->wait(), 0);
}

TEST_F(VerifierProcess, HeartbeatsTellTheProgressUnderTheToken) {
  Lease slow = long_lease();
  slow.ttl_seconds = 0.2;
  leases_.queue(slow);
  const auto verifier = verify();
  ASSERT_TRUE(eventually([this] {
    const auto beats = leases_.heartbeats();
    return beats.size() >= 3 && beats.back().steps_done > beats.front().steps_done;
  })) << verifier->output();
  for (const LeaseHeartbeat& beat : leases_.heartbeats()) EXPECT_EQ(beat.token, 17);
}

TEST_F(VerifierProcess, TheAnswerWaitsForAControllerThatWentAway) {
  Lease slow = lease("bf16", 400);
  slow.ttl_seconds = 0.2;
  leases_.queue(slow);
  const auto verifier = verify({"--once"});
  ASSERT_TRUE(eventually([this] { return !leases_.heartbeats().empty(); })) << verifier->output();
  leases_.server().stop();
  ASSERT_TRUE(eventually([&] { return verifier->output().find("/complete") != std::string::npos; }))
      << verifier->output();
  leases_.server().start();
  EXPECT_EQ(verifier->wait(), 0) << verifier->output();
  ASSERT_EQ(leases_.completed().size(), 1u);
  EXPECT_EQ(leases_.completed()[0].steps.size(), 400u);
}

TEST_F(VerifierProcess, WaitsForAControllerThatIsNotThereYet) {
  leases_.server().stop();
  const auto verifier = verify({"--once"});
  ASSERT_TRUE(
      eventually([&] { return verifier->output().find("cannot connect") != std::string::npos; }));
  leases_.queue(lease("bf16", 2));
  leases_.server().start();
  EXPECT_EQ(verifier->wait(), 0) << verifier->output();
  EXPECT_EQ(leases_.completed().size(), 1u);
}

TEST_F(VerifierProcess, WhatCannotBeReplayedIsFailedWithItsReason) {
  Lease missing = lease("bf16");
  missing.task.checkpoint_uri = (directory_ / "gone").string();
  leases_.queue(missing);
  Lease bad_plan = lease("plan", 2);
  bad_plan.task.plan = "[[rule]]\nmatch = \"*\"\ngemms = \"fp7\"\n";
  leases_.queue(bad_plan);
  const auto verifier = verify();
  ASSERT_TRUE(eventually([this] { return leases_.failed().size() == 2; })) << verifier->output();
  EXPECT_THAT(leases_.failed()[0].reason, HasSubstr("gone"));
  EXPECT_TRUE(leases_.failed()[0].retryable);
  EXPECT_EQ(leases_.failed()[0].token, 17);
  EXPECT_THAT(leases_.failed()[1].reason, HasSubstr("fp7"));
  EXPECT_FALSE(leases_.failed()[1].retryable);
}

TEST_F(VerifierProcess, SigtermFinishesAndAnswersTheReplayAtHand) {
  leases_.queue(lease("bf16", 400));
  leases_.queue(lease("bf16", 1));
  const auto verifier = verify();
  ASSERT_TRUE(
      eventually([&] { return verifier->output().find("400 steps from") != std::string::npos; }));
  verifier->signal(SIGTERM);
  EXPECT_EQ(verifier->wait(), 0) << verifier->output();
  ASSERT_EQ(leases_.completed().size(), 1u);
  EXPECT_EQ(leases_.completed()[0].steps.size(), 400u);
}

TEST_F(VerifierProcess, SigtermEndsAnIdleLongPollAtOnce) {
  const auto verifier = verify();
  ASSERT_TRUE(eventually([this] { return leases_.asked() > 0; }));
  verifier->signal(SIGTERM);
  EXPECT_EQ(verifier->wait(std::chrono::seconds(10)), 0) << verifier->output();
}

TEST_F(VerifierProcess, ABadCommandLineEndsWithStatus2) {
  const auto run = [this](const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {GNOMON_VERIFIER};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return ChildProcess(command, directory_ / "bad").wait();
  };
  EXPECT_EQ(run({}), 2);
  const std::vector<std::string> good = {"--controller", "http://127.0.0.1:1", "--once"};
  for (const std::vector<std::string>& bad :
       std::vector<std::vector<std::string>>{{"--name", ""},
                                             {"--name", "two\nlines"},
                                             {"--name", std::string(201, 'x')},
                                             {"--threads", "many"},
                                             {"--threads", "-1"},
                                             {"--log-level", "loud"},
                                             {"more"}}) {
    std::vector<std::string> command = {GNOMON_VERIFIER};
    command.insert(command.end(), good.begin(), good.end());
    command.insert(command.end(), bad.begin(), bad.end());
    ChildProcess verifier(command, directory_ / ("bad" + std::to_string(++logs_)));
    EXPECT_EQ(verifier.wait(std::chrono::seconds(10)), 2) << bad[0] << verifier.output();
    EXPECT_EQ(verifier.output().find('\n'), verifier.output().size() - 1) << verifier.output();
  }
  EXPECT_EQ(run({"--controller", "localhost"}), 2);
  EXPECT_EQ(run({"--controller", "http://127.0.0.1:1", "--threads", "0"}), 2);
  EXPECT_EQ(run({"--help"}), 0);
  EXPECT_EQ(run({"--version"}), 0);
}

}  // namespace
}  // namespace gnomon

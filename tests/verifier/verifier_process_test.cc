// The real gnomon-verifier against a small server that hands out leases: it answers under its
// token, gives up what it lost, survives a controller that goes away, and drains.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "base/host.h"
#include "storage/prepare.h"
#include "tests/trainer/trainer_fixture.h"
#include "tests/verifier/lease_server.h"

namespace gnomon {
namespace {

using test::ChildProcess;
using test::eventually;
using test::FakeController;
using test::LeaseServer;
using test::TrainerFixture;
using ::testing::HasSubstr;

class VerifierProcess : public TrainerFixture {
 protected:
  // A finished run of 20 steps with checkpoints at 0, 10 and 20, and what it reported.
  void SetUp() override {
    FakeController controller;
    const auto trainer =
        start(config(20, {}, kKeepAllCheckpoints), {"--controller", controller.url()});
    ASSERT_EQ(trainer->wait(), 0) << trainer->output();
    received_ = controller.received();
  }

  Lease lease(const std::string& arm, int64_t steps = 10) const {
    return test::lease_of(received_, arm, steps);
  }
  std::unique_ptr<ChildProcess> verify(const std::vector<std::string>& more = {}) {
    std::vector<std::string> command = {GNOMON_VERIFIER, "--controller", leases_.url(), "--name",
                                        "v1"};
    command.insert(command.end(), more.begin(), more.end());
    return launch(command);
  }
  // A replay that takes long enough to be interrupted.
  Lease long_lease() const {
    constexpr int64_t kManySteps = 100000;
    return lease("bf16", kManySteps);
  }

  FakeController::Received received_;
  LeaseServer leases_;
};

TEST_F(VerifierProcess, TheSamePlanReproducesTheRunBitForBit) {
  leases_.queue(lease("same"));
  const auto verifier = verify({"--once"});
  ASSERT_EQ(verifier->wait(), 0) << verifier->output();
  const auto results = leases_.completed();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].token, 17);
  EXPECT_EQ(results[0].fingerprint, received_.registrations.at(0).fingerprint);
  ASSERT_EQ(results[0].steps.size(), 10u);
  for (const ReplayStep& step : results[0].steps) {
    const StepReport& original = received_.steps.at({1, step.step});
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
  EXPECT_NE(results[0].steps.back().weights_hash, received_.steps.at({1, 10}).weights_hash);
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

TEST_F(VerifierProcess, ATokenThatIsRefusedIsSaidAndTriedAgain) {
  leases_.refuse_token(true);
  leases_.queue(lease("bf16", 2));
  const auto verifier = verify({"--once"});
  ASSERT_TRUE(
      eventually([&] { return verifier->output().find("--token-file") != std::string::npos; }));
  EXPECT_THAT(verifier->output(), HasSubstr("trying again in 1 s"));
  leases_.refuse_token(false);
  EXPECT_EQ(verifier->wait(), 0) << verifier->output();
  EXPECT_EQ(leases_.completed().size(), 1u);
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
  EXPECT_FALSE(leases_.failed()[0].unsupported);
  EXPECT_EQ(leases_.failed()[0].token, 17);
  EXPECT_THAT(leases_.failed()[1].reason, HasSubstr("fp7"));
  EXPECT_TRUE(leases_.failed()[1].unsupported);
}

// A stale copy of the data is this verifier's alone: another one may have the right one.
TEST_F(VerifierProcess, OtherDataThanTheRunsIsLeftToOthers) {
  const std::filesystem::path data = *shared_ / "data", kept = *shared_ / "data-kept";
  std::filesystem::rename(data, kept);
  PrepareOptions other;
  other.inputs = {*shared_ / "data-text"};
  other.output = data;
  other.heldout_share = 0.2;
  prepare_dataset(other);
  leases_.queue(lease("bf16"));
  const auto verifier = verify();
  const bool failed = eventually([this] { return leases_.failed().size() == 1; });
  std::filesystem::remove_all(data);
  std::filesystem::rename(kept, data);
  ASSERT_TRUE(failed) << verifier->output();
  EXPECT_THAT(leases_.failed()[0].reason, HasSubstr("data_hash"));
  EXPECT_TRUE(leases_.failed()[0].unsupported);
  EXPECT_TRUE(leases_.failed()[0].retryable);
}

// A trainer's token must not make a verifier read what is not the trainer's.
TEST_F(VerifierProcess, ReadsBelowItsRootsOnly) {
  const std::filesystem::path other = directory_ / "other";
  std::filesystem::create_directories(other);
  leases_.queue(lease("bf16"));
  const auto confined = verify({"--root", other.string()});
  ASSERT_TRUE(eventually([this] { return leases_.failed().size() == 1; })) << confined->output();
  EXPECT_THAT(leases_.failed()[0].reason, HasSubstr("not below a folder that this verifier may"));
  EXPECT_TRUE(leases_.failed()[0].retryable) << "another verifier may";
  // A link below the root leads out of it.
  Lease linked = lease("bf16", 2);
  std::filesystem::create_directory_symlink(linked.task.checkpoint_uri, other / "link");
  linked.task.checkpoint_uri = (other / "link").string();
  leases_.queue(linked);
  ASSERT_TRUE(eventually([this] { return leases_.failed().size() == 2; })) << confined->output();
  confined->signal(SIGTERM);
  EXPECT_EQ(confined->wait(), 0);
  // The data lies in a folder of its own. Two leases: the poll of the one that ended may take one.
  for (int i = 0; i < 2; ++i) leases_.queue(lease("bf16", 2));
  const std::string runs = directory_.path().string();
  const auto blind = verify({"--once", "--root", runs});
  EXPECT_EQ(blind->wait(), 1) << blind->output();
  EXPECT_THAT(leases_.failed().back().reason, HasSubstr("the data "));
  for (int i = 0; i < 2; ++i) leases_.queue(lease("bf16", 2));
  const auto free = verify({"--once", "--root", runs, "--root", shared_->path().string()});
  EXPECT_EQ(free->wait(), 0) << free->output();
  EXPECT_EQ(leases_.completed().size(), 1u);
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
  ASSERT_TRUE(eventually([this] { return !leases_.asked().empty(); }));
  verifier->signal(SIGTERM);
  EXPECT_EQ(verifier->wait(std::chrono::seconds(10)), 0) << verifier->output();
}

TEST_F(VerifierProcess, ItSaysItsLabels) {
  const auto verifier = verify({"--label", "pool=team-a", "--label", "rack=7=old"});
  ASSERT_TRUE(eventually([this] { return !leases_.asked().empty(); })) << verifier->output();
  const LeaseRequest request = leases_.asked().front();
  EXPECT_EQ(request.labels, (Labels{{"host", host_name()}, {"pool", "team-a"}, {"rack", "7=old"}}));
  EXPECT_FALSE(request.on_trainer);
  const auto in_container = verify({"--label", "host=rack-7"});
  ASSERT_TRUE(eventually([this] {
    return std::ranges::any_of(leases_.asked(), [](const LeaseRequest& one) {
      return one.labels == Labels{{"host", "rack-7"}};
    });
  }));
}

TEST_F(VerifierProcess, ABadCommandLineEndsWithStatus2) {
  const auto run = [](const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {GNOMON_VERIFIER};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return test::run_to_end(command);
  };
  EXPECT_EQ(run({}).status, 2);
  const std::vector<std::string> good = {"--controller", "http://127.0.0.1:1", "--once"};
  for (const std::vector<std::string>& bad :
       std::vector<std::vector<std::string>>{{"--name", ""},
                                             {"--name", "two\nlines"},
                                             {"--name", std::string(201, 'x')},
                                             {"--threads", "many"},
                                             {"--threads", "-1"},
                                             {"--log-level", "loud"},
                                             {"--label", "pool"},
                                             {"--label", "Pool=a"},
                                             {"--label", "backend=cuda"},
                                             {"--label", "pool=a", "--label", "pool=b"},
                                             {"more"}}) {
    std::vector<std::string> arguments = good;
    arguments.insert(arguments.end(), bad.begin(), bad.end());
    const test::EndedProcess verifier = run(arguments);
    EXPECT_EQ(verifier.status, 2) << bad[0] << verifier.output;
    EXPECT_EQ(verifier.output.find('\n'), verifier.output.size() - 1) << verifier.output;
  }
  EXPECT_EQ(run({"--controller", "localhost"}).status, 2);
  EXPECT_EQ(run({"--controller", "http://127.0.0.1:1", "--threads", "0"}).status, 2);
  EXPECT_EQ(run({"--help"}).status, 0);
  EXPECT_EQ(run({"--version"}).status, 0);
}

}  // namespace
}  // namespace gnomon

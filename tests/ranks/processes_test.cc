// The real gnomon-trainer and gnomon-verifier as several ranks under mpirun: one run, one
// controller, whatever the number of ranks.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <sstream>

#include "protocol/json.h"
#include "protocol/precision_plan.h"
#include "tests/protocol/http_test_server.h"
#include "tests/ranks/launcher.h"
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

class RanksOfProcesses : public TrainerFixture {
 protected:
  static void SetUpTestSuite() {
    test::set_launcher_environment();
    TrainerFixture::SetUpTestSuite();
  }

  // Four micro-batches, so that one, two and four ranks can share them.
  std::filesystem::path config(int steps, const std::string& extra = {}) {
    const std::filesystem::path path = TrainerFixture::config(steps, extra);
    std::string text = read_file(path);
    text.replace(text.find("tokens = 32\n"), 12, "tokens = 32\naccumulation = 4\n");
    text.replace(text.find("keep_last = 2"), 13, "keep_last = 9");
    write_file_atomically(path, text);
    return path;
  }
  std::unique_ptr<ChildProcess> start_ranks(int ranks, const std::string& program,
                                            const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {GNOMON_MPIEXEC, "-n", std::to_string(ranks), program};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return std::make_unique<ChildProcess>(command, directory_ / ("log" + std::to_string(++logs_)));
  }
  std::unique_ptr<ChildProcess> train(int ranks, const std::filesystem::path& config,
                                      const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"--config", config.string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return start_ranks(ranks, GNOMON_TRAINER, arguments);
  }
  std::unique_ptr<ChildProcess> train(int ranks, const std::filesystem::path& config,
                                      const FakeController& controller,
                                      std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--controller", controller.url()});
    return train(ranks, config, more);
  }

  int64_t issue(FakeController& controller, Directive directive) {
    directive.reason = "the test wants it";
    controller.issue(directive);
    return ++issued_;
  }
  static DirectiveAck last_ack(const FakeController& controller, int64_t number) {
    DirectiveAck found;
    for (const auto& [acked, ack] : controller.told().acks) {
      if (acked == number) found = ack;
    }
    return found;
  }
  static bool reaches(const FakeController& controller, int64_t number, const std::string& state) {
    return eventually([&] { return controller.ack_state(number) == state; });
  }
  static int64_t newest_step(const FakeController& controller, int64_t attempt) {
    int64_t newest = -1;
    for (const auto& [key, step] : controller.told().steps) {
      if (key.first == attempt) newest = std::max(newest, key.second);
    }
    return newest;
  }

  int64_t issued_ = 0;
};

// The process of this rank among the launcher's children; 0 while there is none.
pid_t pid_of_rank(pid_t launcher, int rank) {
  std::istringstream children(read_file(fmt::format("/proc/{0}/task/{0}/children", launcher)));
  const std::string wanted = fmt::format("OMPI_COMM_WORLD_RANK={}", rank);
  for (pid_t child; children >> child;) {
    const std::string environment = read_file(fmt::format("/proc/{}/environ", child));
    std::istringstream entries(environment);
    for (std::string entry; std::getline(entries, entry, '\0');) {
      if (entry == wanted) return child;
    }
  }
  return 0;
}

TEST_F(RanksOfProcesses, TellTheControllerOfOneRunWithTheLossesOfOneProcess) {
  FakeController of_one, of_two;
  const auto one =
      start(config(20), {"--dir", (directory_ / "one").string(), "--controller", of_one.url()});
  ASSERT_EQ(one->wait(), 0) << one->output();
  const auto two = train(2, config(20), of_two);
  ASSERT_EQ(two->wait(), 0) << two->output();

  const auto expected = of_one.told(), told = of_two.told();
  ASSERT_EQ(told.registrations.size(), 1u);
  EXPECT_EQ(told.registrations[0].fingerprint.world_size, 2);
  EXPECT_EQ(expected.registrations[0].fingerprint.world_size, 1);
  EXPECT_EQ(told.registrations[0].tokens_per_step, expected.registrations[0].tokens_per_step);
  EXPECT_EQ(told.attempts.size(), 1u);
  EXPECT_EQ(told.finished.size(), 1u);
  EXPECT_EQ(told.conflicts, 0);
  EXPECT_EQ(told.checkpoints.size(), expected.checkpoints.size());
  ASSERT_EQ(told.steps.size(), 20u);
  for (const auto& [key, step] : told.steps) {
    const double loss = expected.steps.at(key).loss;
    EXPECT_NEAR(step.loss, loss, 5e-3 * loss) << key.second;
  }
  EXPECT_EQ(told.steps.at({1, 1}).loss, expected.steps.at({1, 1}).loss);
}

class KilledRank : public RanksOfProcesses, public ::testing::WithParamInterface<int> {};

// The bits of a job that nobody killed, which also shows that it repeats.
TEST_P(KilledRank, EndsTheJobAndTheNextOneGoesOnToTheSameBits) {
  constexpr int kSteps = 60;
  const auto whole = train(2, config(kSteps), {"--dir", (directory_ / "whole").string()});
  ASSERT_EQ(whole->wait(), 0) << whole->output();

  FakeController controller;
  const auto victim = train(2, config(kSteps), controller);
  ASSERT_TRUE(eventually([&] {
    return controller.steps_told() >= 13 && newest(run_dir()).step >= 10;
  })) << victim->output();
  const pid_t rank = pid_of_rank(victim->pid(), GetParam());
  ASSERT_GT(rank, 0);
  ASSERT_EQ(::kill(rank, SIGKILL), 0);
  EXPECT_NE(victim->wait(), 0) << victim->output();
  EXPECT_LT(controller.steps_told(), kSteps) << "it was over before the kill";
  const auto last = train(2, config(kSteps), controller, {"--resume"});
  ASSERT_EQ(last->wait(), 0) << last->output();
  EXPECT_EQ(hash_of_model(newest(run_dir())), hash_of_model(newest(directory_ / "whole")));
  const auto told = controller.told();
  EXPECT_EQ(told.conflicts, 0);
  ASSERT_EQ(told.attempts.size(), 2u);
  EXPECT_EQ(told.attempts[1].cause, "restart");
  EXPECT_GE(told.attempts[1].base_step, 10);
}

INSTANTIATE_TEST_SUITE_P(Ranks, KilledRank, ::testing::Values(0, 1));

class SignalledRanks : public RanksOfProcesses, public ::testing::WithParamInterface<int> {};

TEST_P(SignalledRanks, LeaveACheckpointThatOneAndFourRanksGoOnFrom) {
  FakeController controller;
  const auto two = train(2, config(100000), controller);
  ASSERT_TRUE(eventually([&] { return controller.steps_told() >= 13; })) << two->output();
  two->signal(GetParam());  // to the launcher
  EXPECT_TRUE(eventually([&] { return !two->running(); }));
  const CheckpointInfo stopped = newest(run_dir());
  EXPECT_EQ(stopped.step, static_cast<int64_t>(controller.told().steps.size()))
      << "at the last step done, reported too\n"
      << two->output();
  EXPECT_TRUE(controller.told().finished.empty());

  const auto one = start(config(100000), {"--controller", controller.url(), "--resume"});
  ASSERT_TRUE(eventually([&] { return newest_step(controller, 2) >= stopped.step + 3; }))
      << one->output();
  one->signal(SIGTERM);
  ASSERT_EQ(one->wait(), 0) << one->output();
  const CheckpointInfo next = newest(run_dir());
  const auto four =
      train(4, config(100000), controller, {"--steps", std::to_string(next.step + 3), "--resume"});
  ASSERT_EQ(four->wait(), 0) << four->output();

  const auto told = controller.told();
  ASSERT_EQ(told.attempts.size(), 3u);
  const int sizes[] = {2, 1, 4};
  const int64_t bases[] = {0, stopped.step, next.step};
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(told.attempts[i].fingerprint);
    EXPECT_EQ(told.attempts[i].fingerprint->world_size, sizes[i]);
    EXPECT_EQ(told.attempts[i].base_step, bases[i]);
  }
  EXPECT_EQ(told.conflicts, 0);
  std::set<int64_t> steps;
  for (const auto& [key, step] : told.steps) {
    EXPECT_TRUE(steps.insert(key.second).second) << "step " << key.second << " twice";
    EXPECT_LT(step.loss, 6) << key.second;
  }
  EXPECT_EQ(static_cast<int64_t>(steps.size()), next.step + 3);
}

INSTANTIATE_TEST_SUITE_P(Signals, SignalledRanks, ::testing::Values(SIGUSR1, SIGTERM),
                         [](const auto& instance) {
                           return instance.param == SIGTERM ? "SIGTERM" : "SIGUSR1";
                         });

TEST_F(RanksOfProcesses, DirectivesTakeEffectOnEveryRank) {
  FakeController controller;
  const auto trainer = train(2, config(1000000), controller);
  ASSERT_TRUE(eventually([&] { return newest_step(controller, 1) >= 12; })) << trainer->output();

  Directive directive;
  directive.kind = "set_plan";
  directive.plan = PrecisionPlan::fp8(Recipe::kBlock).with_bf16_sites({"lm_head"}).to_toml();
  directive.plan_version = 5;
  const int64_t set_plan = issue(controller, directive);
  ASSERT_TRUE(reaches(controller, set_plan, "applied")) << trainer->output();
  const int64_t changed = last_ack(controller, set_plan).step;
  ASSERT_TRUE(eventually([&] { return newest_step(controller, 1) >= changed + 3; }))
      << trainer->output();
  for (const auto& [key, step] : controller.told().steps) {
    EXPECT_EQ(step.plan_version, key.second <= changed ? 0 : 5) << key.second;
  }

  directive = {};
  directive.kind = "pause";
  const int64_t pause = issue(controller, directive);
  ASSERT_TRUE(reaches(controller, pause, "applied")) << trainer->output();
  ASSERT_TRUE(eventually([&] {
    return trainer->output().find("paused at step") != std::string::npos;
  })) << trainer->output();
  const int64_t paused = last_ack(controller, pause).step;
  directive.kind = "resume";
  const int64_t resume = issue(controller, directive);
  ASSERT_TRUE(reaches(controller, resume, "applied")) << trainer->output();
  EXPECT_EQ(last_ack(controller, resume).step, paused) << "no step while paused";
  ASSERT_TRUE(eventually([&] { return newest_step(controller, 1) > paused; }));

  directive.kind = "rollback";
  const CheckpointReport target = controller.told().checkpoints.at(0);
  controller.protect({target.uri});
  directive.checkpoint_uri = target.uri;
  directive.to_step = target.step;
  const int64_t rollback = issue(controller, directive);
  ASSERT_TRUE(reaches(controller, rollback, "applied")) << trainer->output();
  ASSERT_TRUE(eventually([&] { return newest_step(controller, 2) >= 10; })) << trainer->output();

  directive = {};
  directive.kind = "stop";
  const int64_t stop = issue(controller, directive);
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_EQ(controller.ack_state(stop), "applied");
  const auto told = controller.told();
  ASSERT_EQ(told.finished.size(), 1u);
  EXPECT_EQ(told.finished[0].outcome, "stopped");
  for (int64_t step = 1; step <= 10; ++step) {
    EXPECT_EQ(told.steps.at({2, step}).weights_hash, told.steps.at({1, step}).weights_hash)
        << "a rollback without a plan repeats the bits, step " << step;
  }
}

// Hands out one lease, and keeps the answer.
class OneLease {
 public:
  explicit OneLease(Lease lease)
      : lease_(std::move(lease)),
        server_([this](const HttpRequest& request) { return answer(request); }) {}
  std::string url() const { return server_.url(); }
  std::optional<ReplayResult> result() const {
    std::lock_guard lock(mutex_);
    return result_;
  }
  std::optional<LeaseFailure> failure() const {
    std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  HttpReply answer(const HttpRequest& request) {
    std::lock_guard lock(mutex_);
    if (request.target.starts_with("/v1/leases?")) {
      return std::exchange(given_, true) ? HttpReply{204, ""} : HttpReply{200, to_json(lease_)};
    }
    if (request.target.ends_with("/complete")) result_ = from_json<ReplayResult>(request.body);
    if (request.target.ends_with("/fail")) failure_ = from_json<LeaseFailure>(request.body);
    return {200, "{}"};
  }

  const Lease lease_;
  mutable std::mutex mutex_;
  bool given_ = false;
  std::optional<ReplayResult> result_;
  std::optional<LeaseFailure> failure_;
  HttpTestServer server_;
};

class RanksOfVerifiers : public RanksOfProcesses {
 protected:
  void SetUp() override {
    const auto trainer = train(2, config(20), controller_);
    ASSERT_EQ(trainer->wait(), 0) << trainer->output();
    told_ = controller_.told();
    ASSERT_EQ(told_.checkpoints.at(0).step, 0);
    lease_.lease = 4;
    lease_.token = 17;
    lease_.ttl_seconds = 60;
    lease_.task.run = "run-1";
    lease_.task.arm = "same";
    lease_.task.purpose = "triage";
    lease_.task.checkpoint_uri = told_.checkpoints[0].uri;
    lease_.task.steps = 10;
    lease_.task.end_checkpoint_uri = told_.checkpoints.at(1).uri;
    lease_.task.evaluate_endpoints = true;
  }
  std::vector<std::string> arguments(const OneLease& server) const {
    return {"--controller", server.url(), "--name", "v1", "--once"};
  }

  FakeController controller_;
  FakeController::Told told_;
  Lease lease_;
};

TEST_F(RanksOfVerifiers, AsManyAsTheRunHadRepeatItBitForBit) {
  OneLease server(lease_);
  const auto verifier = start_ranks(2, GNOMON_VERIFIER, arguments(server));
  ASSERT_EQ(verifier->wait(), 0) << verifier->output();
  const auto result = server.result();
  ASSERT_TRUE(result) << verifier->output();
  EXPECT_EQ(result->fingerprint, told_.registrations.at(0).fingerprint);
  ASSERT_EQ(result->steps.size(), 10u);
  for (const ReplayStep& step : result->steps) {
    EXPECT_EQ(step.weights_hash, told_.steps.at({1, step.step}).weights_hash) << step.step;
    EXPECT_EQ(step.loss, told_.steps.at({1, step.step}).loss) << step.step;
  }
  EXPECT_EQ(result->run_end_loss_bf16, result->replay_end_loss_bf16);
}

// Then the controller compares losses: tests/decide/triage_test.cc.
TEST_F(RanksOfVerifiers, AnotherNumberSaysSoInItsFingerprintAndHasNearlyTheSameLosses) {
  OneLease server(lease_);
  std::vector<std::string> command = {GNOMON_VERIFIER};
  for (const std::string& argument : arguments(server)) command.push_back(argument);
  ChildProcess verifier(command, directory_ / "verifier");
  ASSERT_EQ(verifier.wait(), 0) << verifier.output();
  const auto result = server.result();
  ASSERT_TRUE(result) << verifier.output();
  EXPECT_EQ(result->fingerprint.world_size, 1);
  ASSERT_EQ(result->steps.size(), 10u);
  for (const ReplayStep& step : result->steps) {
    EXPECT_NEAR(step.loss, told_.steps.at({1, step.step}).loss, 5e-3 * step.loss) << step.step;
  }
  EXPECT_NEAR(*result->run_end_loss_bf16, *result->replay_end_loss_bf16, 5e-3);
}

TEST_F(RanksOfVerifiers, RanksThatCannotShareTheMicroBatchesLeaveTheReplayToOthers) {
  OneLease server(lease_);
  const auto verifier = start_ranks(3, GNOMON_VERIFIER, arguments(server));
  EXPECT_NE(verifier->wait(), 0) << verifier->output();
  ASSERT_TRUE(server.failure()) << verifier->output();
  EXPECT_TRUE(server.failure()->retryable);
  EXPECT_THAT(server.failure()->reason, HasSubstr("3 ranks cannot share the 4 micro-batches"));
}

}  // namespace
}  // namespace gnomon

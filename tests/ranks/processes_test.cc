// The real gnomon-trainer and gnomon-verifier as several ranks, under mpirun and over TCP: one run,
// one controller, whatever the number of ranks.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <tuple>

#include "protocol/precision_plan.h"
#include "tests/ranks/launcher.h"
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

class RanksOfProcesses : public TrainerFixture {
 protected:
  // Four micro-batches, so that one, two and four ranks can share them.
  static Edits edits() {
    Edits edits = kKeepAllCheckpoints;
    edits.push_back({"tokens = 32\n", "tokens = 32\naccumulation = 4\n"});
    return edits;
  }
  std::filesystem::path config(int steps) { return TrainerFixture::config(steps, {}, edits()); }
  std::unique_ptr<ChildProcess> start_ranks(int ranks, const std::string& program,
                                            const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {program};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return launch(test::as_ranks(transport_, ranks, command), test::launcher_options());
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

  test::Transport transport_ = test::Transport::kTcp;
};

std::string name_of(const ::testing::TestParamInfo<test::Transport>& instance) {
  return test::transport_name(instance.param);
}

class RanksOver : public RanksOfProcesses, public ::testing::WithParamInterface<test::Transport> {
 protected:
  RanksOver() { transport_ = GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Transports, RanksOver, ::testing::ValuesIn(test::transports()), name_of);

// The process of this rank among the launcher's children; 0 while there is none.
pid_t pid_of_rank(test::Transport transport, pid_t launcher, int rank) {
  std::istringstream children(read_file(fmt::format("/proc/{0}/task/{0}/children", launcher)));
  const std::string wanted = test::rank_variable(transport, rank);
  for (pid_t child; children >> child;) {
    const std::string environment = read_file(fmt::format("/proc/{}/environ", child));
    std::istringstream entries(environment);
    for (std::string entry; std::getline(entries, entry, '\0');) {
      if (entry == wanted) return child;
    }
  }
  return 0;
}

TEST_P(RanksOver, TellTheControllerOfOneRunWithTheLossesOfOneProcess) {
  FakeController of_one, of_two;
  const auto one =
      start(config(20), {"--dir", (directory_ / "one").string(), "--controller", of_one.url()});
  ASSERT_EQ(one->wait(), 0) << one->output();
  const auto two = train(2, config(20), of_two);
  ASSERT_EQ(two->wait(), 0) << two->output();

  const auto expected = of_one.received(), received = of_two.received();
  ASSERT_EQ(received.registrations.size(), 1u);
  EXPECT_EQ(received.registrations[0].fingerprint.world_size, 2);
  EXPECT_EQ(expected.registrations[0].fingerprint.world_size, 1);
  EXPECT_EQ(received.registrations[0].tokens_per_step, expected.registrations[0].tokens_per_step);
  EXPECT_EQ(received.attempts.size(), 1u);
  EXPECT_EQ(received.finished.size(), 1u);
  EXPECT_EQ(received.conflicts, 0);
  EXPECT_EQ(received.checkpoints.size(), expected.checkpoints.size());
  ASSERT_EQ(received.steps.size(), 20u);
  for (const auto& [key, step] : received.steps) {
    const double loss = expected.steps.at(key).loss;
    EXPECT_NEAR(step.loss, loss, 5e-3 * loss) << key.second;
  }
  EXPECT_EQ(received.steps.at({1, 1}).loss, expected.steps.at({1, 1}).loss);
}

TEST_F(RanksOfProcesses, HaveTheSameBitsOverEveryTransport) {
  std::set<std::string> hashes;
  for (const test::Transport transport : test::transports()) {
    transport_ = transport;
    const auto dir = directory_ / test::transport_name(transport);
    const auto two = train(2, config(20), {"--dir", dir.string()});
    ASSERT_EQ(two->wait(), 0) << two->output();
    hashes.insert(hash_of_model(newest(dir)));
  }
  EXPECT_EQ(hashes.size(), 1u);
}

// Written by ranks that share the weights out, gone on from by ranks that have all of them, and the
// other way round.
TEST_P(RanksOver, MayShareTheWeightsOutInOneAttemptAndNotInTheNext) {
  const auto whole = train(2, config(20), {"--dir", (directory_ / "whole").string()});
  ASSERT_EQ(whole->wait(), 0) << whole->output();
  const std::string expected = hash_of_model(newest(directory_ / "whole"));
  for (const bool first : {true, false}) {
    const auto dir = directory_ / (first ? "first" : "last");
    const auto part = [&](int steps, bool shares) {
      const auto trainer = train(
          2, TrainerFixture::config(20, shares ? "[ranks]\nshard = \"weights\"\n" : "", edits()),
          {"--dir", dir.string(), "--steps", std::to_string(steps)});
      EXPECT_EQ(trainer->wait(), 0) << trainer->output();
      EXPECT_EQ(trainer->output().find("gathered weights") != std::string::npos, shares)
          << trainer->output();
    };
    part(10, first);
    part(20, !first);
    EXPECT_EQ(hash_of_model(newest(dir)), expected);
  }
}

class KilledRank : public RanksOfProcesses,
                   public ::testing::WithParamInterface<std::tuple<test::Transport, int>> {
 protected:
  KilledRank() { transport_ = std::get<0>(GetParam()); }
};

// The bits of a job that nobody killed, which also shows that it repeats.
TEST_P(KilledRank, EndsTheJobAndTheNextOneGoesOnToTheSameBits) {
  constexpr int kSteps = 60;
  const auto whole = train(2, config(kSteps), {"--dir", (directory_ / "whole").string()});
  ASSERT_EQ(whole->wait(), 0) << whole->output();

  FakeController controller;
  const auto victim = train(2, config(kSteps), controller);
  ASSERT_TRUE(eventually([&] {
    return controller.steps_received() >= 13 && newest(run_dir()).step >= 10;
  })) << victim->output();
  const pid_t rank = pid_of_rank(transport_, victim->pid(), std::get<1>(GetParam()));
  ASSERT_GT(rank, 0);
  ASSERT_EQ(::kill(rank, SIGKILL), 0);
  EXPECT_NE(victim->wait(), 0) << victim->output();
  EXPECT_LT(controller.steps_received(), kSteps) << "it was over before the kill";
  const auto last = train(2, config(kSteps), controller, {"--resume"});
  ASSERT_EQ(last->wait(), 0) << last->output();
  EXPECT_EQ(hash_of_model(newest(run_dir())), hash_of_model(newest(directory_ / "whole")));
  const auto received = controller.received();
  EXPECT_EQ(received.conflicts, 0);
  ASSERT_EQ(received.attempts.size(), 2u);
  EXPECT_EQ(received.attempts[1].cause, "restart");
  EXPECT_GE(received.attempts[1].base_step, 10);
}

INSTANTIATE_TEST_SUITE_P(Ranks, KilledRank,
                         ::testing::Combine(::testing::ValuesIn(test::transports()),
                                            ::testing::Values(0, 1)),
                         [](const auto& instance) {
                           return test::transport_name(std::get<0>(instance.param)) + "_" +
                                  std::to_string(std::get<1>(instance.param));
                         });

class SignalledRanks : public RanksOfProcesses,
                       public ::testing::WithParamInterface<std::tuple<test::Transport, int>> {
 protected:
  SignalledRanks() { transport_ = std::get<0>(GetParam()); }
};

TEST_P(SignalledRanks, LeaveACheckpointThatOneAndFourRanksGoOnFrom) {
  FakeController controller;
  const auto two = train(2, config(100000), controller);
  ASSERT_TRUE(eventually([&] { return controller.steps_received() >= 13; })) << two->output();
  two->signal(std::get<1>(GetParam()));  // to the launcher
  EXPECT_TRUE(eventually([&] { return !two->running(); }));
  const CheckpointInfo stopped = newest(run_dir());
  EXPECT_EQ(stopped.step, static_cast<int64_t>(controller.received().steps.size()))
      << "at the last step done, reported too\n"
      << two->output();
  EXPECT_TRUE(controller.received().finished.empty());

  const auto one = start(config(100000), {"--controller", controller.url(), "--resume"});
  ASSERT_TRUE(eventually([&] { return controller.newest_step(2) >= stopped.step + 3; }))
      << one->output();
  one->signal(SIGTERM);
  ASSERT_EQ(one->wait(), 0) << one->output();
  const CheckpointInfo next = newest(run_dir());
  const auto four =
      train(4, config(100000), controller, {"--steps", std::to_string(next.step + 3), "--resume"});
  ASSERT_EQ(four->wait(), 0) << four->output();

  const auto received = controller.received();
  ASSERT_EQ(received.attempts.size(), 3u);
  const int sizes[] = {2, 1, 4};
  const int64_t bases[] = {0, stopped.step, next.step};
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(received.attempts[i].fingerprint);
    EXPECT_EQ(received.attempts[i].fingerprint->world_size, sizes[i]);
    EXPECT_EQ(received.attempts[i].base_step, bases[i]);
  }
  EXPECT_EQ(received.conflicts, 0);
  std::set<int64_t> steps;
  for (const auto& [key, step] : received.steps) {
    EXPECT_TRUE(steps.insert(key.second).second) << "step " << key.second << " twice";
    EXPECT_LT(step.loss, 6) << key.second;
  }
  EXPECT_EQ(static_cast<int64_t>(steps.size()), next.step + 3);
}

INSTANTIATE_TEST_SUITE_P(Signals, SignalledRanks,
                         ::testing::Combine(::testing::ValuesIn(test::transports()),
                                            ::testing::Values(SIGUSR1, SIGTERM)),
                         [](const auto& instance) {
                           const bool ends = std::get<1>(instance.param) == SIGTERM;
                           return test::transport_name(std::get<0>(instance.param)) +
                                  (ends ? "_SIGTERM" : "_SIGUSR1");
                         });

TEST_P(RanksOver, DirectivesTakeEffectOnEveryRank) {
  FakeController controller;
  const auto trainer = train(2, config(1000000), controller);
  ASSERT_TRUE(eventually([&] { return controller.newest_step(1) >= 12; })) << trainer->output();

  Directive directive;
  directive.kind = "set_plan";
  directive.plan = PrecisionPlan::fp8(Recipe::kBlock).with_bf16_sites({"lm_head"}).to_toml();
  directive.plan_version = 5;
  const int64_t set_plan = controller.issue(directive);
  ASSERT_TRUE(controller.reaches(set_plan, "applied")) << trainer->output();
  const int64_t changed = controller.last_ack(set_plan).step;
  ASSERT_TRUE(eventually([&] { return controller.newest_step(1) >= changed + 3; }))
      << trainer->output();
  for (const auto& [key, step] : controller.received().steps) {
    EXPECT_EQ(step.plan_version, key.second <= changed ? 0 : 5) << key.second;
  }

  directive = {};
  directive.kind = "pause";
  const int64_t pause = controller.issue(directive);
  ASSERT_TRUE(controller.reaches(pause, "applied")) << trainer->output();
  ASSERT_TRUE(eventually([&] {
    return trainer->output().find("paused at step") != std::string::npos;
  })) << trainer->output();
  const int64_t paused = controller.last_ack(pause).step;
  directive.kind = "resume";
  const int64_t resume = controller.issue(directive);
  ASSERT_TRUE(controller.reaches(resume, "applied")) << trainer->output();
  EXPECT_EQ(controller.last_ack(resume).step, paused) << "no step while paused";
  ASSERT_TRUE(eventually([&] { return controller.newest_step(1) > paused; }));

  directive.kind = "rollback";
  const CheckpointReport target = controller.received().checkpoints.at(0);
  controller.protect({target.uri});
  directive.checkpoint_uri = target.uri;
  directive.to_step = target.step;
  const int64_t rollback = controller.issue(directive);
  ASSERT_TRUE(controller.reaches(rollback, "applied")) << trainer->output();
  ASSERT_TRUE(eventually([&] { return controller.newest_step(2) >= 10; })) << trainer->output();

  directive = {};
  directive.kind = "stop";
  const int64_t stop = controller.issue(directive);
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_EQ(controller.ack_state(stop), "applied");
  const auto received = controller.received();
  ASSERT_EQ(received.finished.size(), 1u);
  EXPECT_EQ(received.finished[0].outcome, "stopped");
  for (int64_t step = 1; step <= 10; ++step) {
    EXPECT_EQ(received.steps.at({2, step}).weights_hash, received.steps.at({1, step}).weights_hash)
        << "a rollback without a plan repeats the bits, step " << step;
  }
}

// The environment of one rank alone has another variable.
std::vector<std::string> with_variable_on(int rank, const std::string& variable,
                                          const std::string& program,
                                          const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {
      "/bin/sh", "-c",
      fmt::format(
          "if [ \"${{RANK:-$OMPI_COMM_WORLD_RANK}}\" = {} ]; then export {}; fi; exec \"$@\"", rank,
          variable),
      "sh", program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

TEST_P(RanksOver, EndWithTheCauseWhenTheirDataIsCutShort) {
  const auto data = directory_ / "data";
  std::filesystem::copy(*shared_ / "data", data, std::filesystem::copy_options::recursive);
  const auto trainer = train(2, config(1000000), {"--data", data.string()});
  ASSERT_TRUE(eventually([&] {
    return std::filesystem::exists(run_dir() / "checkpoints" / "attempt-0001" / "step-00000010");
  })) << trainer->output();
  for (const auto& entry : std::filesystem::directory_iterator(data)) {
    if (entry.path().filename().string().starts_with("train")) {
      std::filesystem::resize_file(entry.path(), 1024);
    }
  }
  EXPECT_TRUE(eventually([&] { return !trainer->running(); }, std::chrono::seconds(20)))
      << trainer->output();
  EXPECT_NE(trainer->wait(), 0);
  EXPECT_THAT(trainer->output(),
              ::testing::AllOf(::testing::ContainsRegex("rank [01] of 2: .*end of the file"),
                               HasSubstr("which were there when it was opened")));
}

TEST_P(RanksOver, HaveAFingerprintOfAllOfThem) {
  const auto fingerprint_with = [&](int rank, const std::string& variable) {
    FakeController controller;
    const auto trainer =
        launch(test::as_ranks(transport_, 2,
                              with_variable_on(rank, variable, GNOMON_TRAINER,
                                               {"--config", config(2).string(), "--dir",
                                                (directory_ / std::to_string(logs_)).string(),
                                                "--controller", controller.url()})),
               test::launcher_options());
    EXPECT_EQ(trainer->wait(), 0) << trainer->output();
    const auto received = controller.received();
    EXPECT_EQ(received.registrations.size(), 1u) << trainer->output();
    return received.registrations.empty() ? Fingerprint{} : received.registrations[0].fingerprint;
  };
  const Fingerprint alike = fingerprint_with(9, "GNOMON_ATTENTION=own");
  EXPECT_EQ(alike.libraries.find("rank"), std::string::npos) << alike.libraries;
  std::set<std::string> mixtures = {alike.libraries};
  for (const char* variable :
       {"GNOMON_ATTENTION=own", "GNOMON_GRAPHS=off", "ONEDNN_MAX_CPU_ISA=AVX2",
        "DNNL_MAX_CPU_ISA=AVX2", "OMP_THREAD_LIMIT=1", "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2"}) {
    const Fingerprint mixed = fingerprint_with(1, variable);
    EXPECT_TRUE(mixtures.insert(mixed.libraries).second) << variable << ": " << mixed.libraries;
    EXPECT_THAT(mixed.libraries, HasSubstr("the ranks differ")) << variable;
    EXPECT_THAT(mixed.libraries, HasSubstr("rank 1 has")) << variable;
    EXPECT_EQ(mixed, fingerprint_with(1, variable)) << "the same mixture in the same order";
  }
  const Fingerprint other_order = fingerprint_with(0, "GNOMON_ATTENTION=own");
  EXPECT_TRUE(mixtures.insert(other_order.libraries).second) << other_order.libraries;
}

class RanksOfVerifiers : public RanksOfProcesses,
                         public ::testing::WithParamInterface<test::Transport> {
 protected:
  RanksOfVerifiers() { transport_ = GetParam(); }
  void SetUp() override {
    const auto trainer = train(2, config(20), controller_);
    ASSERT_EQ(trainer->wait(), 0) << trainer->output();
    received_ = controller_.received();
    Lease lease = test::lease_of(received_, "same");
    lease.task.purpose = "triage";
    leases_.queue(lease);
  }
  std::vector<std::string> arguments() const {
    return {"--controller", leases_.url(), "--name", "v1", "--once"};
  }

  FakeController controller_;
  FakeController::Received received_;
  LeaseServer leases_;
};

TEST_P(RanksOfVerifiers, AsManyAsTheRunHadRepeatItBitForBit) {
  const auto verifier = start_ranks(2, GNOMON_VERIFIER, arguments());
  ASSERT_EQ(verifier->wait(), 0) << verifier->output();
  const auto results = leases_.completed();
  ASSERT_EQ(results.size(), 1u) << verifier->output();
  EXPECT_EQ(results[0].fingerprint, received_.registrations.at(0).fingerprint);
  ASSERT_EQ(results[0].steps.size(), 10u);
  for (const ReplayStep& step : results[0].steps) {
    EXPECT_EQ(step.weights_hash, received_.steps.at({1, step.step}).weights_hash) << step.step;
    EXPECT_EQ(step.loss, received_.steps.at({1, step.step}).loss) << step.step;
  }
  EXPECT_EQ(results[0].run_end_loss_bf16, results[0].replay_end_loss_bf16);
}

// They repeat a job of the same mixture, and are known not to be one otherwise.
TEST_P(RanksOfVerifiers, AMixtureOfRanksIsInTheFingerprintOfTheirRequestsAndResults) {
  const auto verifier = launch(
      test::as_ranks(transport_, 2,
                     with_variable_on(1, "GNOMON_ATTENTION=own", GNOMON_VERIFIER, arguments())),
      test::launcher_options());
  ASSERT_EQ(verifier->wait(), 0) << verifier->output();
  const auto results = leases_.completed();
  ASSERT_EQ(results.size(), 1u) << verifier->output();
  EXPECT_NE(results[0].fingerprint, received_.registrations.at(0).fingerprint);
  EXPECT_THAT(results[0].fingerprint.libraries, HasSubstr("GNOMON_ATTENTION=own"));
}

INSTANTIATE_TEST_SUITE_P(Transports, RanksOfVerifiers, ::testing::ValuesIn(test::transports()),
                         name_of);

// Then the controller compares losses: tests/decide/triage_test.cc.
TEST_P(RanksOfVerifiers, AnotherNumberSaysSoInItsFingerprintAndHasNearlyTheSameLosses) {
  std::vector<std::string> command = {GNOMON_VERIFIER};
  for (const std::string& argument : arguments()) command.push_back(argument);
  const auto verifier = launch(command);
  ASSERT_EQ(verifier->wait(), 0) << verifier->output();
  const auto results = leases_.completed();
  ASSERT_EQ(results.size(), 1u) << verifier->output();
  EXPECT_EQ(results[0].fingerprint.world_size, 1);
  ASSERT_EQ(results[0].steps.size(), 10u);
  for (const ReplayStep& step : results[0].steps) {
    EXPECT_NEAR(step.loss, received_.steps.at({1, step.step}).loss, 5e-3 * step.loss) << step.step;
  }
  EXPECT_NEAR(*results[0].run_end_loss_bf16, *results[0].replay_end_loss_bf16, 5e-3);
}

TEST_P(RanksOfVerifiers, RanksThatCannotShareTheMicroBatchesLeaveTheReplayToOthers) {
  const auto verifier = start_ranks(3, GNOMON_VERIFIER, arguments());
  EXPECT_NE(verifier->wait(), 0) << verifier->output();
  const auto failures = leases_.failed();
  ASSERT_EQ(failures.size(), 1u) << verifier->output();
  EXPECT_TRUE(failures[0].retryable);
  EXPECT_THAT(failures[0].reason, HasSubstr("3 ranks cannot share the 4 micro-batches"));
}

}  // namespace
}  // namespace gnomon

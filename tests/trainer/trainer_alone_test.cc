// The real gnomon-trainer while nobody takes its reports, and what its fingerprint covers.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <set>

#include "tests/trainer/trainer_fixture.h"

namespace gnomon {
namespace {

using test::FakeController;
using test::TrainerFixture;
using ::testing::HasSubstr;

class TrainerAlone : public TrainerFixture {};

// A checkpoint at every step, and nobody who takes their reports.
TEST_F(TrainerAlone, AnOutageDoesNotFillTheStorageWithCheckpoints) {
  FakeController controller;
  controller.go_away();
  constexpr int kSteps = 400;
  const Edits often = {{"every = 10", "every = 1"}};
  const auto trainer = start(config(kSteps, "[controller]\nflush_seconds = 0\n", often),
                             {"--controller", controller.url()});
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  const CheckpointStore store(run_dir() / "checkpoints");
  std::vector<int64_t> steps;
  for (const CheckpointInfo& info : store.list()) steps.push_back(info.step);
  EXPECT_LE(steps.size(), 64u + 2) << "2 are keep_last";
  ASSERT_GE(steps.size(), 32u);
  EXPECT_EQ(steps.front(), 0) << "the oldest stays";
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(steps[steps.size() - 1 - i], kSteps - static_cast<int64_t>(i)) << "the newest stay";
  }
  for (size_t i = 1; i < steps.size(); ++i) {
    EXPECT_LE(steps[i] - steps[i - 1], kSteps / 3) << "a spread: no step is far from all";
  }
  EXPECT_THAT(trainer->output(), HasSubstr("were deleted before they were reported"));

  controller.come_back();
  const auto again = start(config(kSteps, {}, often), {"--controller", controller.url()});
  ASSERT_EQ(again->wait(), 0) << again->output();
  const auto received = controller.received();
  EXPECT_EQ(received.steps.size(), static_cast<size_t>(kSteps));
  std::set<int64_t> reported;
  for (const CheckpointReport& checkpoint : received.checkpoints) reported.insert(checkpoint.step);
  EXPECT_EQ(reported, std::set<int64_t>(steps.begin(), steps.end()))
      << "those that are there, and no other";
  ASSERT_FALSE(received.notices.empty());
  EXPECT_EQ(received.notices[0].kind, "reports_dropped");
  EXPECT_THAT(received.notices[0].text, HasSubstr("deleted before they were reported"));
  EXPECT_EQ(received.finished.size(), 1u);
}

// It was told to stop, and killed before it had reported its end.
TEST_F(TrainerAlone, AStopOutlivesAKill) {
  constexpr int kSteps = 100000;
  FakeController controller;
  const auto first = start(config(kSteps), {"--controller", controller.url()});
  ASSERT_TRUE(test::eventually([&] { return controller.received().checkpoints.size() >= 3; }));
  first->signal(SIGKILL);
  first->wait();
  std::string state = read_file(run_dir() / "run_state.toml");
  const std::string runs = "finished = \"\"";
  ASSERT_NE(state.find(runs), std::string::npos);
  state.replace(state.find(runs), runs.size(), "finished = \"stopping\"");
  write_file_atomically(run_dir() / "run_state.toml", state);
  const auto again = start(config(kSteps), {"--controller", controller.url()});
  ASSERT_EQ(again->wait(), 0) << again->output();
  const auto received = controller.received();
  ASSERT_EQ(received.finished.size(), 1u);
  EXPECT_EQ(received.finished[0].outcome, "stopped");
  EXPECT_LT(received.finished[0].step, kSteps);
}

TEST_F(TrainerAlone, CheckpointsOfARunThatIsForgottenAreNotTakenForItsOwn) {
  const auto first = start(config(20));
  ASSERT_EQ(first->wait(), 0) << first->output();
  std::filesystem::remove(run_dir() / "run_state.toml");
  for (const std::vector<std::string>& more : {std::vector<std::string>(), {"--new"}}) {
    const auto again = start(config(40), more);
    EXPECT_EQ(again->wait(), 2);
    EXPECT_THAT(again->output(), HasSubstr("run_state.toml is gone"));
  }
}

TEST_F(TrainerAlone, WithoutAnyIntactCheckpointItDoesNotBeginAnew) {
  const auto first = start(config(20));
  ASSERT_EQ(first->wait(), 0) << first->output();
  for (const CheckpointInfo& info : CheckpointStore(run_dir() / "checkpoints").list())
    std::filesystem::resize_file(info.path / "model.safetensors", 100);
  const auto again = start(config(40));
  EXPECT_EQ(again->wait(), 1);
  EXPECT_THAT(again->output(), HasSubstr("no intact checkpoint is left"));
}

// As where a mount is not there yet.
TEST_F(TrainerAlone, ARunWhoseCheckpointsAreGoneDoesNotBeginAnew) {
  const auto first = start(config(20));
  ASSERT_EQ(first->wait(), 0) << first->output();
  std::filesystem::rename(run_dir() / "checkpoints", run_dir() / "elsewhere");
  const auto without = start(config(20), {"--steps", "40"});
  EXPECT_EQ(without->wait(), 1) << without->output();
  EXPECT_THAT(without->output(), HasSubstr("no intact checkpoint is left"));
  std::filesystem::remove(run_dir() / "checkpoints");
  std::filesystem::rename(run_dir() / "elsewhere", run_dir() / "checkpoints");
  const auto again = start(config(20), {"--steps", "40"});
  EXPECT_EQ(again->wait(), 0) << again->output();
  EXPECT_THAT(again->output(), HasSubstr("attempt 2 goes on from step 20 of 40 in plan 0"));
}

TEST_F(TrainerAlone, WhatTheControllerWasToldOfOutlivesAStartWithoutOne) {
  {
    FakeController controller;
    const auto first =
        start(config(100, {}, kKeepAllCheckpoints), {"--controller", controller.url()});
    ASSERT_EQ(first->wait(), 0) << first->output();
  }
  const auto again = start(config(100), {"--steps", "200", "--controller", "none"});
  ASSERT_EQ(again->wait(), 0) << again->output();
  std::vector<int64_t> before, after;
  for (const CheckpointInfo& info : CheckpointStore(run_dir() / "checkpoints").list())
    (info.attempt == 1 ? before : after).push_back(info.step);
  EXPECT_EQ(before.size(), 11u) << "steps 0, 10, ... 100";
  EXPECT_EQ(after, (std::vector<int64_t>{190, 200}));
  EXPECT_THAT(again->output(), HasSubstr("checkpoints of attempts 1 to 1 stay"));
}

TEST_F(TrainerAlone, OtherSettingsOfARunAreNamedWithWhatTheyWere) {
  const auto first = start(config(20));
  ASSERT_EQ(first->wait(), 0) << first->output();
  const auto refused = [&](const std::filesystem::path& changed, const std::string& words) {
    const auto again = start(changed);
    EXPECT_EQ(again->wait(), 2) << again->output();
    EXPECT_THAT(again->output(), HasSubstr(words));
  };
  refused(config(20, {}, {{"recipe = \"delayed\"", "recipe = \"bf16\""}}),
          "precision = another plan: not accepted; expected the plan with which the run");
  refused(config(20, {}, {{"tokens = 32", "tokens = 16"}}),
          "batch.tokens = 16: not accepted; expected 32");
  refused(config(40),
          "optimizer.total_steps = 40: not accepted; expected 20 (where the file has none, what "
          "run.steps was)");
}

// The attempt's directory has become a file, which no checkpoint can be written into.
TEST_F(TrainerAlone, AnOrderedEndWithoutACheckpointCanBeResumed) {
  FakeController controller;
  const auto trainer = start(config(100000, {}, {{"every = 10", "every = 1000000"}}),
                             {"--controller", controller.url(), "--interrupted-status", "75"});
  ASSERT_TRUE(test::eventually([&] { return controller.received().checkpoints.size() == 1; }));
  const std::filesystem::path attempt = run_dir() / "checkpoints" / "attempt-0001";
  std::filesystem::rename(attempt, run_dir() / "elsewhere");
  write_file_atomically(attempt, "");
  trainer->signal(SIGTERM);
  EXPECT_EQ(trainer->wait(), 75) << trainer->output();
  EXPECT_THAT(trainer->output(), HasSubstr("no checkpoint of step"));
}

TEST_F(TrainerAlone, TheLastCheckpointWaitsForItsStorage) {
  FakeController controller;
  const auto trainer = start(config(100000, {}, {{"every = 10", "every = 1000000"}}),
                             {"--controller", controller.url()});
  ASSERT_TRUE(test::eventually([&] { return controller.received().checkpoints.size() == 1; }));
  const std::filesystem::path attempt = run_dir() / "checkpoints" / "attempt-0001";
  std::filesystem::rename(attempt, run_dir() / "elsewhere");
  write_file_atomically(attempt, "");
  controller.issue("stop");
  ASSERT_TRUE(test::eventually(
      [&] { return trainer->output().find("last checkpoint WAITS") != std::string::npos; }));
  std::filesystem::remove(attempt);
  std::filesystem::rename(run_dir() / "elsewhere", attempt);
  EXPECT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_EQ(controller.received().checkpoints.size(), 2u);
}

TEST_F(TrainerAlone, ARestartDuringAnOutageObeysThePolicyOfBefore) {
  FakeController controller;
  controller.want_on_loss("pause", 0.1);
  const auto first = start(config(100000), {"--controller", controller.url()});
  ASSERT_TRUE(test::eventually([&] { return controller.steps_received() >= 20; }));
  first->signal(SIGTERM);
  ASSERT_EQ(first->wait(), 0) << first->output();
  controller.go_away();
  const auto again = start(config(100000), {"--controller", controller.url()});
  EXPECT_TRUE(test::eventually([&] {
    return again->output().find("): pausing at step") != std::string::npos;
  })) << again->output();
  again->signal(SIGTERM);
  again->wait();
}

TEST_F(TrainerAlone, ARegistrationThatIsRefusedIsNoSilence) {
  FakeController controller;
  controller.interfere([](const test::HttpRequest& request) -> std::optional<test::HttpReply> {
    if (request.target != "/v1/runs") return std::nullopt;
    return test::problem(409, "Another model under a known name");
  });
  const auto trainer =
      start(config(100000, "[controller]\non_loss = \"pause\"\ngrace_seconds = 0.1\n"),
            {"--controller", controller.url()});
  EXPECT_TRUE(test::eventually(
      [&] { return trainer->output().find("no controller for") != std::string::npos; }));
  EXPECT_THAT(trainer->output(), ::testing::ContainsRegex("\\(.*Another model.*\\): pausing"));
  trainer->signal(SIGTERM);
  trainer->wait();
}

TEST_F(TrainerAlone, TheVariablesThatChooseHowItComputesAreInItsFingerprint) {
  std::set<std::string> fingerprints;
  for (const char* variable :
       {"GNOMON_ANYTHING=1", "GNOMON_ATTENTION=own", "GNOMON_GRAPHS=off", "ONEDNN_MAX_CPU_ISA=AVX2",
        "DNNL_MAX_CPU_ISA=AVX2", "ONEDNN_DEFAULT_FPMATH_MODE=BF16",
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY=0", "CUBLAS_WORKSPACE_CONFIG=:4096:8",
        "NVIDIA_TF32_OVERRIDE=1", "OMP_DYNAMIC=true", "OMP_THREAD_LIMIT=1"}) {
    FakeController controller;
    const std::string text = variable;
    const size_t equals = text.find('=');
    const auto trainer =
        launch({GNOMON_TRAINER, "--config", config(1).string(), "--dir",
                (directory_ / text.substr(0, equals)).string(), "--controller", controller.url()},
               {.environment = {{text.substr(0, equals), text.substr(equals + 1)}}});
    ASSERT_EQ(trainer->wait(), 0) << trainer->output();
    const Fingerprint fingerprint = controller.received().registrations.at(0).fingerprint;
    EXPECT_TRUE(fingerprints.insert(fingerprint.device + fingerprint.libraries).second)
        << variable << ": " << fingerprint.libraries;
  }
}

}  // namespace
}  // namespace gnomon

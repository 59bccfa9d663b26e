// The real gnomon-trainer on a tiny model: what it leaves behind when it ends, is interrupted, is
// killed, or is given a bad configuration.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "base/files.h"
#include "tests/trainer/trainer_fixture.h"

namespace gnomon {
namespace {

using test::ChildProcess;
using test::eventually;
using test::FakeController;
using test::TrainerFixture;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class TrainerProcess : public TrainerFixture {};

TEST_F(TrainerProcess, FinishesWithoutAController) {
  const auto trainer = start(config(30));
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_THAT(trainer->output(), HasSubstr("memory taken at start"));
  EXPECT_THAT(trainer->output(), HasSubstr("checkpoint snapshot"));
  EXPECT_THAT(trainer->output(), HasSubstr("completed: held-out loss"));
  const CheckpointInfo last = newest(run_dir());
  EXPECT_EQ(last.step, 30);
  EXPECT_EQ(last.attempt, 1);
  EXPECT_EQ(CheckpointStore(run_dir() / "checkpoints").list().size(), 2u) << "keep_last = 2";
}

TEST_F(TrainerProcess, TellsAControllerEveryStepCheckpointAndTheEnd) {
  FakeController controller;
  const auto trainer = start(config(25), {"--controller", controller.url()});
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  const auto received = controller.received();
  ASSERT_EQ(received.steps.size(), 25u);
  EXPECT_EQ(received.conflicts, 0);
  ASSERT_EQ(received.registrations.size(), 1u);
  EXPECT_EQ(received.registrations[0].name, "tiny");
  EXPECT_EQ(received.registrations[0].sites.size(), 2u * 7 + 1);
  EXPECT_EQ(received.registrations[0].tokens_per_step, 64);
  ASSERT_EQ(received.attempts.size(), 1u);
  EXPECT_EQ(received.attempts[0].cause, "start");
  EXPECT_EQ(received.attempts[0].fingerprint, received.registrations[0].fingerprint);
  std::vector<int64_t> checkpoints;
  for (const CheckpointReport& checkpoint : received.checkpoints) {
    checkpoints.push_back(checkpoint.step);
    if (checkpoint.step > 0) {
      EXPECT_EQ(checkpoint.weights_hash, received.steps.at({1, checkpoint.step}).weights_hash);
    }
  }
  EXPECT_THAT(checkpoints, ::testing::ElementsAre(0, 10, 20, 25));
  ASSERT_EQ(received.finished.size(), 1u);
  EXPECT_EQ(received.finished[0].outcome, "completed");
  EXPECT_EQ(received.finished[0].step, 25);
  EXPECT_GT(received.finished[0].final_loss, 0);
  EXPECT_GT(received.steps.at({1, 1}).loss, received.steps.at({1, 25}).loss) << "it learns";
}

TEST_F(TrainerProcess, KilledAnywhereItEndsWithTheSameWeightsAndTheControllerHasEveryStep) {
  constexpr int kSteps = 60;
  const auto whole = start(config(kSteps), {"--dir", (directory_ / "whole").string()});
  ASSERT_EQ(whole->wait(), 0) << whole->output();

  FakeController controller;
  int64_t kill_after = 8;
  for (int kills = 0; kills < 3; ++kills, kill_after += 16) {
    const auto victim = start(config(kSteps), {"--controller", controller.url()});
    ASSERT_TRUE(eventually([&] {
      return std::ssize(controller.received().attempts) > kills &&
             controller.steps_received() >= kill_after;
    })) << victim->output();
    victim->signal(SIGKILL);
    ASSERT_EQ(victim->wait(), -SIGKILL);
  }
  const auto last = start(config(kSteps), {"--controller", controller.url()});
  ASSERT_EQ(last->wait(), 0) << last->output();
  EXPECT_EQ(hash_of_model(newest(run_dir())), hash_of_model(newest(directory_ / "whole")));

  const auto received = controller.received();
  EXPECT_EQ(received.conflicts, 0);
  ASSERT_EQ(received.attempts.size(), 4u);
  std::map<int64_t, std::string> hash_at;
  for (const auto& [key, step] : received.steps) {
    const auto [known, fresh] = hash_at.emplace(key.second, step.weights_hash);
    EXPECT_EQ(known->second, step.weights_hash)
        << "step " << key.second << " of attempt " << key.first;
  }
  EXPECT_EQ(hash_at.size(), static_cast<size_t>(kSteps));
  for (size_t i = 1; i < received.attempts.size(); ++i) {
    EXPECT_EQ(received.attempts[i].attempt, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(received.attempts[i].cause, "restart");
    for (int64_t step = received.attempts[i - 1].base_step + 1;
         step <= received.attempts[i].base_step; ++step) {
      EXPECT_TRUE(received.steps.contains({static_cast<int64_t>(i), step}))
          << "step " << step << " before attempt " << i + 1;
    }
  }
}

TEST_F(TrainerProcess, SigtermWritesACheckpointAtTheStepAndTheNextAttemptGoesOnFromIt) {
  FakeController controller;
  const auto trainer =
      start(config(100000), {"--controller", controller.url(), "--interrupted-status", "75"});
  ASSERT_TRUE(eventually([&] { return controller.steps_received() >= 13; })) << trainer->output();
  trainer->signal(SIGTERM);
  ASSERT_EQ(trainer->wait(), 75) << trainer->output();
  const CheckpointInfo stopped = newest(run_dir());
  const auto received = controller.received();
  EXPECT_EQ(stopped.step, static_cast<int64_t>(received.steps.size()))
      << "at the last step done, reported too";
  EXPECT_TRUE(received.finished.empty()) << "interrupted is not finished";

  const auto next = start(
      config(100000), {"--controller", controller.url(), "--steps",
                       std::to_string(stopped.step + 3), "--resume", "--interrupted-status", "75"});
  ASSERT_EQ(next->wait(), 0) << next->output();
  EXPECT_EQ(controller.received().attempts.at(1).base_step, stopped.step);
}

TEST_F(TrainerProcess, ADamagedCheckpointIsPassedOverLoudly) {
  ASSERT_EQ(start(config(25))->wait(), 0);
  const CheckpointInfo last = newest(run_dir());
  std::ofstream(last.path / "optimizer.safetensors", std::ios::app) << "x";
  const auto trainer = start(config(25));
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_THAT(trainer->output(), HasSubstr("damaged"));
  EXPECT_THAT(trainer->output(), HasSubstr("optimizer.safetensors"));
  EXPECT_THAT(trainer->output(), HasSubstr("goes on from step 20"));
}

TEST_F(TrainerProcess, ACompletedRunIsNotTrainedAgain) {
  ASSERT_EQ(start(config(12))->wait(), 0);
  const CheckpointInfo before = newest(run_dir());
  const auto again = start(config(12));
  ASSERT_EQ(again->wait(), 0);
  EXPECT_THAT(again->output(), HasSubstr("completed at step 12"));
  EXPECT_EQ(newest(run_dir()).attempt, before.attempt);
}

TEST_F(TrainerProcess, ReportsOfAFinishedRunAreSentWhenTheControllerIsThereAtLast) {
  FakeController controller;
  controller.go_away();
  const std::string quick = "[controller]\nflush_seconds = 0\n";
  ASSERT_EQ(start(config(12, quick), {"--controller", controller.url()})->wait(), 0);
  EXPECT_EQ(controller.steps_received(), 0);
  controller.come_back();
  const auto again = start(config(12), {"--controller", controller.url()});
  ASSERT_EQ(again->wait(), 0) << again->output();
  EXPECT_EQ(controller.steps_received(), 12);
  EXPECT_EQ(controller.received().finished.size(), 1u);
  EXPECT_EQ(controller.received().attempts.size(), 1u);
}

TEST_F(TrainerProcess, TwoTrainersCannotShareADirectory) {
  const auto first = start(config(100000));
  ASSERT_TRUE(
      eventually([this] { return fs::exists(run_dir() / "checkpoints" / "attempt-0001"); }));
  const auto second = start(config(100000));
  EXPECT_EQ(second->wait(), 1);
  EXPECT_THAT(second->output(), HasSubstr("another gnomon-trainer"));
}

TEST_F(TrainerProcess, ABadConfigurationEndsWithStatus2AndStartsNothing) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[model]\nwidth = 32\n", "run.toml:"},  // a section twice
      {"[[fault]]\nkind = \"bit_flip\"\nsite = \"nothing\"\nstart_step = 1\n",
       "fault[0].site = \"nothing\""},
      {"[checkpoints]\n", "checkpoints"},
      {"[controller]\nurl = \"gopher://x\"\n", "controller.url"},
  };
  for (const auto& [extra, message] : cases) {
    const auto trainer = start(config(10, extra));
    EXPECT_EQ(trainer->wait(), 2) << extra << trainer->output();
    EXPECT_THAT(trainer->output(), HasSubstr("run.toml:")) << extra;
    EXPECT_THAT(trainer->output(), HasSubstr(message)) << extra;
    EXPECT_FALSE(fs::exists(run_dir())) << extra;
  }
  EXPECT_EQ(start(config(10), {"--steps", "0"})->wait(), 2);
  EXPECT_EQ(start(config(10), {"--resume"})->wait(), 2);
  EXPECT_EQ(start(config(10), {"--nonsense"})->wait(), 2);
  EXPECT_FALSE(fs::exists(run_dir()));
}

TEST_F(TrainerProcess, GoingOnWithAnotherConfigurationIsRefused) {
  ASSERT_EQ(start(config(12))->wait(), 0);
  const auto trainer = start(config(30, {}, {{"seed = 3", "seed = 4"}}));
  EXPECT_EQ(trainer->wait(), 2);
  EXPECT_THAT(trainer->output(), HasSubstr("run.seed = 4"));
}

TEST_F(TrainerProcess, CheckAcceptsAndStartsNothing) {
  const auto trainer = start(config(12), {"--check"});
  EXPECT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_THAT(trainer->output(), HasSubstr("accepted"));
  EXPECT_FALSE(fs::exists(run_dir()));
}

TEST_F(TrainerProcess, HelpAndVersionTeach) {
  const auto help = start("", {"--help"});
  EXPECT_EQ(help->wait(), 0);
  EXPECT_THAT(help->output(), HasSubstr("Exit status"));
  const auto version = start("", {"--version"});
  EXPECT_EQ(version->wait(), 0);
  EXPECT_THAT(version->output(), HasSubstr("gnomon-trainer 0."));
}

TEST_F(TrainerProcess, EachAttemptHasItsOwnFingerprintAlsoWhenItIsToldAgain) {
  FakeController controller;
  const auto first = start(config(100000), {"--controller", controller.url()});
  ASSERT_TRUE(eventually([&] { return controller.steps_received() >= 12; })) << first->output();
  first->signal(SIGKILL);
  first->wait();
  controller.lose_ledger();
  const auto second = start(config(100000), {"--controller", controller.url(), "--threads", "2"});
  ASSERT_TRUE(eventually([&] { return controller.received().attempts.size() == 2; }))
      << second->output();
  const auto attempts = controller.received().attempts;
  ASSERT_TRUE(attempts[0].fingerprint && attempts[1].fingerprint);
  EXPECT_EQ(attempts[0].fingerprint->threads, 1);
  EXPECT_EQ(attempts[1].fingerprint->threads, 2);
  EXPECT_EQ(attempts[0].fingerprint->device, attempts[1].fingerprint->device);
}

TEST_F(TrainerProcess, AFullSpoolDropsStepsTellsSoAndDoesNotHoldUpTraining) {
  FakeController controller;
  controller.go_away();
  constexpr int kSteps = 600;
  const std::string small = "[controller]\nspool_bytes_max = 65536\nflush_seconds = 0\n";
  const auto trainer = start(config(kSteps, small), {"--controller", controller.url()});
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_THAT(trainer->output(), HasSubstr("STEP REPORTS ARE DROPPED"));
  EXPECT_THAT(trainer->output(), Not(HasSubstr("WAITS")));
  controller.come_back();
  const std::string patient = "[controller]\nspool_bytes_max = 65536\n";
  const auto again = start(config(kSteps, patient), {"--controller", controller.url()});
  ASSERT_EQ(again->wait(), 0) << again->output();
  const auto received = controller.received();
  const auto kept = static_cast<int64_t>(received.steps.size());
  EXPECT_LT(kept, kSteps);
  ASSERT_EQ(received.notices.size(), 1u);
  EXPECT_EQ(received.notices[0].kind, "reports_dropped");
  EXPECT_EQ(received.notices[0].attempt, 1);
  EXPECT_THAT(received.notices[0].text, HasSubstr(fmt::format("steps {} to {}", kept + 1, kSteps)));
  EXPECT_EQ(received.checkpoints.size(), 1u + kSteps / 10) << "only steps are dropped";
  EXPECT_EQ(received.finished.size(), 1u);
}

TEST_F(TrainerProcess, WithOnLossPauseAFullSpoolMakesItWaitLoudlyAndLoseNothing) {
  FakeController controller;
  controller.go_away();
  constexpr int kSteps = 600;
  const auto trainer = start(config(kSteps,
                                    "[controller]\nspool_bytes_max = 65536\n"
                                    "on_loss = \"pause\"\ngrace_seconds = 1000\n"),
                             {"--controller", controller.url()});
  ASSERT_TRUE(eventually([&] {
    return trainer->output().find("TRAINING WAITS") != std::string::npos;
  })) << trainer->output();
  EXPECT_TRUE(trainer->running());
  controller.come_back();
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_EQ(controller.steps_received(), kSteps);
  EXPECT_EQ(controller.received().finished.size(), 1u);
}

// A limit on the size of files acts like a full disk: the model does not fit any more.
TEST_F(TrainerProcess, TheLastCheckpointWaitsForRoomOnTheDiskAndFailuresAreTold) {
  FakeController controller;
  const auto trainer = start(config(300), {"--controller", controller.url()});
  const fs::path first = run_dir() / "checkpoints" / "attempt-0001" / "step-00000000";
  ASSERT_TRUE(eventually([&] { return fs::exists(first / "manifest.json"); }));
  rlimit before{};
  ASSERT_EQ(::prlimit(trainer->pid(), RLIMIT_FSIZE, nullptr, &before), 0);
  rlimit small = before;
  small.rlim_cur = fs::file_size(first / "optimizer.safetensors") / 2;
  ASSERT_EQ(::prlimit(trainer->pid(), RLIMIT_FSIZE, &small, nullptr), 0);
  ASSERT_TRUE(
      eventually([&] { return trainer->output().find("WAITS for room") != std::string::npos; },
                 std::chrono::seconds(60)))
      << trainer->output();
  ASSERT_EQ(::prlimit(trainer->pid(), RLIMIT_FSIZE, &before, nullptr), 0);
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_EQ(newest(run_dir()).step, 300);
  const auto received = controller.received();
  std::set<int64_t> failed;
  for (const TrainerNotice& notice : received.notices) {
    EXPECT_EQ(notice.kind, "checkpoint_failed");
    EXPECT_EQ(notice.attempt, 1);
    EXPECT_THAT(notice.text, HasSubstr("optimizer.safetensors"));
    EXPECT_TRUE(failed.insert(notice.step).second) << "told twice: step " << notice.step;
  }
  EXPECT_TRUE(failed.contains(300));
}

TEST_F(TrainerProcess, APlaceThatCannotBeADirectoryEndsWithStatus2AndOneLine) {
  const fs::path file = directory_ / "file";
  std::ofstream(file) << "x";
  const std::string long_name(300, 'x');
  for (const std::string& dir : {file.string(), (file / "below").string(), std::string(),
                                 (directory_ / long_name).string()}) {
    const auto trainer = start(config(10), {"--dir", dir});
    EXPECT_EQ(trainer->wait(), 2) << dir;
    EXPECT_THAT(trainer->output(), HasSubstr("--dir = ")) << dir;
    EXPECT_EQ(std::ranges::count(trainer->output(), '\n'), 1) << trainer->output();
  }
}

TEST_F(TrainerProcess, ABadCommandLineIsOneLineAndStatus2) {
  const std::vector<std::vector<std::string>> cases = {{"--nonsense"},
                                                       {"--threads", "many"},
                                                       {"--threads", "0"},
                                                       {"--steps", "1.5"},
                                                       {"--steps", "-1"},
                                                       {"--log-level", "loud"},
                                                       {"--resume", "--new"},
                                                       {"--controller", ""},
                                                       {"--controller", "gopher://x"},
                                                       {"--data", ""},
                                                       {"--data", std::string(5000, 'x')},
                                                       {"more"}};
  for (const std::vector<std::string>& arguments : cases) {
    const auto trainer = start(config(10), arguments);
    EXPECT_EQ(trainer->wait(), 2) << arguments[0] << ": " << trainer->output();
    EXPECT_EQ(std::ranges::count(trainer->output(), '\n'), 1) << trainer->output();
    EXPECT_THAT(trainer->output(), ::testing::StartsWith("gnomon-trainer: ")) << arguments[0];
  }
  EXPECT_FALSE(fs::exists(run_dir()));
}

}  // namespace
}  // namespace gnomon

// Directives to the real gnomon-trainer: each takes effect once, at a step boundary, and survives a
// kill.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "protocol/precision_plan.h"
#include "tests/support/words.h"
#include "tests/trainer/trainer_fixture.h"

namespace gnomon {
namespace {

using test::ChildProcess;
using test::eventually;
using test::FakeController;
using test::HttpReply;
using test::HttpRequest;
using test::problem;
using test::TrainerFixture;
using ::testing::HasSubstr;

class TrainerDirectives : public TrainerFixture {
 protected:
  std::unique_ptr<ChildProcess> start_long(const std::string& extra = {}, const Edits& edits = {}) {
    auto trainer = start(config(1000000, extra, edits), {"--controller", controller_.url()});
    EXPECT_TRUE(eventually([this] { return controller_.steps_received() >= 3; }))
        << trainer->output();
    return trainer;
  }
  void stop(ChildProcess& trainer) {
    const int64_t number = controller_.issue("stop");
    ASSERT_EQ(trainer.wait(), 0) << trainer.output();
    EXPECT_EQ(controller_.ack_state(number), "applied");
  }
  FakeController controller_;
};

TEST_F(TrainerDirectives, StopEndsTheRunAsStoppedWithACheckpoint) {
  const auto trainer = start_long();
  stop(*trainer);
  const auto received = controller_.received();
  ASSERT_EQ(received.finished.size(), 1u);
  EXPECT_EQ(received.finished[0].outcome, "stopped");
  EXPECT_EQ(newest(run_dir()).step, received.finished[0].step);
}

TEST_F(TrainerDirectives, SetPlanTakesEffectAfterTheStepThatIsAcknowledged) {
  const auto trainer = start_long();
  Directive directive;
  directive.kind = "set_plan";
  directive.plan = PrecisionPlan::fp8().with_bf16_sites({"lm_head"}).to_toml();
  directive.plan_version = 5;
  const int64_t number = controller_.issue(directive);
  ASSERT_TRUE(controller_.reaches(number, "applied")) << trainer->output();
  const int64_t step = controller_.last_ack(number).step;
  ASSERT_TRUE(eventually([&] { return controller_.newest_step(1) >= step + 3; }));
  stop(*trainer);
  for (const auto& [key, report] : controller_.received().steps) {
    EXPECT_EQ(report.plan_version, key.second <= step ? 0 : 5) << "step " << key.second;
  }
}

TEST_F(TrainerDirectives, ABadPlanIsRejectedWithItsReasonAndTrainingGoesOn) {
  const auto trainer = start_long();
  Directive directive;
  directive.kind = "set_plan";
  directive.plan = "[[rule]]\nmatch = \"model.nothing\"\ngemms = \"bf16\"\n";
  const int64_t number = controller_.issue(directive);
  ASSERT_TRUE(controller_.reaches(number, "rejected"));
  EXPECT_THAT(controller_.last_ack(number).reason, HasSubstr("model.nothing"));
  const int64_t unknown = controller_.issue("dance");
  ASSERT_TRUE(controller_.reaches(unknown, "rejected"));
  EXPECT_THAT(controller_.last_ack(unknown).reason, HasSubstr("dance"));
  const int64_t before = controller_.newest_step(1);
  EXPECT_TRUE(eventually([&] { return controller_.newest_step(1) > before + 2; }));
  stop(*trainer);
}

// BF16 has FP32 moments: here there is room for FP8 alone.
TEST_F(TrainerDirectives, APlanWithoutRoomForItsMomentsIsRejectedBeforeAnythingChanges) {
  const auto trainer =
      start_long("[memory]\nmoments = \"fp8\"\n", {{"[optimizer]",
                                                    "[optimizer]\nfirst_moment = \"fp8\"\n"
                                                    "second_moment = \"fp8\""}});
  ASSERT_TRUE(eventually([this] { return !controller_.received().checkpoints.empty(); }));
  Directive directive;
  directive.plan = PrecisionPlan::bf16().to_toml();
  directive.plan_version = 5;
  for (const char* kind : {"set_plan", "rollback"}) {
    directive.kind = test::any_word(kind);
    directive.checkpoint_uri = controller_.received().checkpoints[0].uri;
    const int64_t number = controller_.issue(directive);
    ASSERT_TRUE(controller_.reaches(number, "rejected")) << kind << trainer->output();
    EXPECT_THAT(controller_.last_ack(number).reason,
                HasSubstr("\"fp32\" for a plan with moments in fp32"));
    const int64_t before = controller_.newest_step(1);
    EXPECT_TRUE(eventually([&] { return controller_.newest_step(1) > before + 2; })) << kind;
  }
  directive.kind = "set_plan";
  directive.plan = "[[rule]]\nmatch = \"*\"\ngemms = \"bf16\"\nmoments = \"fp8\"\n";
  EXPECT_TRUE(controller_.reaches(controller_.issue(directive), "applied"));
  stop(*trainer);
  EXPECT_EQ(controller_.received().attempts.size(), 1u);
}

TEST_F(TrainerDirectives, RollbackBeginsTheNextAttemptFromTheCheckpoint) {
  const auto trainer = start_long("");
  ASSERT_TRUE(eventually([this] {
    const auto received = controller_.received();
    if (received.checkpoints.size() < 2) return false;
    controller_.protect({received.checkpoints[1].uri});
    return true;
  }));
  Directive directive;
  directive.kind = "rollback";
  const CheckpointReport target = controller_.received().checkpoints[1];
  directive.checkpoint_uri = target.uri;
  directive.to_step = target.step;
  directive.plan = PrecisionPlan::bf16().to_toml();
  directive.plan_version = 9;
  const int64_t number = controller_.issue(directive);
  ASSERT_TRUE(controller_.reaches(number, "applied")) << trainer->output();
  ASSERT_TRUE(eventually([this] { return controller_.newest_step(2) > 0; }));
  stop(*trainer);
  const auto received = controller_.received();
  ASSERT_EQ(received.attempts.size(), 2u);
  EXPECT_EQ(received.attempts[1].cause, "rollback");
  EXPECT_EQ(received.attempts[1].base_step, target.step);
  EXPECT_EQ(received.attempts[1].plan_version, 9);
  EXPECT_EQ(controller_.last_ack(number).attempt, 1);
  EXPECT_EQ(controller_.last_ack(number).step, controller_.newest_step(1));
  const StepReport& first = received.steps.at({2, target.step + 1});
  EXPECT_EQ(first.plan_version, 9);
  EXPECT_NE(first.weights_hash, received.steps.at({1, target.step + 1}).weights_hash)
      << "another precision";
}

// Killed between the two, the trainer would go on from the checkpoints that the rollback was to
// leave behind, and the controller would wait for the attempt for ever.
TEST_F(TrainerDirectives, ARollbacksAnswerAndItsAttemptReachTheDiskAsOne) {
  const auto trainer = start_long("");
  ASSERT_TRUE(eventually([this] { return !controller_.received().checkpoints.empty(); }));
  Directive directive;
  directive.kind = "rollback";
  directive.checkpoint_uri = controller_.received().checkpoints[0].uri;
  controller_.protect({directive.checkpoint_uri});
  const FileDescriptor watch(::inotify_init1(IN_NONBLOCK));
  ASSERT_GE(::inotify_add_watch(watch.get(), run_dir().c_str(), IN_MOVED_TO), 0);
  const int64_t number = controller_.issue(directive);
  ASSERT_TRUE(controller_.reaches(number, "applied")) << trainer->output();
  ASSERT_TRUE(eventually([this] { return controller_.newest_step(2) > 0; }));
  alignas(inotify_event) char events[4096];
  const ssize_t size = ::read(watch.get(), events, sizeof(events));
  int saved = 0;
  for (ssize_t at = 0; at < size;) {
    const auto* event = reinterpret_cast<const inotify_event*>(events + at);
    if (std::string(event->name) == "run_state.toml") ++saved;
    at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
  }
  EXPECT_EQ(saved, 1);
  stop(*trainer);
}

// A loop of symbolic links is what the system cannot look at, as storage that is away.
TEST_F(TrainerDirectives, ARollbackWaitsForStorageThatIsAway) {
  const auto trainer = start_long("", kKeepAllCheckpoints);
  ASSERT_TRUE(eventually([this] { return controller_.received().checkpoints.size() >= 2; }));
  Directive directive;
  directive.kind = "rollback";
  const CheckpointReport target = controller_.received().checkpoints[1];
  directive.checkpoint_uri = target.uri;
  directive.to_step = target.step;
  const std::filesystem::path away = directory_ / "away";
  std::filesystem::rename(target.uri, away);
  std::filesystem::create_symlink(target.uri, target.uri);
  const int64_t number = controller_.issue(directive);
  ASSERT_TRUE(eventually([&] {
    return trainer->output().find("a rollback WAITS for its checkpoint") != std::string::npos;
  })) << trainer->output();
  std::filesystem::remove(target.uri);
  std::filesystem::rename(away, target.uri);
  EXPECT_TRUE(controller_.reaches(number, "applied")) << trainer->output();
  stop(*trainer);
}

TEST_F(TrainerDirectives, ACheckpointNowIsAnsweredOnceItIsOnDisk) {
  const auto trainer = start_long("", {{"every = 10", "every = 1000000"}});
  ASSERT_TRUE(eventually([this] { return controller_.received().checkpoints.size() == 1; }));
  const std::filesystem::path attempt = run_dir() / "checkpoints" / "attempt-0001";
  std::filesystem::rename(attempt, run_dir() / "elsewhere");
  write_file_atomically(attempt, "");
  const int64_t failed = controller_.issue("checkpoint_now");
  EXPECT_TRUE(controller_.reaches(failed, "rejected")) << trainer->output();
  std::filesystem::remove(attempt);
  std::filesystem::rename(run_dir() / "elsewhere", attempt);
  const int64_t written = controller_.issue("checkpoint_now");
  ASSERT_TRUE(controller_.reaches(written, "applied")) << trainer->output();
  EXPECT_EQ(controller_.received().checkpoints.back().step, controller_.last_ack(written).step);
  stop(*trainer);
}

TEST_F(TrainerDirectives, AWriteThatFailedIsForgottenWithItsBranch) {
  const auto trainer = start_long("", {{"every = 10", "every = 1000000"}});
  ASSERT_TRUE(eventually([this] { return controller_.received().checkpoints.size() == 1; }));
  const CheckpointReport base = controller_.received().checkpoints[0];
  controller_.protect({base.uri});
  const int64_t paused = controller_.issue("pause");
  ASSERT_TRUE(controller_.reaches(paused, "applied"));
  rlimit before{};
  ASSERT_EQ(::prlimit(trainer->pid(), RLIMIT_FSIZE, nullptr, &before), 0);
  rlimit small = before;
  small.rlim_cur =
      std::filesystem::file_size(std::filesystem::path(base.uri) / "optimizer.safetensors") / 2;
  ASSERT_EQ(::prlimit(trainer->pid(), RLIMIT_FSIZE, &small, nullptr), 0);
  const int64_t failed = controller_.issue("checkpoint_now");
  EXPECT_TRUE(controller_.reaches(failed, "rejected")) << trainer->output();
  Directive directive;
  directive.kind = "rollback";
  directive.checkpoint_uri = base.uri;
  ASSERT_TRUE(controller_.reaches(controller_.issue(directive), "applied")) << trainer->output();
  const int64_t there = controller_.issue("checkpoint_now");
  EXPECT_TRUE(controller_.reaches(there, "applied")) << trainer->output();
  stop(*trainer);
}

// The controller knows the run's directory by another name than the trainer has now.
TEST_F(TrainerDirectives, WhatIsPromisedUnderAnotherNameStays) {
  const auto trainer = start_long("", {{"every = 10", "every = 5"}});
  ASSERT_TRUE(eventually([this] { return controller_.received().checkpoints.size() >= 2; }));
  const CheckpointReport promised = controller_.received().checkpoints[1];
  controller_.protect(
      {"/another/name/attempt-0001/" + std::filesystem::path(promised.uri).filename().string()});
  ASSERT_TRUE(eventually([&] {
    const auto received = controller_.received();
    return received.checkpoints.size() >= 8 &&
           !std::filesystem::exists(received.checkpoints[2].uri);
  })) << trainer->output();
  EXPECT_TRUE(std::filesystem::exists(promised.uri));
  stop(*trainer);
}

TEST_F(TrainerDirectives, ARollbackWithoutAPlanRepeatsTheSameBits) {
  const auto trainer = start_long("", {{"keep_last = 2", "keep_last = 100000"}});
  ASSERT_TRUE(eventually([this] {
    return controller_.newest_step(1) >= 12 && controller_.received().checkpoints.size() >= 2;
  }));
  Directive directive;
  directive.kind = "rollback";
  const CheckpointReport target = controller_.received().checkpoints[0];
  ASSERT_EQ(target.step, 0);
  directive.checkpoint_uri = target.uri;
  const int64_t number = controller_.issue(directive);
  ASSERT_TRUE(controller_.reaches(number, "applied")) << controller_.last_ack(number).reason;
  ASSERT_TRUE(eventually([this] { return controller_.newest_step(2) >= 8; }));
  for (int64_t step = 1; step <= 8; ++step) {
    EXPECT_EQ(controller_.received().steps.at({2, step}).weights_hash,
              controller_.received().steps.at({1, step}).weights_hash);
  }
  stop(*trainer);
}

TEST_F(TrainerDirectives, ARollbackToADamagedCheckpointIsRejected) {
  const auto trainer = start_long();
  Directive directive;
  directive.kind = "rollback";
  directive.checkpoint_uri = (directory_ / "nowhere").string();
  const int64_t number = controller_.issue(directive);
  ASSERT_TRUE(controller_.reaches(number, "rejected"));
  EXPECT_THAT(controller_.last_ack(number).reason, HasSubstr("nowhere"));
  stop(*trainer);
  EXPECT_EQ(controller_.received().attempts.size(), 1u);
}

TEST_F(TrainerDirectives, PauseHoldsTheStepsUntilResumeAlsoAcrossAKill) {
  auto trainer = start_long();
  const int64_t pause = controller_.issue("pause");
  ASSERT_TRUE(controller_.reaches(pause, "applied"));
  const int64_t step = controller_.last_ack(pause).step;
  trainer->signal(SIGKILL);
  trainer->wait();
  trainer = start(config(1000000), {"--controller", controller_.url()});
  ASSERT_TRUE(eventually([this] { return controller_.received().attempts.size() == 2; }))
      << trainer->output();
  ASSERT_TRUE(
      eventually([&] { return trainer->output().find("paused at step") != std::string::npos; }));
  EXPECT_EQ(controller_.newest_step(1), step);
  EXPECT_EQ(controller_.newest_step(2), -1);
  const int64_t resume = controller_.issue("resume");
  ASSERT_TRUE(controller_.reaches(resume, "applied"));
  ASSERT_TRUE(eventually([this] { return controller_.newest_step(2) > 0; }));
  stop(*trainer);
}

TEST_F(TrainerDirectives, WhilePausedEveryDirectiveIsAnswered) {
  const auto trainer = start_long();
  ASSERT_TRUE(eventually([this] { return !controller_.received().checkpoints.empty(); }));
  const CheckpointReport target = controller_.received().checkpoints[0];
  controller_.protect({target.uri});
  ASSERT_TRUE(controller_.reaches(controller_.issue("pause"), "applied"));
  ASSERT_TRUE(eventually([&] {
    return trainer->output().find("gnomon override run-1 resume --owner ME --reason WHY") !=
           std::string::npos;
  })) << trainer->output();
  const int64_t now = controller_.issue("checkpoint_now");
  ASSERT_TRUE(controller_.reaches(now, "applied"));
  const int64_t paused_at = controller_.last_ack(now).step;
  EXPECT_TRUE(
      eventually([&] { return controller_.received().checkpoints.back().step == paused_at; }));
  Directive plan;
  plan.kind = "set_plan";
  plan.plan = PrecisionPlan::bf16().to_toml();
  plan.plan_version = 5;
  ASSERT_TRUE(controller_.reaches(controller_.issue(plan), "applied"));
  Directive back;
  back.kind = "rollback";
  back.checkpoint_uri = target.uri;
  back.to_step = target.step;
  back.plan = PrecisionPlan::bf16().to_toml();
  back.plan_version = 6;
  ASSERT_TRUE(controller_.reaches(controller_.issue(back), "applied")) << trainer->output();
  ASSERT_TRUE(eventually([this] { return controller_.received().attempts.size() == 2; }));
  EXPECT_EQ(controller_.newest_step(1), paused_at) << "no step in the pause";
  EXPECT_EQ(controller_.newest_step(2), -1) << "nor after the rollback";
  ASSERT_TRUE(controller_.reaches(controller_.issue("resume"), "applied"));
  ASSERT_TRUE(eventually([this] { return controller_.newest_step(2) > 1; }));
  EXPECT_EQ(controller_.received().steps.at({2, target.step + 1}).plan_version, 6);
  stop(*trainer);
}

TEST_F(TrainerDirectives, APausedRunCanBeStopped) {
  const auto trainer = start_long();
  ASSERT_TRUE(controller_.reaches(controller_.issue("pause"), "applied"));
  stop(*trainer);
  ASSERT_EQ(controller_.received().finished.size(), 1u);
  EXPECT_EQ(controller_.received().finished[0].outcome, "stopped");
}

TEST_F(TrainerDirectives, WhatIsStillOpenAtTheEndIsRejectedBeforeTheEndIsTold) {
  std::atomic<bool> hold = false;
  std::mutex mutex;
  std::vector<std::string> order;
  controller_.interfere([&](const HttpRequest& request) -> std::optional<HttpReply> {
    if (request.target.find("/directives?") != std::string::npos)
      return hold ? std::optional(problem(503, "Wait")) : std::nullopt;
    std::lock_guard lock(mutex);
    order.push_back(request.target);
    return std::nullopt;
  });
  const auto trainer = start_long();
  hold = true;
  const int64_t stopping = controller_.issue("stop");
  const int64_t open = controller_.issue("checkpoint_now");
  hold = false;
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_EQ(controller_.ack_state(stopping), "applied");
  EXPECT_EQ(controller_.ack_state(open), "rejected");
  EXPECT_EQ(controller_.last_ack(open).reason, "the run has stopped");
  const std::string ack = fmt::format("/v1/runs/run-1/directives/{}/ack", open);
  EXPECT_EQ(std::ranges::count(order, ack), 2) << "acknowledged, rejected";
  EXPECT_EQ(order.back(), "/v1/runs/run-1/finished");
  EXPECT_EQ(order[order.size() - 2], ack);
}

TEST_F(TrainerDirectives, CheckpointNowWritesOneAtThatStep) {
  const auto trainer = start_long("");
  const int64_t number = controller_.issue("checkpoint_now");
  ASSERT_TRUE(controller_.reaches(number, "applied"));
  const int64_t step = controller_.last_ack(number).step;
  EXPECT_TRUE(eventually([&] {
    const auto received = controller_.received();
    return std::any_of(received.checkpoints.begin(), received.checkpoints.end(),
                       [step](const CheckpointReport& each) { return each.step == step; });
  }));
  stop(*trainer);
}

class TrainerKilledWith : public TrainerDirectives,
                          public ::testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Checkpoints, TrainerKilledWith,
                         ::testing::Values("older checkpoints", "no checkpoint"));

TEST_P(TrainerKilledWith, APlanOutlivesAKillAlthoughNoCheckpointHasIt) {
  auto trainer = start_long("");
  Directive directive;
  directive.kind = "set_plan";
  directive.plan = PrecisionPlan::bf16().to_toml();
  directive.plan_version = 4;
  const int64_t number = controller_.issue(directive);
  ASSERT_TRUE(controller_.reaches(number, "applied"));
  trainer->signal(SIGKILL);
  trainer->wait();
  if (GetParam() == "no checkpoint") {  // as where the kill came before the first one
    std::filesystem::remove_all(run_dir() / "checkpoints");
    std::string state = read_file(run_dir() / "run_state.toml");
    const std::string had = "checkpointed = true";
    ASSERT_NE(state.find(had), std::string::npos);
    state.replace(state.find(had), had.size(), "checkpointed = false");
    write_file_atomically(run_dir() / "run_state.toml", state);
  }
  trainer = start(config(1000000), {"--controller", controller_.url()});
  ASSERT_TRUE(eventually([this] { return controller_.newest_step(2) > 0; })) << trainer->output();
  stop(*trainer);
  const auto received = controller_.received();
  EXPECT_EQ(received.attempts.at(1).plan_version, 4);
  for (const auto& [key, report] : received.steps) {
    if (key.first == 2) {
      EXPECT_EQ(report.plan_version, 4);
    }
  }
  EXPECT_EQ(controller_.ack_state(number), "applied");
}

TEST_F(TrainerDirectives, OnLossBf16TakesOverWhileTheControllerIsAwayAndGivesBack) {
  std::atomic<bool> told_before_its_steps = false;
  controller_.interfere([&](const HttpRequest& request) -> std::optional<HttpReply> {
    if (request.target.ends_with("/notices")) {
      const auto received = controller_.received();
      told_before_its_steps = std::ranges::none_of(
          received.steps, [](const auto& each) { return each.second.plan_version == -1; });
    }
    return std::nullopt;
  });
  const auto trainer = start_long("[controller]\non_loss = \"bf16\"\ngrace_seconds = 0.1\n");
  controller_.go_away();
  ASSERT_TRUE(
      eventually([&] { return trainer->output().find("BF16 from step") != std::string::npos; }));
  controller_.come_back();
  ASSERT_TRUE(eventually([&] {
    return trainer->output().find("plan 0 again") != std::string::npos;
  })) << trainer->output();
  const auto versions = [&] {
    std::vector<int64_t> found;
    for (const auto& [key, report] : controller_.received().steps) {
      if (found.empty() || found.back() != report.plan_version)
        found.push_back(report.plan_version);
    }
    return found;
  };
  EXPECT_TRUE(eventually([&] { return versions().size() == 3; })) << "a step under plan 0 again";
  stop(*trainer);
  EXPECT_THAT(versions(), ::testing::ElementsAre(0, -1, 0));
  const auto notices = controller_.received().notices;
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].kind, "plan_without_controller");
  EXPECT_EQ(notices[0].plan_version, -1);
  EXPECT_FALSE(PrecisionPlan::parse(notices[0].plan).resolve("lm_head", 2).any_fp8());
  EXPECT_EQ(PrecisionPlan::parse(notices[0].plan).version, -1);
  EXPECT_TRUE(told_before_its_steps);
}

TEST_F(TrainerDirectives, WhereTheFileIsSilentTheRunsPolicySaysWhatToDoWithoutAController) {
  controller_.want_on_loss("pause", 0.1);
  const auto trainer = start_long("");
  ASSERT_TRUE(eventually([&] { return controller_.steps_received() > 0; }));
  controller_.go_away();
  ASSERT_TRUE(
      eventually([&] { return trainer->output().find("pausing at step") != std::string::npos; }));
  controller_.come_back();
  ASSERT_TRUE(eventually([&] { return trainer->output().find("going on") != std::string::npos; }));
  stop(*trainer);
}

TEST_F(TrainerDirectives, TheFileSpeaksLouderThanThePolicy) {
  controller_.want_on_loss("pause", 0.1);
  const auto trainer = start_long("[controller]\non_loss = \"bf16\"\n");
  ASSERT_TRUE(eventually([&] { return controller_.steps_received() > 0; }));
  controller_.go_away();
  ASSERT_TRUE(eventually([&] {
    return trainer->output().find("BF16 from step") != std::string::npos;
  })) << "after the policy's 0.1 seconds";
  EXPECT_EQ(trainer->output().find("pausing at step"), std::string::npos);
  controller_.come_back();
  stop(*trainer);
}

TEST_F(TrainerDirectives, OnLossPauseWaitsForTheController) {
  const auto trainer = start_long("[controller]\non_loss = \"pause\"\ngrace_seconds = 0.1\n");
  controller_.go_away();
  ASSERT_TRUE(
      eventually([&] { return trainer->output().find("pausing at step") != std::string::npos; }));
  controller_.come_back();
  ASSERT_TRUE(eventually([&] { return trainer->output().find("going on") != std::string::npos; }));
  stop(*trainer);
  EXPECT_EQ(controller_.received().conflicts, 0);
}

}  // namespace
}  // namespace gnomon

// A trainer without any verifier: it replays its own windows between two steps, and its later
// weights are those of a run that was never interrupted, whatever happens meanwhile.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "tests/trainer/daemon_fixture.h"
#include "tests/trainer/lease_desk.h"

namespace gnomon {
namespace {

using test::ChildProcess;
using test::DaemonFixture;
using test::eventually;
using test::FakeController;
using test::LeaseDesk;
using test::TrainerFixture;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kInline = "[verification]\ninline = true\nshare_max = 1.0\n";
constexpr const char* kAccumulate = "tokens = 32\naccumulation = 3\n";

class InlineVerification : public TrainerFixture {
 protected:
  std::string extra(const std::string& verification) const {
    return verification +
           "[[fault]]\nkind = \"stale_weight\"\nsite = \"model.layers.0.mlp.up_proj\"\n"
           "start_step = 6\nsteps = 35\n"
           "[[fault]]\nkind = \"frozen_amax\"\nsite = \"model.layers.1.mlp.down_proj\"\n"
           "start_step = 12\n"
           "[[fault]]\nkind = \"bit_flip\"\nsite = \"model.layers.1.mlp.down_proj.weight\"\n"
           "start_step = 15\nbit = 20\n";
  }
  Edits edits() const {
    Edits all = kKeepAllCheckpoints;
    all.emplace_back("tokens = 32\n", kAccumulate);
    all.emplace_back("warmup_steps = 5\n", "warmup_steps = 5\n" + optimizer_);
    return all;
  }
  std::unique_ptr<ChildProcess> start_with(FakeController& controller, int steps,
                                           const std::string& verification,
                                           const std::string& dir = "here", int64_t until = 0) {
    std::vector<std::string> more = {"--controller", controller.url(), "--dir",
                                     (directory_ / dir).string()};
    if (until > 0) more.insert(more.end(), {"--steps", std::to_string(until)});
    return start(config(steps, extra(verification), edits()), more);
  }
  // What a run that never verifies reports, up to step `until`.
  std::map<int64_t, StepReport> uninterrupted(int steps, int64_t until = 0) {
    FakeController controller;
    const auto trainer = start_with(controller, steps, "", "uninterrupted", until);
    EXPECT_EQ(trainer->wait(), 0) << trainer->output();
    std::map<int64_t, StepReport> whole;
    for (const auto& [key, step] : controller.received().steps) whole[key.second] = step;
    return whole;
  }
  static void expect_same_bits(const FakeController::Received& received,
                               const std::map<int64_t, StepReport>& whole) {
    EXPECT_EQ(received.conflicts, 0);
    for (const auto& [key, step] : received.steps) {
      ASSERT_TRUE(whole.contains(key.second));
      const StepReport& expected = whole.at(key.second);
      ASSERT_EQ(step.weights_hash, expected.weights_hash) << "step " << key.second;
      ASSERT_EQ(step.loss, expected.loss) << "step " << key.second;
      ASSERT_EQ(step.grad_norm, expected.grad_norm) << "step " << key.second;
      ASSERT_EQ(step.batch_hash, expected.batch_hash) << "step " << key.second;
      ASSERT_TRUE(expected.cast_peak && expected.cast_saturated && expected.cast_flushed);
      ASSERT_EQ(step.cast_peak, expected.cast_peak) << "step " << key.second;
      ASSERT_EQ(step.cast_saturated, expected.cast_saturated) << "step " << key.second;
      ASSERT_EQ(step.cast_flushed, expected.cast_flushed) << "step " << key.second;
    }
  }
  // Waits until an endless replay is under way.
  static bool replaying(const LeaseDesk& desk) {
    return eventually([&] {
      const auto seen = desk.seen();
      return !seen.heartbeats.empty() && seen.heartbeats.back().steps_done > 0;
    });
  }

  // Stops in the middle of a replay, and goes on with the bits of a run that never stopped.
  void stop_and_go_on();

  std::string optimizer_;  // keys
};

class WithOptimizer : public InlineVerification,
                      public ::testing::WithParamInterface<const char*> {};

TEST_P(WithOptimizer, EveryStepHasTheBitsOfARunThatWasNeverInterrupted) {
  constexpr int kSteps = 120;
  optimizer_ = GetParam();
  FakeController controller;
  LeaseDesk desk(controller, test::every_window({"bf16", "same", "fakequant", "bf16-perturbed"}));
  const auto trainer = start_with(controller, kSteps, kInline);
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  const auto received = controller.received();
  ASSERT_EQ(received.steps.size(), static_cast<size_t>(kSteps));
  expect_same_bits(received, uninterrupted(kSteps));

  EXPECT_TRUE(received.registrations[0].trainer_replays);
  EXPECT_THAT(trainer->output(),
              AllOf(HasSubstr("state kept while verifying"), HasSubstr("replayed at step"),
                    HasSubstr("windows' replays between steps took")));
  const auto seen = desk.seen();
  EXPECT_TRUE(seen.requests[0].on_trainer);
  EXPECT_EQ(seen.requests[0].run, "run-1");
  EXPECT_EQ(seen.requests[0].fingerprint, received.registrations[0].fingerprint);
  // The last step may come before the last lease.
  ASSERT_LE(seen.failed.size(), 1u) << trainer->output();
  for (const LeaseFailure& failure : seen.failed) EXPECT_EQ(failure.reason, "the trainer ends");
  ASSERT_GE(seen.completed.size(), 4u);
  for (const auto& [lease, result] : seen.completed) {
    EXPECT_EQ(result.token, lease.token);
    ASSERT_EQ(result.steps.size(), 10u);
    EXPECT_TRUE(result.start_loss_bf16 && result.start_loss_plan && result.run_end_loss_bf16 &&
                result.replay_end_loss_bf16);
    // The one bit that flips by chance, after step 15, does not flip again.
    const bool flipped = lease.task.start_step == 10;
    for (const ReplayStep& step : result.steps) {
      const StepReport& run = received.steps.at({1, step.step});
      EXPECT_EQ(step.batch_hash, run.batch_hash);
      if (lease.task.arm == "same" && !flipped) {
        EXPECT_EQ(step.weights_hash, run.weights_hash);
      }
      if (lease.task.arm == "bf16") {
        EXPECT_NE(step.weights_hash, run.weights_hash);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Moments, WithOptimizer,
                         ::testing::Values("first_moment = \"fp32\"\n",
                                           "first_moment = \"fp8\"\nsecond_moment = \"bf16\"\n",
                                           "name = \"lion\"\nfirst_moment = \"bf16\"\n"));

TEST_F(InlineVerification, ADirectiveEndsTheReplayAndIsObeyed) {
  FakeController controller;
  LeaseDesk desk(controller, test::one_endless_replay());
  const auto trainer = start_with(controller, 1'000'000, kInline);
  ASSERT_TRUE(replaying(desk)) << trainer->output();
  const int64_t checkpoint = controller.issue("checkpoint_now");
  ASSERT_TRUE(controller.reaches(checkpoint, "acknowledged"));
  const int64_t stop = controller.issue("stop");
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_EQ(controller.ack_state(checkpoint), "applied");
  EXPECT_EQ(controller.ack_state(stop), "applied");
  const auto seen = desk.seen();
  ASSERT_EQ(seen.failed.size(), 1u) << trainer->output();
  EXPECT_THAT(seen.failed[0].reason, HasSubstr("directive"));
  EXPECT_TRUE(seen.failed[0].retryable);
  const auto received = controller.received();
  ASSERT_EQ(received.finished.size(), 1u);
  EXPECT_EQ(received.finished[0].outcome, "stopped");
  expect_same_bits(received, uninterrupted(1'000'000, received.finished[0].step));
  EXPECT_EQ(hash_of_model(newest(run_dir())), hash_of_model(newest(directory_ / "uninterrupted")));
}

void InlineVerification::stop_and_go_on() {
  FakeController controller;
  LeaseDesk desk(controller, test::one_endless_replay());
  {
    const auto trainer = start_with(controller, 60, kInline);
    ASSERT_TRUE(replaying(desk)) << trainer->output();
    trainer->signal(SIGTERM);
    ASSERT_EQ(trainer->wait(), 0) << trainer->output();
    const auto seen = desk.seen();
    ASSERT_EQ(seen.failed.size(), 1u) << trainer->output();
    EXPECT_TRUE(seen.failed[0].retryable);
    EXPECT_EQ(newest(run_dir()).step, controller.newest_step(1));
  }
  const auto trainer = start_with(controller, 60, kInline);
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  expect_same_bits(controller.received(), uninterrupted(60));
}

TEST_F(InlineVerification, ASignalEndsTheReplayAndTheNextAttemptGoesOn) { stop_and_go_on(); }

TEST_F(InlineVerification, ALionRunGoesOnFromItsCheckpointToo) {
  optimizer_ = "name = \"lion\"\n";
  stop_and_go_on();
}

TEST_F(InlineVerification, KilledInTheMiddleOfAReplayNothingIsLost) {
  FakeController controller;
  LeaseDesk desk(controller, test::one_endless_replay());
  {
    const auto trainer = start_with(controller, 60, kInline);
    ASSERT_TRUE(replaying(desk)) << trainer->output();
    trainer->signal(SIGKILL);
    ASSERT_EQ(trainer->wait(), -SIGKILL);
  }
  const auto trainer = start_with(controller, 60, kInline);
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  const auto received = controller.received();
  EXPECT_EQ(controller.newest_step(2), 60);
  expect_same_bits(received, uninterrupted(60));
  EXPECT_EQ(hash_of_model(newest(run_dir())), hash_of_model(newest(directory_ / "uninterrupted")));
}

TEST_F(InlineVerification, ALeaseThatIsLostCostsNothingButTheReplay) {
  FakeController controller;
  LeaseDesk desk(controller, test::one_endless_replay());
  const auto trainer = start_with(controller, 60, kInline);
  ASSERT_TRUE(replaying(desk)) << trainer->output();
  desk.set_heartbeat_status(409);
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_THAT(trainer->output(), HasSubstr("the lease was lost"));
  EXPECT_TRUE(desk.seen().failed.empty() && desk.seen().completed.empty());
  expect_same_bits(controller.received(), uninterrupted(60));
}

// The share is used up by the first replay, of which training has to make a thousand times. Other
// windows wait for theirs by then.
TEST_F(InlineVerification, NoFurtherReplayBeginsBeyondItsShareOfTheRunsTime) {
  FakeController controller;
  LeaseDesk desk(controller, [window = test::every_window({"bf16"})](const auto& received) mutable {
    const bool several = std::ranges::any_of(
        received.checkpoints,
        [](const CheckpointReport& checkpoint) { return checkpoint.step >= 50; });
    return several ? window(received) : std::nullopt;
  });
  const auto trainer =
      start_with(controller, 200, "[verification]\ninline = true\nshare_max = 0.001\n");
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_EQ(desk.seen().given.size(), 1u) << trainer->output();
  EXPECT_EQ(desk.seen().completed.size(), 1u);
}

TEST_F(InlineVerification, WithoutAControllerItTrainsAndTakesNoMemoryForIt) {
  const auto trainer = start(config(20, kInline));
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_THAT(trainer->output(), Not(HasSubstr("state kept")));
}

class InlineUnderADaemon : public DaemonFixture {};

TEST_F(InlineUnderADaemon, WindowsAreVerifiedWithoutAnyVerifier) {
  daemon_.start();
  const auto trainer = start_supervised(config(200, kInline, kKeepAllCheckpoints));
  ASSERT_EQ(trainer->wait(), 0) << trainer->output() << daemon_.log();
  EXPECT_THAT(trainer->output(), HasSubstr("replayed at step"));
  int measured = 0;
  for (const boost::json::value& window : daemon_.rows("windows")) {
    measured += window.at("state").as_string() == "quiet" ? 1 : 0;
  }
  EXPECT_GE(measured, 2) << boost::json::serialize(daemon_.rows("windows")) << trainer->output();

  const auto plain = start(config(200, "", kKeepAllCheckpoints),
                           {"--controller", "none", "--dir", (directory_ / "plain").string()});
  ASSERT_EQ(plain->wait(), 0) << plain->output();
  EXPECT_EQ(hash_of_model(newest(run_dir())), hash_of_model(newest(directory_ / "plain")));
}

}  // namespace
}  // namespace gnomon

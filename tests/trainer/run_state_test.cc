#include "trainer/run_state.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temporary_directory.h"
#include "tests/support/words.h"

namespace gnomon {
namespace {

using Place = std::pair<int64_t, int64_t>;  // attempt, step

AttemptRecord attempt(int64_t number, int64_t base_step, int64_t base_attempt,
                      const std::string& cause) {
  AttemptRecord record;
  record.start = {number, base_step, test::any_word(cause), 2, 1.5};
  record.base_attempt = base_attempt;
  record.base_checkpoint =
      base_attempt == 0 ? "" : fmt::format("/c/{}/{}", base_attempt, base_step);
  return record;
}

class RunStateTest : public ::testing::Test {
 protected:
  void write(int64_t attempt_number, int64_t step) {
    const float value = 1;
    CheckpointContent content;
    content.config_json = "{}";
    content.trainer_state_json = "{}";
    content.model = {{"w", "F32", {1}, &value}};
    content.optimizer = {{"m", "F32", {1}, &value}};
    store_.write(attempt_number, step, content);
  }
  // (attempt, step) of the resume point.
  Place resume() {
    skipped_.clear();
    const auto info = find_resume_point(state_, store_, skipped_);
    return info ? std::pair(info->attempt, info->step) : Place(0, -1);
  }
  void damage(int64_t attempt_number, int64_t step) {
    std::ofstream(store_.path_of(attempt_number, step) / "model.safetensors", std::ios::app) << "x";
  }

  test::TemporaryDirectory directory_;
  CheckpointStore store_{directory_ / "checkpoints"};
  RunState state_;
  std::vector<std::string> skipped_;
};

TEST_F(RunStateTest, SurvivesTheFile) {
  state_.attempts = {attempt(1, 0, 0, "start"), attempt(2, 60, 1, "rollback")};
  state_.attempts[1].start.fingerprint = Fingerprint{"a \"CPU\"", "cpu", "lib 1", "b", 2, 3};
  state_.last_directive = 4;
  state_.newest_plan_version = 9;
  state_.last_ack = {"rejected", 1, 97, "because \"it\" is\nbad", 12.25};
  state_.plan = "version = 3\n\n[[rule]]\nmatch = \"*\"\n";
  state_.paused = true;
  state_.finished = "stopped";
  state_.base_plan = "version = 1\n";
  state_.checkpointed = true;
  state_.on_loss = "pause";
  state_.grace_seconds = 2.5;
  state_.save(directory_ / "state.toml");
  const auto again = RunState::load(directory_ / "state.toml");
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->attempt(), 2);
  EXPECT_EQ(again->attempts[1].start.base_step, 60);
  EXPECT_EQ(again->attempts[1].start.cause, "rollback");
  EXPECT_EQ(again->attempts[1].start.plan_version, 2);
  EXPECT_EQ(again->attempts[1].start.time, 1.5);
  EXPECT_EQ(again->attempts[1].start.fingerprint, state_.attempts[1].start.fingerprint);
  EXPECT_EQ(again->attempts[0].start.fingerprint, std::nullopt) << "as older files have it";
  EXPECT_EQ(again->newest_plan_version, 9);
  EXPECT_EQ(again->attempts[1].base_attempt, 1);
  EXPECT_EQ(again->attempts[1].base_checkpoint, "/c/1/60");
  EXPECT_EQ(again->last_directive, 4);
  EXPECT_EQ(again->last_ack.state, "rejected");
  EXPECT_EQ(again->last_ack.step, 97);
  EXPECT_EQ(again->last_ack.reason, "because \"it\" is\nbad");
  EXPECT_EQ(again->plan, state_.plan);
  EXPECT_TRUE(again->paused);
  EXPECT_EQ(again->finished, "stopped");
  EXPECT_EQ(again->base_plan, state_.base_plan);
  EXPECT_TRUE(again->checkpointed);
  EXPECT_EQ(again->on_loss, "pause");
  EXPECT_EQ(again->grace_seconds, 2.5);
}

TEST_F(RunStateTest, NoFileMeansNoRun) {
  EXPECT_FALSE(RunState::load(directory_ / "absent").has_value());
}

TEST_F(RunStateTest, ResumesAtTheNewestCheckpointOfTheAttempt) {
  state_.attempts = {attempt(1, 0, 0, "start")};
  EXPECT_EQ(resume().second, -1);
  write(1, 0);
  write(1, 20);
  EXPECT_EQ(resume(), (Place{1, 20}));
}

TEST_F(RunStateTest, NeverResumesOnABranchThatWasRolledBack) {
  for (int64_t step : {0, 20, 40, 60}) write(1, step);
  state_.attempts = {attempt(1, 0, 0, "start"), attempt(2, 20, 1, "rollback")};
  EXPECT_EQ(resume(), (Place{1, 20})) << "not step 60 of attempt 1";
  write(2, 40);
  EXPECT_EQ(resume(), (Place{2, 40}));
}

TEST_F(RunStateTest, FollowsTheBranchesBackThroughSeveralAttempts) {
  for (int64_t step : {0, 20, 40, 60}) write(1, step);
  write(2, 60);
  write(2, 80);
  // Attempt 3 went back to step 40 of attempt 1, past all of attempt 2.
  state_.attempts = {attempt(1, 0, 0, "start"), attempt(2, 40, 1, "rollback"),
                     attempt(3, 40, 1, "rollback")};
  EXPECT_EQ(resume(), (Place{1, 40}));
}

TEST_F(RunStateTest, PassesOverDamagedCheckpointsAndSaysWhy) {
  for (int64_t step : {0, 20, 40}) write(1, step);
  state_.attempts = {attempt(1, 0, 0, "start")};
  damage(1, 40);
  EXPECT_EQ(resume(), (Place{1, 20}));
  ASSERT_EQ(skipped_.size(), 1u);
  EXPECT_THAT(skipped_[0], ::testing::HasSubstr("model.safetensors"));
  damage(1, 20);
  damage(1, 0);
  EXPECT_EQ(resume().second, -1);
  EXPECT_EQ(skipped_.size(), 3u);
}

}  // namespace
}  // namespace gnomon

#include "trainer/checkpointer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>
#include <sys/resource.h>

#include <csignal>
#include <future>

#include "tests/support/temporary_directory.h"

namespace gnomon {
namespace {

using ::testing::ElementsAre;

class CheckpointerTest : public ::testing::Test {
 protected:
  CheckpointContent content() const {
    CheckpointContent result;
    result.config_json = "{}";
    result.trainer_state_json = "{}";
    result.model = {{"w", "F32", {static_cast<int64_t>(values_.size())}, values_.data()}};
    result.optimizer = {{"m", "F32", {1}, values_.data()}};
    return result;
  }
  void start(int keep_last) {
    CheckpointerCallbacks callbacks;
    callbacks.written = [this](const CheckpointReport& report) {
      if (hold_.valid()) hold_.wait();
      std::lock_guard lock(mutex_);
      reports_.push_back(report);
    };
    callbacks.before_retention = [this] {
      if (make_room_) make_room_();
    };
    callbacks.needed = [this](const CheckpointInfo& info) { return info.step == needed_step_; };
    checkpointer_ = std::make_unique<Checkpointer>(store_, content(), host_memory(), keep_last,
                                                   callbacks, log_);
  }
  void write(int64_t step) {
    CheckpointReport report;
    report.attempt = 1;
    report.step = step;
    report.plan_version = 3;
    report.weights_hash = "hash";
    checkpointer_->begin(content(), report);
  }
  std::vector<int64_t> steps_on_disk() const {
    std::vector<int64_t> steps;
    for (const CheckpointInfo& info : store_.list()) steps.push_back(info.step);
    return steps;
  }

  test::TemporaryDirectory directory_;
  spdlog::logger log_{"test", std::make_shared<spdlog::sinks::null_sink_mt>()};
  CheckpointStore store_{directory_ / "checkpoints"};
  std::vector<float> values_ = std::vector<float>(1000, 1.0f);
  int64_t needed_step_ = -1;
  std::function<void()> make_room_;
  std::shared_future<void> hold_;
  std::mutex mutex_;
  std::vector<CheckpointReport> reports_;
  std::unique_ptr<Checkpointer> checkpointer_;
};

TEST_F(CheckpointerTest, WritesTheStateAsItWasAtTheBoundary) {
  std::promise<void> go;
  start(3);
  values_[0] = 42;
  write(10);
  values_[0] = -1;  // the next step goes on while the checkpoint is written
  checkpointer_->drain();
  const SafetensorsFile file(store_.path_of(1, 10) / "model.safetensors");
  EXPECT_EQ(static_cast<const float*>(file.require("w", "F32", {1000}).data)[0], 42);
  EXPECT_NO_THROW(verify_checkpoint(store_.path_of(1, 10)));
}

TEST_F(CheckpointerTest, ReportsWhatItWrote) {
  start(3);
  write(10);
  checkpointer_->drain();
  ASSERT_EQ(reports_.size(), 1u);
  const CheckpointInfo info = verify_checkpoint(store_.path_of(1, 10));
  EXPECT_EQ(reports_[0].uri, store_.path_of(1, 10).string());
  EXPECT_EQ(reports_[0].manifest_hash, info.manifest_hash);
  EXPECT_EQ(reports_[0].bytes, info.bytes);
  EXPECT_EQ(reports_[0].plan_version, 3);
  EXPECT_EQ(reports_[0].weights_hash, "hash");
  EXPECT_GT(reports_[0].time, 0);
}

TEST_F(CheckpointerTest, KeepsTheNewestAndWhatIsNeeded) {
  needed_step_ = 10;
  start(2);
  for (int64_t step : {0, 10, 20, 30, 40}) {
    write(step);
    checkpointer_->drain();
  }
  EXPECT_THAT(steps_on_disk(), ElementsAre(10, 30, 40));
}

TEST_F(CheckpointerTest, WaitsWhenTheWriteBeforeIsStillGoingOnAndCountsIt) {
  std::promise<void> go;
  hold_ = go.get_future().share();
  start(3);
  write(10);
  auto second = std::async(std::launch::async, [this] { write(20); });
  EXPECT_EQ(second.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  go.set_value();
  second.get();
  checkpointer_->drain();
  EXPECT_EQ(checkpointer_->waits(), 1);
  EXPECT_GT(checkpointer_->wait_seconds(), 0);
  EXPECT_THAT(steps_on_disk(), ElementsAre(10, 20));
}

TEST_F(CheckpointerTest, AFullDiskFailsThatCheckpointOnly) {
  std::signal(SIGXFSZ, SIG_IGN);
  start(3);
  write(10);
  checkpointer_->drain();
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  rlimit small = old;
  small.rlim_cur = 1000;
  ::setrlimit(RLIMIT_FSIZE, &small);
  write(20);
  EXPECT_THROW(checkpointer_->drain(), SystemError);
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_THAT(steps_on_disk(), ElementsAre(10));
  EXPECT_EQ(reports_.size(), 1u);
  write(30);
  checkpointer_->drain();
  EXPECT_THAT(steps_on_disk(), ElementsAre(10, 30));
}

TEST_F(CheckpointerTest, OnAFullDiskWhatNobodyNeedsAnyMoreMakesRoom) {
  std::signal(SIGXFSZ, SIG_IGN);
  needed_step_ = 10;
  start(1);
  for (int64_t step : {10, 20}) {
    write(step);
    checkpointer_->drain();
  }
  ASSERT_THAT(steps_on_disk(), ElementsAre(10, 20));
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  rlimit small = old;
  small.rlim_cur = 1000;
  ::setrlimit(RLIMIT_FSIZE, &small);
  needed_step_ = -1;
  make_room_ = [&old] { ::setrlimit(RLIMIT_FSIZE, &old); };
  write(30);
  EXPECT_NO_THROW(checkpointer_->drain());
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_THAT(steps_on_disk(), ElementsAre(30));
}

}  // namespace
}  // namespace gnomon

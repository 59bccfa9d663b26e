// Starts the real gnomon-trainer on a tiny model in a directory of its own.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/hash.h"
#include "storage/checkpoint_store.h"
#include "tests/trainer/child_process.h"
#include "tests/trainer/fake_controller.h"
#include "tests/trainer/tiny_run.h"

namespace gnomon::testing {

class TrainerFixture : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new TemporaryDirectory();
    make_tiny_dataset(*shared_ / "data");
  }
  static void TearDownTestSuite() {
    delete shared_;
    shared_ = nullptr;
  }

  std::filesystem::path config(int steps, const std::string& extra = {}) {
    return write_tiny_config(directory_.path(), *shared_ / "data", steps, extra);
  }
  std::filesystem::path run_dir() const { return directory_ / "here"; }

  std::unique_ptr<ChildProcess> start(const std::filesystem::path& config,
                                      const std::vector<std::string>& more = {}) {
    std::vector<std::string> command = {GNOMON_TRAINER};
    if (!config.empty()) command.insert(command.end(), {"--config", config.string()});
    command.insert(command.end(), more.begin(), more.end());
    return std::make_unique<ChildProcess>(command, directory_ / ("log" + std::to_string(++logs_)));
  }

  static CheckpointInfo newest(const std::filesystem::path& run) {
    const auto info = CheckpointStore(run / "checkpoints").newest_intact();
    if (!info) throw Error("no intact checkpoint in " + run.string());
    return *info;
  }
  static std::string hash_of_model(const CheckpointInfo& checkpoint) {
    const std::string bytes = read_file(checkpoint.path / "model.safetensors");
    return hex64(hash64(bytes.data(), bytes.size()));
  }

  inline static TemporaryDirectory* shared_ = nullptr;
  TemporaryDirectory directory_;
  int logs_ = 0;
};

}  // namespace gnomon::testing

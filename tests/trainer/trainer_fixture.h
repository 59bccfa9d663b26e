// Starts the real gnomon-trainer on a tiny model in a directory of its own.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/files.h"
#include "base/hash.h"
#include "storage/checkpoint_store.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/fake_controller.h"
#include "tests/trainer/tiny_run.h"

namespace gnomon::test {

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

  // Texts of the tiny configuration and what stands in their place.
  using Edits = std::vector<std::pair<std::string, std::string>>;
  inline static const Edits kKeepAllCheckpoints = {{"keep_last = 2", "keep_last = 99"}};

  std::filesystem::path config(int steps, const std::string& extra = {}, const Edits& edits = {}) {
    const std::filesystem::path path =
        write_tiny_config(directory_.path(), *shared_ / "data", steps, extra);
    std::string text = read_file(path);
    for (const auto& [from, to] : edits) {
      const size_t at = text.find(from);
      GNOMON_ASSERT(at != std::string::npos);
      text.replace(at, from.size(), to);
    }
    write_file_atomically(path, text);
    return path;
  }
  std::filesystem::path run_dir() const { return directory_ / "here"; }

  std::unique_ptr<ChildProcess> start(const std::filesystem::path& config,
                                      const std::vector<std::string>& more = {}) {
    std::vector<std::string> command = {GNOMON_TRAINER};
    if (!config.empty()) command.insert(command.end(), {"--config", config.string()});
    command.insert(command.end(), more.begin(), more.end());
    return launch(command);
  }
  // Any program, with a log of its own.
  std::unique_ptr<ChildProcess> launch(const std::vector<std::string>& command,
                                       const ChildOptions& options = {}) {
    return std::make_unique<ChildProcess>(command, directory_ / ("log" + std::to_string(++logs_)),
                                          options);
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

}  // namespace gnomon::test

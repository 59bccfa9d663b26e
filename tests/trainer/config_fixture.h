// What tests of a run's TOML share: a folder with a tiny dataset, and a file beside it.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_directory.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/config.h"

namespace gnomon::test {

class ConfigTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TemporaryDirectory();
    make_tiny_dataset(*directory_ / "data");
  }
  static void TearDownTestSuite() { delete directory_; }

  static std::filesystem::path write(const std::string& text) {
    const std::filesystem::path path = *directory_ / "run.toml";
    std::ofstream(path) << text;
    return path;
  }
  static TrainerConfig load(const std::string& text, const TrainerOverrides& overrides = {}) {
    return load_trainer_config(write(text).string(), overrides);
  }
  static ConfigError error_of(const std::string& text, const TrainerOverrides& overrides = {}) {
    try {
      load(text, overrides);
    } catch (const ConfigError& error) {
      return error;
    }
    ADD_FAILURE() << "accepted: " << text;
    return ConfigError("", 0, "", "", "");
  }

  static inline TemporaryDirectory* directory_ = nullptr;
};

inline constexpr const char* kSmallest = "[data]\ndir = \"data\"\n[precision]\nrecipe = \"bf16\"\n";

}  // namespace gnomon::test

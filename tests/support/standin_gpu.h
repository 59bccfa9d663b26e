// The GPU of the stand-in for NVML (standin_nvml.cc) as tests set it up.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace gnomon::test {

class StandinGpu {
 public:
  // A healthy one at work: every key of standin_nvml.cc has a value.
  StandinGpu();
  static constexpr const char* kBusId = "0000:01:00.0";

  // The file is replaced as a whole, so that a program that reads it sees no half of it.
  void set(const std::string& key, const std::string& value);
  void forget(const std::string& key);  // is not supported from now on

  const std::filesystem::path& file() const { return file_; }
  // For a program that is to find the stand-in where it looks for NVML.
  std::vector<std::pair<std::string, std::optional<std::string>>> environment() const;

 private:
  void write() const;

  TemporaryDirectory folder_;
  std::filesystem::path file_;
  std::map<std::string, std::string> answers_;
};

}  // namespace gnomon::test

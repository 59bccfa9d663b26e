#include "tests/support/standin_gpu.h"

#include <cstdlib>

#include "base/files.h"

namespace gnomon::test {

StandinGpu::StandinGpu()
    : file_(folder_ / "gpu"),
      answers_{
          {"bus_id", kBusId},     {"name", "NVIDIA Stand-in"},    {"sm_mhz", "1755"},
          {"memory_mhz", "3201"}, {"power_mw", "520500"},         {"power_limit_mw", "700000"},
          {"celsius", "61"},      {"memory_used", "80000000000"}, {"memory_total", "150000000000"},
          {"utilization", "98"},  {"ecc_corrected", "7"},         {"ecc_uncorrected", "0"},
          {"reasons", "4"},       {"rows_pending", "0"},          {"rows_failure", "0"}} {
  write();
}

void StandinGpu::set(const std::string& key, const std::string& value) {
  answers_[key] = value;
  write();
}

void StandinGpu::forget(const std::string& key) {
  answers_.erase(key);
  write();
}

void StandinGpu::write() const {
  std::string text;
  for (const auto& [key, value] : answers_) text += key + " " + value + "\n";
  write_file_atomically(file_, text);
}

std::vector<std::pair<std::string, std::optional<std::string>>> StandinGpu::environment() const {
  const char* before = std::getenv("LD_LIBRARY_PATH");
  const std::string folders = std::string(GNOMON_STANDIN_NVML_FOLDER) +
                              (before == nullptr ? "" : std::string(":") + before);
  return {{"GNOMON_STANDIN_NVML", file_.string()}, {"LD_LIBRARY_PATH", folders}};
}

}  // namespace gnomon::test

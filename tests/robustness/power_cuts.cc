#include "tests/robustness/power_cuts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace gnomon::robustness {

PowerCuts::PowerCuts(std::vector<std::string> paths, std::filesystem::path journal, bool lies)
    : paths_(std::move(paths)), journal_(std::move(journal)), lies_(lies) {}

bool PowerCuts::possible() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#else
  return true;
#endif
}

std::vector<std::pair<std::string, std::optional<std::string>>> PowerCuts::begin(
    int64_t cut_after) {
  std::filesystem::remove(journal_);
  disk_ = std::make_unique<PowerDisk>(paths_);
  cut_after_ = cut_after;
  std::vector<std::pair<std::string, std::optional<std::string>>> environment = {
      {"LD_PRELOAD", GNOMON_POWER_CUT},
      {kPowerPaths, fmt::format("{}", fmt::join(paths_, ":"))},
      {kPowerJournal, journal_.string()},
      {kPowerCutAfter, fmt::format("{}", cut_after)}};
  if (lies_) environment.emplace_back(kPowerLies, "1");
  return environment;
}

std::vector<std::string> PowerCuts::cut(Draw& draw) {
  const int64_t records = disk_->read(journal_);
  // One that was killed from outside may have done what it had not noted yet.
  std::vector<std::string> unseen;
  if (cut_after_ > 0 && records >= cut_after_) unseen = disk_->unseen();
  disk_->cut(draw);
  disk_.reset();
  return unseen;
}

}  // namespace gnomon::robustness

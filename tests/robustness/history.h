// One history: a real daemon, its clients, and what happens to it, all drawn from one seed; then
// what is wrong with what it left.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/robustness/faults.h"

namespace gnomon::robustness {

struct HistoryResult {
  Fault fault = Fault::kKill;
  double seconds = 0;
  std::vector<std::string> violations;
  std::map<std::string, int64_t> counts;  // of what happened, for the summary
};

// `keep`: where the daemon's folder (ledger, log, backups) is copied to when there are violations;
// empty = nowhere. `isolated`: the process is in namespaces of its own, so that all faults can be
// played.
HistoryResult run_history(uint64_t seed, std::optional<Fault> only,
                          const std::filesystem::path& keep, bool isolated);

}  // namespace gnomon::robustness

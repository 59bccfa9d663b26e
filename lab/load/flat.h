// What each call of the API costs, with a short history of one run and with one a hundred times as
// long.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lab/load/daemon.h"

namespace gnomon::bench {

struct FlatLoad {
  int units = 10;    // of history at first: 500 steps, 5 windows, and what goes with them
  int factor = 100;  // then
  int calls = 100;   // of each operation; medians
};

struct FlatCost {
  std::string operation;  // "GET /v1/runs/{run}/steps"
  double short_seconds = 0;
  double long_seconds = 0;
  double ratio() const { return long_seconds / short_seconds; }
};

// Every GET of the daemon's own document, in pages of 50 rows where there are pages, and the
// reports of trainers and verifiers. `progress` is called with units of history.
std::vector<FlatCost> measure_flat(const std::string& gnomond, const std::filesystem::path& folder,
                                   const FlatLoad& load,
                                   const std::function<void(int64_t units)>& progress);

}  // namespace gnomon::bench

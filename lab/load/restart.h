// How soon gnomond is ready on a large ledger.
#pragma once

#include "base/progress.h"
#include "lab/load/daemon.h"

namespace gnomon::bench {

struct RestartTimes {
  int64_t ledger_bytes = 0;
  double cold_seconds = 0;  // from the start to /readyz with 200, the file out of the page cache
  double warm_seconds = 0;  // the same again
};

// `progress` is called with megabytes while the ledger is made.
RestartTimes measure_restart(const std::string& gnomond, const std::filesystem::path& folder,
                             double bytes, Progress& progress);

}  // namespace gnomon::bench

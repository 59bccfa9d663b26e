// A day of many runs and many verifiers at one gnomond, compressed: what it takes in memory and on
// disk, and how long a scrape of /metrics takes meanwhile.
#pragma once

#include <functional>

#include "lab/load/daemon.h"
#include "lab/load/load_client.h"

namespace gnomon::bench {

// A step each ten seconds for 24 hours; a checkpoint each 160 steps; of each 800 steps 160 are
// verified. Steps come in batches of 160 (a trainer would send each by itself, 86 a second of all
// runs together).
struct ManyLoad {
  int runs = 1000;
  int verifiers = 10'000;  // each a connection with a long poll
  int64_t steps = 8640;    // of a run; a multiple of 160
};

struct ManyResult {
  Served::Memory memory;     // at the end, all connections open
  Served::Memory idle;       // with runs registered and verifiers waiting, before the first step
  Latencies scrapes;         // of /metrics, meanwhile
  Latencies idle_scrapes;    // after it
  int64_t scrape_bytes = 0;  // of the last one
  int64_t steps = 0;
  int64_t windows = 0;       // closed
  int64_t put_off = 0;       // requests answered with 503 and repeated
  int64_t ledger_bytes = 0;  // when the daemon has stopped
  double seconds = 0;
  double cpu_seconds = 0;  // of the daemon
};

std::string many_policy();

// `progress` is called with steps. Throws Error when something was refused, or a replay is left.
ManyResult measure_many(const std::string& gnomond, const std::filesystem::path& folder,
                        const ManyLoad& load,
                        const std::function<void(int64_t steps, const char* what)>& progress);

}  // namespace gnomon::bench

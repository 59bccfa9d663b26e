// Thousands of clients that wait: what they cost while nothing happens, and how soon they learn of
// something.
#pragma once

#include "lab/load/daemon.h"
#include "lab/load/load_client.h"

namespace gnomon::bench {

struct WaitersLoad {
  int streams = 5000;  // on GET /v1/events
  int polls = 5000;    // half of verifiers for work, half of trainers for directives
  double idle_seconds = 20;
};

struct WaitersResult {
  double bytes_each = 0;         // of resident memory
  double idle_cpu_share = 0;     // of one core, while all wait
  Latencies event;               // from the answer to who made it, to each stream
  double directive_seconds = 0;  // from the request that led to one directive to its trainer
};

// Throws Error when somebody gets no answer.
WaitersResult measure_waiters(const std::string& gnomond, const std::filesystem::path& folder,
                              const WaitersLoad& load);

}  // namespace gnomon::bench

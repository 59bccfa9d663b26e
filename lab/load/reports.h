// How many step reports a second gnomond takes, one at a time and in batches, each acknowledged
// when it is on disk.
#pragma once

#include "lab/load/daemon.h"
#include "lab/load/load_client.h"
#include "protocol/records.h"

namespace gnomon::bench {

// Registrations, attempts and batches as trainers send them, with steps of nine digits.
constexpr int64_t kFirstStep = 100'000'000;
Fingerprint bench_fingerprint();
StepReport bench_step(int64_t step);
// Registers and starts an attempt after kFirstStep; "run-7".
std::string register_run(HttpClient& client, const std::string& name,
                         int64_t checkpoint_every = 500);
class StepBodies {
 public:
  // Makes batches of `steps` steps.
  explicit StepBodies(int steps);
  // The batch whose first step is `first`.
  std::string_view from(int64_t first);

 private:
  int steps_;
  std::string text_;
  std::vector<size_t> step_digits_, hash_digits_;
};

struct ReportLoad {
  int connections = 64;  // each reports for a run of its own
  int steps = 1;         // of a batch
  double warm_seconds = 1;
  double seconds = 5;
};

struct ReportRate {
  LoadResult load;
  double steps_per_second = 0;
  double daemon_cpu_seconds = 0;  // while it was loaded, the warm-up included
};

// A run for each connection, registered once, so that they can be loaded again and again.
class Reporters {
 public:
  // Keeps `daemon`, which must live longer.
  Reporters(BenchDaemon& daemon, int connections, int steps_of_a_batch);
  // Reports for so long. The ledger has every acknowledged step afterwards, or this throws Error.
  ReportRate load(double warm_seconds, double seconds);

 private:
  BenchDaemon& daemon_;
  int steps_;
  std::vector<std::string> runs_, paths_;
  std::vector<int64_t> acknowledged_;  // each run's newest step
  StepBodies bodies_;
};

// Reporters that are loaded once.
ReportRate measure_reports(BenchDaemon& daemon, const ReportLoad& load);

struct ConnectionRate {
  int64_t connections = 0;
  double per_second = 0;
  double daemon_cpu_seconds = 0;
};

// One connection in TLS after another, each with one request.
ConnectionRate measure_tls_connections(BenchDaemon& daemon, double seconds);

}  // namespace gnomon::bench

// Finds the replays that no active verifier can do. The metrics count them, and a notice reports
// them once while it lasts. A replay whose arm none of the run's verifiers knows fails after a
// while, so that what waits for it continues. Thread-safe.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "controller/leases/verifier_registry.h"
#include "controller/metrics/metrics.h"
#include "controller/supervisor/replay_queue.h"

namespace gnomon {

class UnschedulableReplays {
 public:
  // Verifiers come and go; a notice is sent when it has lasted for so long.
  static constexpr double kNotifySeconds = 60;
  // Those that speak have said what they can do.
  static constexpr double kGiveUpSeconds = 10;
  struct Notice {
    int64_t run = 0;
    std::string text;
  };
  struct Look {
    UnschedulableCounts counts;
    std::vector<Notice> notices;        // to be sent now; they are not given again
    std::vector<QueuedReplay> to_fail;  // given again until they are off the queue
  };

  // `now` in seconds of a clock that never jumps.
  Look look(const ReplayQueue& queue, const VerifierRegistry& registry, double now);
  // The notice could not be recorded: returns it again.
  void retry_notice(int64_t run);

 private:
  struct Waiting {
    double since = 0;
    bool notified = false;
  };
  std::mutex mutex_;
  std::map<int64_t, Waiting> waiting_;  // by run
  std::map<ReplayQueue::Key, double> unsupported_since_;
};

}  // namespace gnomon

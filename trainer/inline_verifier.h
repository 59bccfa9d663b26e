// Verification by the trainer itself: at a step boundary it keeps its state in memory, replays a
// window in the arm that the controller asked for, takes its state back and goes on.
#pragma once

#include <spdlog/logger.h>

#include <optional>
#include <string>

#include "protocol/records.h"
#include "trainer/config.h"
#include "trainer/console.h"
#include "trainer/directives.h"
#include "trainer/engine/engine.h"
#include "trainer/inline_leases.h"
#include "trainer/reporter.h"
#include "trainer/shutdown.h"

namespace gnomon {

class InlineVerifier {
 public:
  // The references must outlive it. With `verification.inline` the memory to keep the engine's
  // state in is taken now.
  InlineVerifier(Engine& engine, const TrainerConfig& config, Reporter& reporter,
                 const DirectiveInbox& inbox, Console& console, Shutdown& shutdown);

  // Where the run stands at a step boundary.
  struct Boundary {
    const std::string& weights_hash;
    double run_seconds = 0;  // in steps and between them, without replays
    bool paused = false;
  };
  // Does one replay, if the controller wants one. Returns whether, for the caller to look at
  // directives again.
  bool verify(const Boundary& at);
  // The replays' share of a run that took `train_seconds` in steps, for the log.
  void log_share(double train_seconds) const;

 private:
  bool may_verify(const Boundary& at) const;
  bool has_snapshot_memory(LeaseFailure& failure);
  std::optional<ReplayResult> replay(const Lease& lease, LeaseFailure& failure);
  std::string why_abandon() const;
  void log_replay(const Lease& lease, const std::optional<ReplayResult>& result,
                  const std::string& why_not, double seconds, double run_seconds) const;

  Engine& engine_;
  const VerificationConfig& config_;
  const DirectiveInbox& inbox_;
  Console& console_;
  Shutdown& shutdown_;
  spdlog::logger& log_;
  double seconds_ = 0;   // in replays and around them, but in pauses
  int64_t replays_ = 0;  // completed
  enum class SnapshotMemory { kNotYet, kTaken, kRefused };
  SnapshotMemory snapshot_memory_ = SnapshotMemory::kNotYet;
  std::optional<InlineLeases> leases_;  // begun once the memory is taken
};

}  // namespace gnomon

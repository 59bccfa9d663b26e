// What a run must remember besides its checkpoints: its attempts and where each branched off, the
// last directive applied, the plan in force, whether it is paused. Kept as a small TOML file that
// is replaced as a whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "protocol/records.h"
#include "storage/checkpoint_store.h"

namespace gnomon {

struct AttemptRecord {
  AttemptStart start;
  // The checkpoint it began with; base_attempt 0 for a start from scratch.
  int64_t base_attempt = 0;
  std::string base_checkpoint;
};

// RunState::finished of a run that was told to stop and has not reported its end yet.
inline constexpr const char* kStopping = "stopping";

struct RunState {
  std::vector<AttemptRecord> attempts;  // 1, 2, ... without gaps
  int64_t last_directive = 0;           // applied or rejected
  DirectiveAck last_ack;                // what was answered to it
  int64_t newest_plan_version = 0;      // the highest known
  std::string plan;       // TOML: in force for the next step, whatever a checkpoint says
  std::string base_plan;  // TOML: the file's when the run began; empty: of an older trainer
  bool paused = false;
  std::string finished;       // outcome once the run has ended by itself
  bool checkpointed = false;  // a checkpoint has been on disk
  // The policy's, as the controller last said it; empty: it never did.
  std::string on_loss;
  double grace_seconds = 0;

  // True when the run has had a checkpoint, so that it cannot begin anew.
  bool had_checkpoint() const;
  int64_t attempt() const { return attempts.empty() ? 0 : attempts.back().start.attempt; }

  // Throws ConfigError or SystemError.
  static std::optional<RunState> load(const std::filesystem::path& file);
  void save(const std::filesystem::path& file) const;
};

// The newest checkpoint that leads to where the run was: of the last attempt, else of the ones it
// branched off from, never from a branch that was rolled back. Only intact ones; `skipped` gets a
// sentence for each damaged one. Throws SystemError where one cannot be read now.
std::optional<CheckpointInfo> find_resume_point(const RunState& state, const CheckpointStore& store,
                                                std::vector<std::string>& skipped);

}  // namespace gnomon

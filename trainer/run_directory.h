// What a run has on disk: the lock, run_state.toml, its checkpoints. It brings an engine to where
// the run was.
#pragma once

#include <spdlog/logger.h>

#include <filesystem>
#include <mutex>
#include <optional>
#include <string>

#include "base/errors.h"
#include "base/files.h"
#include "protocol/records.h"
#include "storage/checkpoint_store.h"
#include "trainer/config.h"
#include "trainer/engine/engine.h"
#include "trainer/reporter.h"
#include "trainer/run_state.h"
#include "trainer/shutdown.h"

namespace gnomon {

enum class ResumeMode {
  kAuto,        // go on where the directory's run was, else start
  kMustResume,  // --resume
  kMustStart,   // --new
};

// What an attempt begins with; by default nothing, for a start from scratch.
struct AttemptBase {
  int64_t step = 0;
  int64_t attempt = 0;
  std::string checkpoint = {};
};

class RunDirectory {
 public:
  // Takes the directory. Throws ConfigError before anything is written, Error when another trainer
  // has it. The references must outlive it.
  RunDirectory(const TrainerConfig& config, ResumeMode mode, Shutdown& shutdown,
               spdlog::logger& log);

  RunState& state() { return state_; }
  const std::filesystem::path& path() const { return config_.dir; }
  CheckpointStore& checkpoints() { return *store_; }

  // Loads the newest checkpoint that leads to where the run was, and sets the plan in force;
  // without one the engine is at step 0. Returns the checkpoint's report, but for weights_hash and
  // time. Throws ConfigError when the run had another configuration.
  std::optional<CheckpointReport> restore(Engine& engine) const;
  // True when the run has ended, so that there is nothing to train. Throws ConfigError when it
  // cannot be prolonged.
  bool is_over(ResumeMode mode, int64_t step) const;
  // The checkpoint that this process's newest attempt began with; empty: none. Thread-safe.
  std::string base_checkpoint() const;
  // The run's registration, whose engine has a plan of `plan_version`.
  Standing standing(int64_t plan_version) const;

  // In memory only: for what must reach the disk together with something else.
  void add_attempt(AttemptCause cause, const AttemptBase& base, const Engine& engine);
  // Waits while the disk is full: a directive whose number is not on disk would be applied twice.
  // Throws Interrupted.
  void save(int64_t step);

 private:
  void refuse_other_configuration(const EngineConfig& before,
                                  const std::filesystem::path& checkpoint) const;
  void refuse_other_plan() const;

  const TrainerConfig& config_;
  Shutdown& shutdown_;
  spdlog::logger& log_;
  const std::filesystem::path state_file_;
  FileDescriptor lock_;
  std::optional<CheckpointStore> store_;
  bool must_resume_ = false;
  RunState state_;

  mutable std::mutex base_mutex_;
  std::string base_checkpoint_;
};

}  // namespace gnomon

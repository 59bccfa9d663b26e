// What each directive does, at a step boundary. A directive is applied once: its number is on disk
// before the reporter says that it took effect.
#pragma once

#include <spdlog/logger.h>

#include <string>

#include "protocol/precision_plan.h"
#include "protocol/records.h"
#include "trainer/controller_absence.h"
#include "trainer/controller_link.h"
#include "trainer/engine/engine.h"
#include "trainer/run_checkpoints.h"
#include "trainer/run_directory.h"

namespace gnomon {

class DirectiveHandler {
 public:
  // The references must outlive it.
  DirectiveHandler(Engine& engine, RunDirectory& directory, ControllerLink& link,
                   ControllerAbsence& absence, RunCheckpoints& checkpoints, Shutdown& shutdown,
                   spdlog::logger& log);

  // Applies or rejects it; throws Interrupted where a shutdown came before either. Returns whether
  // the run is to stop. `weights_hash` is that of the engine's weights, which a rollback changes.
  bool apply(const Directive& directive, std::string& weights_hash);
  // Rejects those that are left: nobody will apply them any more, and the controller must not wait
  // for that.
  void reject_open(RunOutcome outcome);

 private:
  void apply_set_plan(const Directive& directive);
  void apply_checkpoint_now(const Directive& directive, const std::string& weights_hash);
  CheckpointInfo wait_for_checkpoint(const std::string& uri) const;
  void apply_rollback(const Directive& directive, std::string& weights_hash);
  PrecisionPlan plan_of(const Directive& directive) const;
  void acknowledge(const Directive& directive, AckState state, int64_t step,
                   const std::string& reason);
  void remember_answer(const Directive& directive, AckState state, int64_t step,
                       const std::string& reason);

  Engine& engine_;
  RunDirectory& directory_;
  RunState& state_;  // the directory's
  ControllerLink& link_;
  ControllerAbsence& absence_;
  RunCheckpoints& checkpoints_;
  Shutdown& shutdown_;
  spdlog::logger& log_;
};

}  // namespace gnomon

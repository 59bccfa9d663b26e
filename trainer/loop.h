// The training loop: steps the engine, reports every step, takes checkpoints, obeys directives at
// step boundaries and ends in order. It never waits for the network.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "trainer/config.h"
#include "trainer/console.h"
#include "trainer/controller_absence.h"
#include "trainer/controller_link.h"
#include "trainer/device_watch.h"
#include "trainer/directive_handler.h"
#include "trainer/engine/engine.h"
#include "trainer/inline_verifier.h"
#include "trainer/run_checkpoints.h"
#include "trainer/run_directory.h"
#include "trainer/run_state.h"
#include "trainer/shutdown.h"

namespace gnomon {

class TrainingLoop {
 public:
  // Takes the engine's memory and checks it against the data, then takes the run directory. Throws
  // ConfigError before anything is written, Error when another trainer has the directory.
  // With `ranks` the engine computes on all of them; this process is rank 0.
  TrainingLoop(TrainerConfig config, ResumeMode mode, Console& console, Shutdown& shutdown,
               EngineRanks* ranks = nullptr);

  // Trains until the last step, a stop directive or a requested shutdown. Returns when reports and
  // checkpoints are safe; false when a shutdown ended it, so that there is more to train.
  bool run();

 private:
  // loop_start.cc
  void begin(ResumeMode mode);
  void report_again();
  void begin_attempt(AttemptCause cause, const AttemptBase& base);
  void print_arenas();

  // loop.cc
  bool boundary();
  void train_one_step();
  void log_mismatch(const StepResult& result);
  void finish(RunOutcome outcome);
  void interrupt();
  std::optional<DeviceHealth> newest_health();
  void show_progress(const StepResult& result, double seconds);
  void log_paused();

  TrainerConfig config_;
  Console& console_;
  Shutdown& shutdown_;
  spdlog::logger& log_;
  Engine engine_;

  std::unique_ptr<StatisticsCollector> statistics_;  // null when off

  RunDirectory directory_;
  RunState& state_;                       // the directory's
  std::optional<CheckpointReport> base_;  // what this process began with; nothing: step 0
  std::string weights_hash_;              // at step()
  const bool over_;  // the run had ended before: there are only reports left to send

  bool stop_ = false;
  double train_seconds_ = 0;
  double overhead_seconds_ = 0;  // between steps, of reports and checkpoints
  double tokens_per_second_ = 0;

  // Threads last: they end before what they use.
  ControllerLink link_;
  ControllerAbsence absence_;
  RunCheckpoints checkpoints_;
  DirectiveHandler directives_;
  std::optional<InlineVerifier> verifier_;  // null unless the trainer verifies
  std::optional<DeviceWatch> watch_;        // of the run's GPU, where one is to be watched
};

}  // namespace gnomon

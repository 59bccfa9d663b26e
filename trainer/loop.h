// The training loop: steps the engine, reports every step, takes checkpoints, obeys directives at
// step boundaries and ends in order. It never waits for the network.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "base/files.h"
#include "base/wall_clock.h"
#include "storage/checkpoint_store.h"
#include "trainer/checkpointer.h"
#include "trainer/config.h"
#include "trainer/console.h"
#include "trainer/controller_link.h"
#include "trainer/device_watch.h"
#include "trainer/engine/engine.h"
#include "trainer/inline_verifier.h"
#include "trainer/run_state.h"
#include "trainer/shutdown.h"

namespace gnomon {

enum class ResumeMode {
  kAuto,        // go on where the directory's run was, else start
  kMustResume,  // --resume
  kMustStart,   // --new
};

class TrainingLoop {
 public:
  // Takes the engine's memory and checks it against the data, then takes the run directory. Throws
  // ConfigError before anything is written, Error when another trainer has the directory.
  // With `ranks` the engine computes on all of them; this process is rank 0.
  TrainingLoop(TrainerConfig config, ResumeMode mode, Console& console, Shutdown& shutdown,
               EngineRanks* ranks = nullptr);
  ~TrainingLoop();

  // Trains until the last step, a stop directive or a requested shutdown. Returns when reports and
  // checkpoints are safe; false when a shutdown ended it, so that there is more to train.
  bool run();

 private:
  // loop.cc
  void train_one_step();
  bool boundary();
  // What to do when the controller is away: the run's file, or else its policy, says.
  struct Absence {
    OnLoss then = OnLoss::kContinue;
    double grace_seconds = 0;
  };
  Absence absence_of_controller() const;
  void check_contact();
  void finish(RunOutcome outcome);
  void take_last_checkpoint();
  void interrupt();
  void print_arenas();
  std::optional<DeviceHealth> newest_health();
  void show_progress(const StepResult& result, double seconds);
  void tell_paused();

  // telling.cc
  Standing standing() const;
  void save_state();
  void checkpoint_written(const CheckpointReport& report);
  void checkpoint_failed(const CheckpointReport& report, const std::string& why);
  std::vector<CheckpointReport> unsent_checkpoints();
  void thin_out_unsent();
  void tell_plan_without_controller();

  // attempts.cc
  void take_directory(ResumeMode mode);
  void start_services();
  void start_fresh();
  void resume(ResumeMode mode);
  bool is_over(ResumeMode mode) const;
  void refuse_other_configuration(const EngineConfig& before,
                                  const std::filesystem::path& checkpoint);
  void begin_attempt(AttemptCause cause, int64_t base_step, int64_t base_attempt,
                     const std::string& base_checkpoint);
  // The same in memory only: for what must reach the disk together with something else.
  void add_attempt(AttemptCause cause, int64_t base_step, int64_t base_attempt,
                   const std::string& base_checkpoint);
  int64_t base_step() const { return state_.attempts.back().start.base_step; }
  void report_again(const std::optional<CheckpointInfo>& base);
  void take_checkpoint();
  bool is_needed(const CheckpointInfo& info);

  // apply_directives.cc
  void apply(const Directive& directive);
  void apply_set_plan(const Directive& directive);
  void apply_rollback(const Directive& directive);
  PrecisionPlan plan_of(const Directive& directive) const;
  void acknowledge(const Directive& directive, AckState state, int64_t step,
                   const std::string& reason);
  void reject_open_directives(RunOutcome outcome);
  void remember_answer(const Directive& directive, AckState state, int64_t step,
                       const std::string& reason);

  TrainerConfig config_;
  Console& console_;
  Shutdown& shutdown_;
  spdlog::logger& log_;
  Engine engine_;

  std::unique_ptr<StatisticsCollector> statistics_;  // null when off

  FileDescriptor lock_;
  std::optional<CheckpointStore> store_;
  std::filesystem::path state_file_;
  RunState state_;
  bool over_ = false;  // the run had ended before: there are only reports left to send

  bool stop_ = false;
  std::optional<PrecisionPlan> plan_before_loss_;  // set while on_loss = "bf16" is acting
  std::string weights_hash_;                       // at step()
  int64_t checkpoint_plan_version_ = 0;            // of the checkpoint that was loaded
  std::pair<int64_t, int64_t> last_checkpoint_{0, -1};
  // For the checkpointer's thread: the failure it reported; unsent ones that retention may delete.
  std::pair<int64_t, int64_t> failed_checkpoint_{0, -1};
  std::set<std::string> thinned_out_;
  double train_seconds_ = 0;
  double overhead_seconds_ = 0;  // between steps, of reports and checkpoints
  double tokens_per_second_ = 0;

  std::mutex base_mutex_;
  std::string base_checkpoint_;  // of this attempt; read by the checkpointer's thread

  // Threads last: they end before what they use.
  std::optional<ControllerLink> link_;
  std::unique_ptr<Checkpointer> checkpointer_;
  std::optional<InlineVerifier> verifier_;  // null unless the trainer verifies
  std::optional<DeviceWatch> watch_;        // of the run's GPU, where one is to be watched
};

// Plan version of steps that ran in BF16 because the controller was away (controller.on_loss =
// "bf16").
inline constexpr int64_t kPlanVersionWithoutController = -1;

}  // namespace gnomon

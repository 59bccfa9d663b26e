// Everything through which the training loop speaks with its controller: the spool and what fills
// it, the reporter that empties it, the directives that come back. Without a controller in the
// configuration nothing is reported and nothing comes.
#pragma once

#include <spdlog/logger.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/records.h"
#include "trainer/config.h"
#include "trainer/directives.h"
#include "trainer/engine/engine.h"
#include "trainer/outbox.h"
#include "trainer/reporter.h"
#include "trainer/shutdown.h"
#include "trainer/spool.h"

namespace gnomon {

class ControllerLink {
 public:
  // Registers the run of `engine`. `over`: the run has ended, there are only reports left to send.
  // The references must outlive it; `shutdown` is requested when another trainer has the run.
  ControllerLink(const TrainerConfig& config, const Engine& engine,
                 const std::filesystem::path& checkpoints, Standing standing, bool over,
                 Shutdown& shutdown, spdlog::logger& log);

  // Where reports wait, in a run's directory.
  static std::filesystem::path spool_of(const std::filesystem::path& directory) {
    return directory / "spool";
  }

  const Contact& contact() const { return contact_; }
  // Null without a controller.
  Reporter* reporter() const { return reporter_.get(); }
  // Null without a controller, and when the run is over: nobody would apply directives.
  DirectiveInbox* inbox() const { return inbox_.get(); }

  // These may wait for room, as Outbox says.
  void report(const StepReport& step);
  void report(const std::string& target, const std::string& body);
  // Never wait.
  void report_statistics(const StepReport& step, const std::vector<StatisticsRow>& rows);
  void notice(TrainerNotice notice);
  void knows(Standing standing);
  // The checkpoints' reports that the controller has not taken yet, oldest first. Thread-safe.
  std::vector<CheckpointReport> unsent_checkpoints() const;

  // Throws Error when another trainer has the run. Nothing is written any more: the directory may
  // be the other one's too.
  void end_if_replaced(int64_t step) const;
  // Waits until every report is in the spool. Throws Interrupted.
  void settle();
  // Waits until the controller has taken everything, `seconds` at most.
  void flush(double seconds);

 private:
  void log_unsent();

  const TrainerConfig& config_;
  spdlog::logger& log_;
  int64_t statistics_dropped_ = 0;  // reports that found no room

  // Threads last: they end before what they use.
  Contact contact_;
  std::optional<Spool> spool_;
  std::optional<Outbox> outbox_;
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<DirectiveInbox> inbox_;
};

}  // namespace gnomon

// The run's checkpoints: taken at step boundaries, reported once they are on disk, kept as long as
// the controller or the attempt needs them.
#pragma once

#include <spdlog/logger.h>

#include <atomic>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "protocol/records.h"
#include "trainer/checkpointer.h"
#include "trainer/controller_link.h"
#include "trainer/engine/engine.h"
#include "trainer/run_directory.h"
#include "trainer/shutdown.h"

namespace gnomon {

class RunCheckpoints {
 public:
  // Beyond what is needed the newest `keep_last` stay. The references must outlive it.
  RunCheckpoints(Engine& engine, RunDirectory& directory, ControllerLink& link, int keep_last,
                 Shutdown& shutdown, spdlog::logger& log);

  // Takes one of the present state, whose weights have `weights_hash`, unless there is one. It is
  // written in the background. Returns false where the attempt began with this state.
  bool write(const std::string& weights_hash);
  // The same, and waits until it is written.
  void write_and_wait(const std::string& weights_hash);
  // The same for what the run was for: waits while the storage does not take it. Throws
  // Interrupted.
  void write_last(const std::string& weights_hash);

  // At a step boundary: from the first checkpoint on the run does not begin anew without one.
  void remember_first();

  int64_t arena_bytes() const { return checkpointer_.arena_bytes(); }
  void log_waits() const;

 private:
  CheckpointerCallbacks callbacks();
  void written(const CheckpointReport& checkpoint);
  void failed(const CheckpointReport& checkpoint, const std::string& why);
  bool is_needed(const CheckpointInfo& info);
  std::vector<CheckpointReport> unsent_reports();
  void thin_out_unsent();

  Engine& engine_;
  RunDirectory& directory_;
  ControllerLink& link_;
  const int keep_last_;
  const int64_t promised_;  // attempts of which a controller was told before
  Shutdown& shutdown_;
  spdlog::logger& log_;
  std::pair<int64_t, int64_t> last_{0, -1};  // attempt and step

  // For the checkpointer's thread: the failure it reported; unsent ones that retention may delete.
  std::pair<int64_t, int64_t> failed_{0, -1};
  std::set<std::pair<int64_t, int64_t>> thinned_out_;
  std::atomic<bool> on_disk_ = false;

  Checkpointer checkpointer_;  // last: its thread ends before what it uses
};

}  // namespace gnomon

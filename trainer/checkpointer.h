// Writes checkpoints in the background. At a step boundary the state is copied into an arena of the
// host that was taken at start; where it lies on a device, beside the steps that follow. A thread
// writes the copy, reports the checkpoint and deletes old ones that nobody needs.
#pragma once

#include <spdlog/logger.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/memory.h"
#include "protocol/records.h"
#include "storage/checkpoint_store.h"

namespace gnomon {

struct CheckpointerCallbacks {
  // The checkpoint is complete on disk. Called on the writing thread before retention.
  std::function<void(const CheckpointReport&)> written;
  // It could not be written; `why` is the error. Called on the writing thread, or by begin().
  std::function<void(const CheckpointReport&, const std::string& why)> failed;
  // Old checkpoints are about to be deleted. Called on the writing thread, may be empty.
  std::function<void()> before_retention = {};
  // True when a checkpoint beyond the newest keep_last must stay.
  std::function<bool(const CheckpointInfo&)> needed;
};

class Checkpointer {
 public:
  // `like` gives the arena's size; the tensors of contents lie in `memory`. The references must
  // outlive the checkpointer.
  Checkpointer(CheckpointStore& store, const CheckpointContent& like, Memory& memory, int keep_last,
               CheckpointerCallbacks callbacks, spdlog::logger& log);
  // Waits for the write in progress.
  ~Checkpointer();

  int64_t arena_bytes() const { return arena_ ? arena_->bytes() : 0; }

  // Copies `content`, or starts to, and to write it under (attempt, step). If the write before is
  // still going on, waits for it first. `report` carries attempt, step, plan_version and
  // weights_hash; the rest is filled in.
  void begin(const CheckpointContent& content, const CheckpointReport& report);

  // Waits until nothing is being written. Throws the error of the last write if it failed.
  void drain();
  // True when the last one that ended could not be written.
  bool failed() const;

  int64_t waits() const { return waits_; }  // how often begin() had to wait
  double wait_seconds() const { return wait_seconds_; }

 private:
  void run();
  void write();
  void fail(const std::string& why);
  CheckpointInfo store();
  size_t retain();
  void copy(const CheckpointContent& content);

  CheckpointStore& store_;
  const int keep_last_;
  CheckpointerCallbacks callbacks_;
  spdlog::logger& log_;
  Memory& memory_;
  std::unique_ptr<HostRoom> arena_;
  std::unique_ptr<CopyOut> copying_;
  CheckpointContent snapshot_;
  CheckpointReport report_;
  int64_t waits_ = 0;
  double wait_seconds_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool writing_ = false;
  bool stopping_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace gnomon

// What the loop tells the controller besides its steps, and what it keeps on disk of itself.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "protocol/json.h"
#include "protocol/text.h"
#include "trainer/loop.h"
#include "trainer/unsent_checkpoints.h"

namespace gnomon {
namespace {

bool is_disk_full(const SystemError& error) {
  const int number = error.error_number();
  return number == ENOSPC || number == EDQUOT || number == EFBIG;
}

}  // namespace

Standing TrainingLoop::standing() const {
  Standing standing;
  for (const AttemptRecord& record : state_.attempts) standing.attempts.push_back(record.start);
  standing.last_directive = state_.last_directive;
  standing.newest_plan_version = std::max(state_.newest_plan_version, engine_.plan().version);
  return standing;
}

// Waits while the disk is full: a directive whose number is not on disk would be applied twice.
void TrainingLoop::save_state() {
  constexpr std::chrono::milliseconds kRetry(500);
  while (true) {
    try {
      return state_.save(state_file_);
    } catch (const SystemError& error) {
      if (!is_disk_full(error)) throw;
      log_.error("TRAINING WAITS at step {} for room on the disk: {}", engine_.step(),
                 error.what());
      if (shutdown_.wait_for(kRetry)) throw;
    }
  }
}

// On the checkpointer's thread, like checkpoint_failed().
void TrainingLoop::checkpoint_written(const CheckpointReport& checkpoint) {
  try {
    link_->report("checkpoints", to_json(checkpoint));
  } catch (const Error& error) {
    log_.warn("the checkpoint of step {} is on disk but not reported: {}", checkpoint.step,
              error.what());
  }
  if (link_->reporter() != nullptr) thin_out_unsent();
}

// Without the base of the attempt and the newest keep_last, which stay anyway; oldest first.
std::vector<CheckpointReport> TrainingLoop::unsent_checkpoints() {
  std::string base;
  {
    std::lock_guard lock(base_mutex_);
    base = base_checkpoint_;
  }
  std::vector<CheckpointReport> unsent;
  for (CheckpointReport& report : link_->unsent_checkpoints()) {
    const bool there = report.uri != base && !thinned_out_.contains(report.uri) &&
                       std::filesystem::exists(report.uri);
    if (there) unsent.push_back(std::move(report));
  }
  unsent.resize(unsent.size() - std::min(unsent.size(), static_cast<size_t>(config_.keep_last)));
  return unsent;
}

// The controller is away: what retention keeps for it must not fill the storage. All of it together
// takes no more than it leaves free.
void TrainingLoop::thin_out_unsent() {
  const std::vector<CheckpointReport> unsent = unsent_checkpoints();
  std::vector<UnsentCheckpoint> sizes;
  int64_t all = 0;
  for (const CheckpointReport& report : unsent) {
    sizes.push_back({report.step, report.bytes});
    all += report.bytes;
  }
  std::error_code error;
  const auto space = std::filesystem::space(store_->root(), error);
  UnsentBounds bounds;
  bounds.bytes_max = error ? all : (all + static_cast<int64_t>(space.available)) / 2;
  const std::vector<size_t> deleted = unsent_to_delete(sizes, bounds);
  if (deleted.empty()) return;
  int64_t freed = 0;
  for (const size_t i : deleted) {
    thinned_out_.insert(unsent[i].uri);
    freed += sizes[i].bytes;
  }
  const CheckpointReport& newest = unsent[deleted.back()];
  const std::string text = fmt::format(
      "{} checkpoints of steps {} to {} ({:.1f} MB) were deleted before they were reported: the "
      "controller is away, and no more than {} and half of the free space are kept for it",
      deleted.size(), unsent[deleted.front()].step, newest.step, static_cast<double>(freed) / 1e6,
      bounds.count_max);
  log_.warn("{}", text);
  TrainerNotice notice;
  notice.attempt = newest.attempt;
  notice.step = newest.step;
  notice.kind = "reports_dropped";
  notice.text = text;
  notice.time = now_seconds();
  link_->notice(notice);
}

void TrainingLoop::checkpoint_failed(const CheckpointReport& checkpoint, const std::string& why) {
  const std::pair<int64_t, int64_t> id{checkpoint.attempt, checkpoint.step};
  // The run's last checkpoint is tried again and again; once told is enough.
  if (link_->reporter() == nullptr || failed_checkpoint_ == id) return;
  failed_checkpoint_ = id;
  TrainerNotice notice;
  notice.attempt = checkpoint.attempt;
  notice.step = checkpoint.step;
  notice.kind = "checkpoint_failed";
  notice.text = shortened(
      fmt::format("the checkpoint of step {} could not be written: {}", checkpoint.step, why),
      rules::kSentence);
  try {
    link_->notice(notice);
  } catch (const Error& error) {
    log_.warn("the failure is not reported: {}", error.what());
  }
}

void TrainingLoop::tell_plan_without_controller() {
  TrainerNotice notice;
  notice.attempt = state_.attempt();
  notice.step = engine_.step();
  notice.kind = "plan_without_controller";
  notice.text = fmt::format(
      "no controller: every GEMM in BF16 from step {} on (controller.on_loss = \"bf16\")",
      engine_.step() + 1);
  notice.plan = engine_.plan().to_toml();
  notice.plan_version = engine_.plan().version;
  link_->notice(notice);
}

}  // namespace gnomon

// What the loop tells the controller besides its steps, and what it keeps on disk of itself.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "protocol/json.h"
#include "protocol/text.h"
#include "trainer/loop.h"
#include "trainer/unsent_checkpoints.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

bool is_disk_full(const SystemError& error) {
  const int number = error.error_number();
  return number == ENOSPC || number == EDQUOT || number == EFBIG;
}

}  // namespace

void TrainingLoop::report(const std::string& target, const std::string& body) {
  if (outbox_) outbox_->record(target, body);
}

// In parts that the controller takes and the spool has room for. Nothing rests on them, so they
// never make the run wait.
void TrainingLoop::report_statistics(const StepReport& step) {
  if (!outbox_) return;
  constexpr size_t kRowsMax = 256;
  const std::vector<StatisticsRow>& rows = statistics_->rows();
  for (size_t begin = 0; begin < rows.size(); begin += kRowsMax) {
    StatisticsReport part;
    part.attempt = step.attempt;
    part.step = step.step;
    part.plan_version = step.plan_version;
    part.time = step.time;
    const size_t end = std::min(begin + kRowsMax, rows.size());
    part.rows.assign(rows.begin() + static_cast<std::ptrdiff_t>(begin),
                     rows.begin() + static_cast<std::ptrdiff_t>(end));
    if (outbox_->offer("statistics", to_json(part))) continue;
    if (statistics_dropped_++ == 0) {
      log_.warn("step {}: no room in the spool for tensor statistics; what finds none is dropped",
                step.step);
    }
  }
}

std::optional<DeviceHealth> TrainingLoop::newest_health() {
  if (!watch_) return std::nullopt;
  DeviceWatch::News news = watch_->take();
  if (!news.trouble.empty()) log_.warn("{}", news.trouble);
  return std::move(news.health);
}

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
    report("checkpoints", to_json(checkpoint));
  } catch (const Error& error) {
    log_.warn("the checkpoint of step {} is on disk but not reported: {}", checkpoint.step,
              error.what());
  }
  if (outbox_) thin_out_unsent();
}

// Without the base of the attempt and the newest keep_last, which stay anyway; oldest first.
std::vector<CheckpointReport> TrainingLoop::unsent_checkpoints() {
  std::string base;
  {
    std::lock_guard lock(base_mutex_);
    base = base_checkpoint_;
  }
  std::vector<CheckpointReport> unsent;
  for (const std::string& body : outbox_->pending("checkpoints")) {
    auto report = from_json<CheckpointReport>(body);
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
  outbox_->notice(notice);
}

void TrainingLoop::checkpoint_failed(const CheckpointReport& checkpoint, const std::string& why) {
  const std::pair<int64_t, int64_t> id{checkpoint.attempt, checkpoint.step};
  // The run's last checkpoint is tried again and again; once told is enough.
  if (!outbox_ || failed_checkpoint_ == id) return;
  failed_checkpoint_ = id;
  TrainerNotice notice;
  notice.attempt = checkpoint.attempt;
  notice.step = checkpoint.step;
  notice.kind = "checkpoint_failed";
  notice.text = shortened(
      fmt::format("the checkpoint of step {} could not be written: {}", checkpoint.step, why),
      rules::kSentence);
  try {
    outbox_->notice(notice);
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
  outbox_->notice(notice);
}

// Nobody will apply them any more, and the controller must not wait for that.
void TrainingLoop::reject_open_directives(RunOutcome outcome) {
  if (!inbox_) return;
  for (const Directive& directive : inbox_->close()) {
    const std::string reason =
        fmt::format("the run has {}", outcome == "completed" ? "completed" : "stopped");
    log_.warn("directive {} {} is rejected: {}", directive.number, directive.kind, reason);
    acknowledge(directive, "rejected", engine_.step(), reason);
  }
}

void TrainingLoop::flush(double seconds) {
  if (!spool_) return;
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  constexpr std::chrono::milliseconds kStep(50);
  while (Clock::now() < deadline && !reporter_->replaced()) {
    if (!outbox_->store_kept()) {
      std::this_thread::sleep_for(kStep);
    } else if (spool_->wait_until_empty(kStep)) {
      break;
    }
  }
  if (!outbox_->store_kept()) {
    log_.error(
        "there was no room for the last reports; the next start sends the attempts and the last "
        "checkpoint again");
  }
  if (!spool_->empty()) {
    spool_->sync();
    log_.warn("{} reports are not delivered yet; start the trainer again on {} to send them",
              spool_->records(), config_.dir.string());
  }
  if (outbox_->steps_dropped() > 0)
    log_.error("{} step reports were dropped (see above)", outbox_->steps_dropped());
  if (reporter_->refused() > 0) {
    log_.error("the controller refused {} reports (see above); they are in {}",
               reporter_->refused(), (spool_->directory() / "refused.jsonl").string());
  }
}

}  // namespace gnomon

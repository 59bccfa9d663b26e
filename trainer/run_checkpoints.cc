#include "trainer/run_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/wall_clock.h"
#include "protocol/json.h"
#include "protocol/text.h"
#include "trainer/unsent_checkpoints.h"

namespace gnomon {

RunCheckpoints::RunCheckpoints(Engine& engine, RunDirectory& directory, ControllerLink& link,
                               int keep_last, Shutdown& shutdown, spdlog::logger& log)
    : engine_(engine),
      directory_(directory),
      link_(link),
      keep_last_(keep_last),
      shutdown_(shutdown),
      log_(log),
      checkpointer_(directory.checkpoints(), engine.checkpoint_in_place(), engine.memory(),
                    keep_last, callbacks(), log) {}

CheckpointerCallbacks RunCheckpoints::callbacks() {
  CheckpointerCallbacks calls;
  calls.written = [this](const CheckpointReport& report) { written(report); };
  calls.failed = [this](const CheckpointReport& report, const std::string& why) {
    failed(report, why);
  };
  calls.before_retention = [this] {
    if (link_.reporter() != nullptr) thin_out_unsent();
  };
  calls.needed = [this](const CheckpointInfo& info) { return is_needed(info); };
  return calls;
}

void RunCheckpoints::write(const std::string& weights_hash) {
  const RunState& state = directory_.state();
  const std::pair<int64_t, int64_t> id{state.attempt(), engine_.step()};
  if (last_ == id ||
      (state.attempts.back().start.base_step == id.second && !directory_.base_checkpoint().empty()))
    return;
  last_ = id;
  CheckpointReport report;
  report.attempt = id.first;
  report.step = id.second;
  report.plan_version = engine_.plan().version;
  report.weights_hash = weights_hash;
  checkpointer_.begin(engine_.checkpoint_in_place(), report);
}

void RunCheckpoints::write_and_wait(const std::string& weights_hash) {
  write(weights_hash);
  checkpointer_.drain();
}

void RunCheckpoints::write_last(const std::string& weights_hash) {
  constexpr std::chrono::milliseconds kRetry(500);
  while (true) {
    try {
      return write_and_wait(weights_hash);
    } catch (const SystemError& error) {
      if (!error.disk_full()) throw;
      last_ = {0, -1};
      log_.error("the run's last checkpoint WAITS for room on the disk: {}", error.what());
      if (shutdown_.wait_for(kRetry)) throw;
    }
  }
}

void RunCheckpoints::log_waits() const {
  if (checkpointer_.waits() == 0) return;
  log_.warn("steps waited {} times for a checkpoint, {:.1f} s in all", checkpointer_.waits(),
            checkpointer_.wait_seconds());
}

// Beyond the newest keep_last. On the checkpointer's thread.
bool RunCheckpoints::is_needed(const CheckpointInfo& info) {
  const std::string uri = info.path.string();
  if (uri == directory_.base_checkpoint()) return true;
  if (link_.reporter() == nullptr) return false;
  // The unsent ones first: a report that is answered meanwhile is then in the answer's list.
  const std::vector<CheckpointReport> unsent = link_.unsent_checkpoints();
  const bool unknown_yet =
      std::any_of(unsent.begin(), unsent.end(),
                  [&uri](const CheckpointReport& report) { return report.uri == uri; });
  if (unknown_yet) return !thinned_out_.contains(uri);
  const auto wanted = link_.reporter()->protected_checkpoints();
  return !wanted || std::find(wanted->begin(), wanted->end(), uri) != wanted->end();
}

// On the checkpointer's thread, like failed().
void RunCheckpoints::written(const CheckpointReport& checkpoint) {
  try {
    link_.report("checkpoints", to_json(checkpoint));
  } catch (const Error& error) {
    log_.warn("the checkpoint of step {} is on disk but not reported: {}", checkpoint.step,
              error.what());
  }
}

// Without the base of the attempt and the newest keep_last, which stay anyway; oldest first.
std::vector<CheckpointReport> RunCheckpoints::unsent_reports() {
  const std::string base = directory_.base_checkpoint();
  std::vector<CheckpointReport> unsent;
  for (CheckpointReport& report : link_.unsent_checkpoints()) {
    std::error_code error;  // what cannot be looked at now may be there
    const bool there = report.uri != base && !thinned_out_.contains(report.uri) &&
                       (std::filesystem::exists(report.uri, error) || error);
    if (there) unsent.push_back(std::move(report));
  }
  unsent.resize(unsent.size() - std::min(unsent.size(), static_cast<size_t>(keep_last_)));
  return unsent;
}

// The controller is away: what retention keeps for it must not fill the storage. All of it together
// takes no more than it leaves free.
void RunCheckpoints::thin_out_unsent() {
  const std::vector<CheckpointReport> unsent = unsent_reports();
  std::vector<UnsentCheckpoint> sizes;
  int64_t all = 0;
  for (const CheckpointReport& report : unsent) {
    sizes.push_back({report.step, report.bytes});
    all += report.bytes;
  }
  std::error_code error;
  const auto space = std::filesystem::space(directory_.checkpoints().root(), error);
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
  link_.notice(notice);
}

void RunCheckpoints::failed(const CheckpointReport& checkpoint, const std::string& why) {
  const std::pair<int64_t, int64_t> id{checkpoint.attempt, checkpoint.step};
  // The run's last checkpoint is tried again and again; one notice is enough.
  if (link_.reporter() == nullptr || failed_ == id) return;
  failed_ = id;
  TrainerNotice notice;
  notice.attempt = checkpoint.attempt;
  notice.step = checkpoint.step;
  notice.kind = "checkpoint_failed";
  notice.text = shortened(
      fmt::format("the checkpoint of step {} could not be written: {}", checkpoint.step, why),
      rules::kSentence);
  try {
    link_.notice(notice);
  } catch (const Error& error) {
    log_.warn("the failure is not reported: {}", error.what());
  }
}

}  // namespace gnomon

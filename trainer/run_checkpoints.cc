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
namespace {

using CheckpointId = std::pair<int64_t, int64_t>;  // attempt and step

CheckpointId id_of(const CheckpointReport& report) { return {report.attempt, report.step}; }

}  // namespace

RunCheckpoints::RunCheckpoints(Engine& engine, RunDirectory& directory, ControllerLink& link,
                               int keep_last, Shutdown& shutdown, spdlog::logger& log)
    : engine_(engine),
      directory_(directory),
      link_(link),
      keep_last_(keep_last),
      promised_(std::filesystem::exists(ControllerLink::spool_of(directory.path()))
                    ? directory.state().attempt()
                    : 0),
      shutdown_(shutdown),
      log_(log),
      checkpointer_(directory.checkpoints(), engine.checkpoint_in_place(), engine.memory(),
                    keep_last, callbacks(), log) {
  if (link_.reporter() != nullptr || promised_ == 0) return;
  log_.warn(
      "no controller: checkpoints of attempts 1 to {} stay, since one may want them; without "
      "{} they are forgotten",
      promised_, ControllerLink::spool_of(directory.path()).string());
}

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

bool RunCheckpoints::write(const std::string& weights_hash) {
  const RunState& state = directory_.state();
  const std::pair<int64_t, int64_t> id{state.attempt(), engine_.step()};
  if (state.attempts.back().start.base_step == id.second && !directory_.base_checkpoint().empty())
    return false;
  if (last_ == id && !checkpointer_.failed()) return true;
  last_ = id;
  CheckpointReport report;
  report.attempt = id.first;
  report.step = id.second;
  report.plan_version = engine_.plan().version;
  report.weights_hash = weights_hash;
  checkpointer_.begin(engine_.checkpoint_in_place(), report);
  return true;
}

void RunCheckpoints::write_and_wait(const std::string& weights_hash) {
  if (!write(weights_hash)) return;
  checkpointer_.drain();
  remember_first();
}

void RunCheckpoints::write_last(const std::string& weights_hash) {
  constexpr std::chrono::milliseconds kRetry(500);
  while (true) {
    try {
      return write_and_wait(weights_hash);
    } catch (const SystemError& error) {
      log_.error("the run's last checkpoint WAITS{}: {}",
                 error.disk_full() ? " for room on the disk" : "", error.what());
      if (shutdown_.wait_for(kRetry)) throw Interrupted(error.what());
    }
  }
}

void RunCheckpoints::remember_first() {
  RunState& state = directory_.state();
  if (state.checkpointed || !on_disk_) return;
  state.checkpointed = true;
  directory_.save(engine_.step());
}

void RunCheckpoints::log_waits() const {
  if (checkpointer_.waits() == 0) return;
  log_.warn("steps waited {} times for a checkpoint, {:.1f} s in all", checkpointer_.waits(),
            checkpointer_.wait_seconds());
}

// Beyond the newest keep_last. On the checkpointer's thread.
bool RunCheckpoints::is_needed(const CheckpointInfo& info) {
  const CheckpointId id{info.attempt, info.step};
  if (id == checkpoint_id(directory_.base_checkpoint())) return true;
  if (link_.reporter() == nullptr) return info.attempt <= promised_;
  // The unsent ones first: a report that is answered meanwhile is then in the answer's list.
  const std::vector<CheckpointReport> unsent = link_.unsent_checkpoints();
  const bool unknown_yet = std::ranges::any_of(
      unsent, [&id](const CheckpointReport& report) { return id_of(report) == id; });
  if (unknown_yet) return !thinned_out_.contains(id);
  const auto wanted = link_.reporter()->protected_checkpoints();
  return !wanted || std::ranges::any_of(*wanted, [&id](const std::string& uri) {
    return checkpoint_id(uri) == id;
  });
}

// On the checkpointer's thread, like failed().
void RunCheckpoints::written(const CheckpointReport& checkpoint) {
  on_disk_ = true;
  try {
    link_.report("checkpoints", to_json(checkpoint));
  } catch (const Error& error) {
    log_.warn("the checkpoint of step {} is on disk but not reported: {}", checkpoint.step,
              error.what());
  }
}

// Without the base of the attempt and the newest keep_last, which stay anyway; oldest first.
std::vector<CheckpointReport> RunCheckpoints::unsent_reports() {
  const CheckpointId base = checkpoint_id(directory_.base_checkpoint());
  std::vector<CheckpointReport> unsent;
  for (CheckpointReport& report : link_.unsent_checkpoints()) {
    std::error_code error;  // what cannot be looked at now may be there
    const bool there = id_of(report) != base && !thinned_out_.contains(id_of(report)) &&
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
    thinned_out_.insert(id_of(unsent[i]));
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

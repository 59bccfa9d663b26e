#include "trainer/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>

#include "base/host.h"
#include "base/wall_clock.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;

FileDescriptor acquire_lock(const fs::path& path) {
  FileDescriptor lock = FileDescriptor::open(path, O_RDWR | O_CREAT);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) throw SystemError("lock", path.string(), errno);
    throw Error(fmt::format(
        "another gnomon-trainer is running in {}; expected a directory of its own for each run",
        path.parent_path().string()));
  }
  return lock;
}

template <typename T>
std::string setting_text(const T& value, const Setting& setting) {
  if constexpr (std::is_enum_v<T>)
    return toml_quoted(setting.words[static_cast<size_t>(value)]);
  else
    return fmt::format("{}", value);
}

CheckpointReport report_of_checkpoint(const CheckpointInfo& info, int64_t plan_version) {
  CheckpointReport report;
  report.attempt = info.attempt;
  report.step = info.step;
  report.uri = info.path.string();
  report.plan_version = plan_version;
  report.bytes = info.bytes;
  report.manifest_hash = info.manifest_hash;
  return report;
}

}  // namespace

RunDirectory::RunDirectory(const TrainerConfig& config, ResumeMode mode, Shutdown& shutdown,
                           spdlog::logger& log)
    : config_(config), shutdown_(shutdown), log_(log), state_file_(config.dir / "run_state.toml") {
  const bool exists = fs::exists(state_file_);
  if (mode == ResumeMode::kMustResume && !exists) {
    throw ConfigError("", 0, "--resume", config_.dir.string(),
                      "a directory in which a run was begun");
  }
  if (mode == ResumeMode::kMustStart && exists) {
    throw ConfigError("", 0, "--new", config_.dir.string(),
                      "a directory without a run (or leave --new out to go on)");
  }
  std::error_code error;
  fs::create_directories(config_.dir, error);
  if (error) throw SystemError("create", config_.dir.string(), error.value());
  lock_ = acquire_lock(config_.dir / "lock");
  store_.emplace(config_.dir / "checkpoints");
  if (auto state = RunState::load(state_file_)) {
    state_ = std::move(*state);
  } else if (!store_->list().empty()) {
    throw ConfigError("", 0, "run.dir", config_.dir.string(),
                      fmt::format("a directory without checkpoints of another run, as {} has them; "
                                  "its run_state.toml is gone",
                                  store_->root().string()));
  }
  must_resume_ = mode == ResumeMode::kMustResume;
}

std::optional<CheckpointReport> RunDirectory::restore(Engine& engine) const {
  for (const Fault& fault : config_.engine.faults)
    log_.warn("fault switched on: {}", fault.describe());
  if (state_.attempts.empty()) {
    engine.initialize();
    return std::nullopt;
  }
  std::vector<std::string> skipped;
  const std::optional<CheckpointInfo> base = find_resume_point(state_, *store_, skipped);
  for (const std::string& reason : skipped)
    log_.error("a checkpoint is damaged and passed over: {}", reason);
  refuse_other_plan();
  std::optional<CheckpointReport> report;
  if (base) {
    refuse_other_configuration(read_engine_config(base->path), base->path);
    engine.load(base->path);
    report = report_of_checkpoint(*base, engine.plan().version);
  } else {
    // A crash may have come before the first one was written.
    if (must_resume_ || !skipped.empty() || state_.had_checkpoint())
      throw Error(
          fmt::format("no intact checkpoint is left in {}: bring one back (is its storage "
                      "mounted?), or begin another run in another run.dir",
                      store_->root().string()));
    log_.warn("no checkpoint in {}: starting from step 0", store_->root().string());
    engine.initialize();
  }
  // The plan in force last: the checkpoint may be older than the directive that set it.
  if (!state_.plan.empty() && state_.plan != engine.plan().to_toml()) {
    engine.set_plan(PrecisionPlan::parse(state_.plan, state_file_.string()));
  }
  return report;
}

// A replay takes the configuration from the checkpoint, so a run that went on with another one
// could not be verified.
void RunDirectory::refuse_other_configuration(const EngineConfig& before,
                                              const fs::path& checkpoint) const {
  const EngineConfig& now = config_.engine;
  const auto refuse = [&](const std::string& key, const std::string& value,
                          const std::string& accepted) {
    const auto line = config_.lines.find(key);
    throw ConfigError(config_.file, line == config_.lines.end() ? 0 : line->second, key, value,
                      fmt::format("{}, as in {} (or another run.dir for a new run)", accepted,
                                  checkpoint.string()));
  };
  if (now.model != before.model) refuse("model", "another shape", "the model's shape");
  if (now.compute != before.compute)
    refuse("model.compute", compute_name(now.compute), compute_name(before.compute));
  if (now.seed != before.seed)
    refuse("run.seed", std::to_string(now.seed), std::to_string(before.seed));
  const auto refuse_first_difference = [&](const std::string& table, const auto& now_has,
                                           const auto& had) {
    std::remove_cvref_t<decltype(had)>::describe(
        [&](const std::string& key, auto member, const Setting& setting) {
          if (now_has.*member == had.*member) return;
          const bool follows = key == "total_steps";
          refuse(table + "." + key, setting_text(now_has.*member, setting),
                 setting_text(had.*member, setting) +
                     (follows ? " (where the file has none, what run.steps was)" : ""));
        });
  };
  refuse_first_difference("batch", now.batch, before.batch);
  refuse_first_difference("optimizer", now.optimizer, before.optimizer);
  if (now.heldout_sequences != before.heldout_sequences) {
    refuse("eval.sequences", std::to_string(now.heldout_sequences),
           std::to_string(before.heldout_sequences));
  }
  if (now.data != before.data)
    log_.warn("the data was at {}, now at {}: it must be the same data", before.data, now.data);
  if (now.memory.head_rows != before.memory.head_rows) {
    refuse("memory.head_rows", std::to_string(now.memory.head_rows),
           std::to_string(before.memory.head_rows));
  }
  if (now.device != before.device) {
    log_.warn("on {}, before on {}: replays across this point will not reproduce bits",
              device_name(now.device), device_name(before.device));
  }
  if (now.threads != before.threads) {
    log_.warn("{} threads, before {}: replays across this point will not reproduce bits",
              now.threads, before.threads);
  }
}

// The plan in force is the state's, so that another one in the file would change nothing.
void RunDirectory::refuse_other_plan() const {
  if (state_.base_plan.empty() ||
      PrecisionPlan::parse(state_.base_plan, state_file_.string()).to_toml() ==
          config_.file_plan.to_toml()) {
    return;
  }
  throw ConfigError(config_.file, config_.lines.at("precision"), "precision", "another plan",
                    fmt::format("the plan with which the run in {} began: its controller changes "
                                "it (gnomon override RUN set_plan), or another run.dir begins a "
                                "new run",
                                config_.dir.string()));
}

bool RunDirectory::is_over(ResumeMode mode, int64_t step) const {
  if (state_.finished.empty() || state_.finished == kStopping) return false;
  if (state_.finished == "stopped" && mode == ResumeMode::kMustResume) return false;
  if (state_.finished == "stopped") {
    log_.info("this run was stopped by a directive at step {}; start with --resume to go on", step);
    return true;
  }
  if (step >= config_.steps) {
    log_.info("this run is completed at step {}", step);
    return true;
  }
  if (config_.controller.url.empty()) return false;
  throw ConfigError(
      config_.file, config_.lines.at("run.job_id"), "run.job_id", config_.job_id,
      fmt::format("another job_id and directory: this run was completed at step {}", step));
}

std::string RunDirectory::base_checkpoint() const {
  std::lock_guard lock(base_mutex_);
  return base_checkpoint_;
}

Standing RunDirectory::standing(int64_t plan_version) const {
  Standing standing;
  for (const AttemptRecord& record : state_.attempts) standing.attempts.push_back(record.start);
  standing.last_directive = state_.last_directive;
  standing.newest_plan_version = std::max(state_.newest_plan_version, plan_version);
  return standing;
}

void RunDirectory::add_attempt(AttemptCause cause, const AttemptBase& base, const Engine& engine) {
  AttemptRecord record;
  record.start = {state_.attempt() + 1, base.step,  cause, engine.plan().version, now_seconds(),
                  engine.fingerprint(), host_name()};
  record.base_attempt = base.attempt;
  record.base_checkpoint = base.checkpoint;
  {
    std::lock_guard lock(base_mutex_);
    base_checkpoint_ = base.checkpoint;
  }
  if (state_.attempts.empty()) state_.base_plan = config_.file_plan.to_toml();
  state_.attempts.push_back(record);
  state_.plan = engine.plan().to_toml();
}

void RunDirectory::save(int64_t step) {
  constexpr std::chrono::milliseconds kRetry(500);
  while (true) {
    try {
      return state_.save(state_file_);
    } catch (const SystemError& error) {
      if (!error.disk_full()) throw;
      log_.error("TRAINING WAITS at step {} for room on the disk: {}", step, error.what());
      if (shutdown_.wait_for(kRetry)) throw Interrupted(error.what());
    }
  }
}

}  // namespace gnomon

// How attempts begin (start, restart) and the checkpoints they rest on.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>

#include "base/hash.h"
#include "base/host.h"
#include "protocol/json.h"
#include "trainer/engine/fingerprint.h"
#include "trainer/loop.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;

FileDescriptor take_lock(const fs::path& path) {
  FileDescriptor lock = FileDescriptor::open(path, O_RDWR | O_CREAT);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) throw SystemError("lock", path.string(), errno);
    throw Error(fmt::format(
        "another gnomon-trainer is running in {}; expected a directory of its own for each run",
        path.parent_path().string()));
  }
  return lock;
}

}  // namespace

void TrainingLoop::take_directory(ResumeMode mode) {
  state_file_ = config_.dir / "run_state.toml";
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
  lock_ = take_lock(config_.dir / "lock");
  store_.emplace(config_.dir / "checkpoints");
  if (auto state = RunState::load(state_file_)) state_ = std::move(*state);
  for (const Fault& fault : config_.engine.faults)
    log_.warn("fault switched on: {}", fault.describe());
  if (state_.attempts.empty()) {
    start_fresh();
  } else {
    resume(mode);
  }
}

void TrainingLoop::start_services() {
  link_.emplace(config_, engine_, store_->root(), standing(), over_, shutdown_, log_);
  CheckpointerCallbacks callbacks;
  callbacks.written = [this](const CheckpointReport& report) { checkpoint_written(report); };
  callbacks.failed = [this](const CheckpointReport& report, const std::string& why) {
    checkpoint_failed(report, why);
  };
  callbacks.needed = [this](const CheckpointInfo& info) { return is_needed(info); };
  checkpointer_ =
      std::make_unique<Checkpointer>(*store_, engine_.checkpoint_in_place(), engine_.memory(),
                                     config_.keep_last, std::move(callbacks), log_);
  const VerificationConfig& verification = config_.verification;
  if (link_->inbox() != nullptr && (verification.by_trainer || verification.confirms)) {
    verifier_.emplace(engine_, config_, *link_->reporter(), *link_->inbox(), console_, shutdown_);
  }
  if (config_.watch_gpu.empty()) config_.watch_gpu = device_bus_id(config_.engine.device);
  if (link_->inbox() != nullptr && !config_.watch_gpu.empty())
    watch_.emplace(DeviceWatchOptions{config_.watch_gpu});
  const std::string differences = differences_of_ranks(engine_.fingerprint());
  if (!differences.empty()) log_.warn("{}", differences);
  engine_.prepare();
  print_arenas();
}

void TrainingLoop::start_fresh() {
  engine_.initialize();
  weights_hash_ = hex64(engine_.weights_hash());
  start_services();
  log_.info("run {}/{}: {} parameters, {} steps of {} tokens, in {}", config_.name, config_.job_id,
            config_.engine.model.parameters(), config_.steps,
            config_.engine.batch.tokens_per_step(), config_.dir.string());
  begin_attempt("start", 0, 0, "");
  take_checkpoint();
}

// True when the run has ended, so that there is nothing to train. Throws ConfigError when it cannot
// be prolonged.
bool TrainingLoop::is_over(ResumeMode mode) const {
  if (state_.finished.empty()) return false;
  if (state_.finished == "stopped" && mode == ResumeMode::kMustResume) return false;
  if (state_.finished == "stopped") {
    log_.info("this run was stopped by a directive at step {}; start with --resume to go on",
              engine_.step());
    return true;
  }
  if (engine_.step() >= config_.steps) {
    log_.info("this run is completed at step {}", engine_.step());
    return true;
  }
  if (config_.controller.url.empty()) return false;
  throw ConfigError(config_.file, config_.lines.at("run.job_id"), "run.job_id", config_.job_id,
                    fmt::format("another job_id and directory: this run was completed at step {}",
                                engine_.step()));
}

void TrainingLoop::resume(ResumeMode mode) {
  std::vector<std::string> skipped;
  const std::optional<CheckpointInfo> base = find_resume_point(state_, *store_, skipped);
  for (const std::string& reason : skipped)
    log_.error("a checkpoint is damaged and passed over: {}", reason);
  if (base) {
    refuse_other_configuration(read_engine_config(base->path), base->path);
    engine_.load(base->path);
    checkpoint_plan_version_ = engine_.plan().version;
  } else {
    log_.warn("no intact checkpoint in {}: starting from step 0", store_->root().string());
    engine_.initialize();
  }
  // The plan in force last: the checkpoint may be older than the directive that set it.
  if (!state_.plan.empty() && state_.plan != engine_.plan().to_toml()) {
    engine_.set_plan(PrecisionPlan::parse(state_.plan, state_file_.string()));
  }
  weights_hash_ = hex64(engine_.weights_hash());
  over_ = is_over(mode);
  start_services();
  report_again(base);
  if (over_) return;
  state_.finished.clear();
  log_.info("run {}/{}: attempt {} goes on from step {} of {}, in {}", config_.name, config_.job_id,
            state_.attempt() + 1, engine_.step(), config_.steps, config_.dir.string());
  if (base) {
    begin_attempt("restart", base->step, base->attempt, base->path.string());
  } else {
    begin_attempt("restart", 0, 0, "");
    take_checkpoint();
  }
}

// A replay takes the configuration from the checkpoint, so a run that went on with another one
// could not be verified.
void TrainingLoop::refuse_other_configuration(const EngineConfig& before,
                                              const fs::path& checkpoint) {
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
  if (now.batch != before.batch) refuse("batch", "another batch", "the batch's shape");
  if (now.optimizer != before.optimizer)
    refuse("optimizer", "another optimizer", "the optimizer's settings");
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

// What a crash may have kept from the spool: the end of the last directive, the last attempt, and
// the checkpoint that the next one rests on. The controller knows repeats when it sees them.
void TrainingLoop::report_again(const std::optional<CheckpointInfo>& base) {
  if (state_.last_directive > 0) {
    link_->report(ack_target(state_.last_directive), to_json(state_.last_ack));
  }
  link_->report("attempts", to_json(state_.attempts.back().start));
  if (!base) return;
  CheckpointReport checkpoint;
  checkpoint.attempt = base->attempt;
  checkpoint.step = base->step;
  checkpoint.uri = base->path.string();
  checkpoint.plan_version = checkpoint_plan_version_;
  checkpoint.bytes = base->bytes;
  checkpoint.manifest_hash = base->manifest_hash;
  checkpoint.weights_hash = weights_hash_;
  checkpoint.time = now_seconds();
  link_->report("checkpoints", to_json(checkpoint));
}

void TrainingLoop::begin_attempt(AttemptCause cause, int64_t base_step, int64_t base_attempt,
                                 const std::string& base_checkpoint) {
  add_attempt(cause, base_step, base_attempt, base_checkpoint);
  save_state();
  link_->report("attempts", to_json(state_.attempts.back().start));
  link_->knows(standing());
}

void TrainingLoop::add_attempt(AttemptCause cause, int64_t base_step, int64_t base_attempt,
                               const std::string& base_checkpoint) {
  AttemptRecord record;
  record.start = {state_.attempt() + 1,  base_step,  cause, engine_.plan().version, now_seconds(),
                  engine_.fingerprint(), host_name()};
  record.base_attempt = base_attempt;
  record.base_checkpoint = base_checkpoint;
  {
    std::lock_guard lock(base_mutex_);
    base_checkpoint_ = base_checkpoint;
  }
  state_.attempts.push_back(record);
  state_.plan = engine_.plan().to_toml();
}

void TrainingLoop::take_checkpoint() {
  const std::pair<int64_t, int64_t> id{state_.attempt(), engine_.step()};
  if (last_checkpoint_ == id || (base_step() == id.second && !base_checkpoint_.empty())) return;
  last_checkpoint_ = id;
  CheckpointReport report;
  report.attempt = id.first;
  report.step = id.second;
  report.plan_version = engine_.plan().version;
  report.weights_hash = weights_hash_;
  checkpointer_->begin(engine_.checkpoint_in_place(), report);
}

// Beyond the newest keep_last. On the checkpointer's thread.
bool TrainingLoop::is_needed(const CheckpointInfo& info) {
  const std::string uri = info.path.string();
  {
    std::lock_guard lock(base_mutex_);
    if (uri == base_checkpoint_) return true;
  }
  if (link_->reporter() == nullptr) return false;
  // The unsent ones first: a report that is answered meanwhile is then in the answer's list.
  const std::vector<CheckpointReport> unsent = link_->unsent_checkpoints();
  const bool unknown_yet =
      std::any_of(unsent.begin(), unsent.end(),
                  [&uri](const CheckpointReport& report) { return report.uri == uri; });
  if (unknown_yet) return !thinned_out_.contains(uri);
  const auto wanted = link_->reporter()->protected_checkpoints();
  return !wanted || std::find(wanted->begin(), wanted->end(), uri) != wanted->end();
}

}  // namespace gnomon

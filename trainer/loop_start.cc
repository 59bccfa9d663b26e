// How the loop's parts are made and its attempt begins.
#include <fmt/format.h>

#include <utility>

#include "base/hash.h"
#include "base/wall_clock.h"
#include "protocol/json.h"
#include "trainer/engine/fingerprint.h"
#include "trainer/engine/resident_memory.h"
#include "trainer/loop.h"

namespace gnomon {
namespace {

// Sets the run's plan, or BF16 where the device lacks what it needs. Returns what gathers
// statistics; null when off.
std::unique_ptr<StatisticsCollector> set_up(Engine& engine, TrainerConfig& config,
                                            spdlog::logger& log) {
  if (config.check_device(engine.lacks_fp8())) {
    log.warn("BF16 in place of the run's plan, since {}", engine.lacks_fp8());
    config.plan = PrecisionPlan::bf16();
  }
  engine.set_plan(config.plan);
  return config.statistics.every > 0 ? engine.statistics(config.statistics, config.file) : nullptr;
}

}  // namespace

TrainingLoop::TrainingLoop(TrainerConfig config, ResumeMode mode, Console& console,
                           Shutdown& shutdown, EngineRanks* ranks)
    : config_(std::move(config)),
      console_(console),
      shutdown_(shutdown),
      log_(console.log()),
      engine_(config_.engine, EngineRole::kLive, ranks),
      statistics_(set_up(engine_, config_, log_)),
      directory_(config_, mode, shutdown, log_),
      state_(directory_.state()),
      base_(directory_.restore(engine_)),
      weights_hash_(hex64(engine_.weights_hash())),
      over_(directory_.is_over(mode, engine_.step())),
      link_(config_, engine_, directory_.checkpoints().root(),
            directory_.standing(engine_.plan().version), over_, shutdown, log_),
      absence_(config_, engine_, directory_, link_, shutdown, log_),
      checkpoints_(engine_, directory_, link_, config_.keep_last, shutdown, log_),
      directives_(engine_, directory_, link_, absence_, checkpoints_, shutdown, log_) {
  const VerificationConfig& verification = config_.verification;
  if (link_.inbox() != nullptr && (verification.by_trainer || verification.confirms)) {
    verifier_.emplace(engine_, config_, *link_.reporter(), *link_.inbox(), console_, shutdown_);
  }
  const std::string gpu =
      config_.watch_gpu.empty() ? device_bus_id(config_.engine.device) : config_.watch_gpu;
  if (link_.inbox() != nullptr && !gpu.empty()) watch_.emplace(DeviceWatchOptions{gpu});
  const std::string differences = differences_of_ranks(engine_.fingerprint());
  if (!differences.empty()) log_.warn("{}", differences);
  engine_.prepare();
  print_arenas();
  begin(mode);
}

// An attempt begins where the run is, unless the run is over.
void TrainingLoop::begin(ResumeMode mode) {
  if (state_.attempts.empty()) {
    log_.info("run {}/{}: {} parameters, {} steps of {} tokens, in {}", config_.name,
              config_.job_id, config_.engine.model.parameters(), config_.steps,
              config_.engine.batch.tokens_per_step(), config_.dir.string());
    begin_attempt("start", {});
  } else {
    report_again();
    if (over_) return;
    // It was told to stop and did not come to its end.
    stop_ = state_.finished == kStopping && mode != ResumeMode::kMustResume;
    if (!stop_) state_.finished.clear();
    log_.info("run {}/{}: attempt {} goes on from step {} of {} in plan {}, in {}", config_.name,
              config_.job_id, state_.attempt() + 1, engine_.step(), config_.steps,
              engine_.plan().version, config_.dir.string());
    begin_attempt("restart",
                  base_ ? AttemptBase{base_->step, base_->attempt, base_->uri} : AttemptBase{});
  }
  if (!base_) checkpoints_.write(weights_hash_);
}

// What a crash may have kept from the spool: the end of the last directive, the last attempt, and
// the checkpoint that the next one rests on. The controller knows repeats when it sees them.
void TrainingLoop::report_again() {
  if (state_.last_directive > 0) {
    link_.report(ack_target(state_.last_directive), to_json(state_.last_ack));
  }
  link_.report("attempts", to_json(state_.attempts.back().start));
  if (!base_) return;
  CheckpointReport checkpoint = *base_;
  checkpoint.weights_hash = weights_hash_;
  checkpoint.time = now_seconds();
  link_.report("checkpoints", to_json(checkpoint));
}

void TrainingLoop::begin_attempt(AttemptCause cause, const AttemptBase& base) {
  directory_.add_attempt(cause, base, engine_);
  directory_.save(engine_.step());
  link_.knows(directory_.standing(engine_.plan().version));
  link_.report("attempts", to_json(state_.attempts.back().start));
}

void TrainingLoop::print_arenas() {
  std::vector<ArenaSize> arenas = engine_.arenas();
  arenas.push_back({"checkpoint snapshot", checkpoints_.arena_bytes()});
  constexpr double kMegabyte = 1e6;
  const int64_t total = resident_bytes();
  const bool on_device = !engine_.memory().on_host();
  int64_t rest = total;
  for (const ArenaSize& arena : arenas) rest -= arena.bytes;
  // Arenas of a device are no part of what this process has.
  if (!on_device) arenas.push_back({"program and libraries", rest});
  std::string parts;
  for (const ArenaSize& arena : arenas) {
    parts += fmt::format("{}{} {:.1f} MB", parts.empty() ? "" : ", ", arena.name,
                         static_cast<double>(arena.bytes) / kMegabyte);
  }
  log_.info("memory taken at start: {:.1f} MB{} ({})", static_cast<double>(total) / kMegabyte,
            on_device ? " of the host; on the device and for copies of it" : "", parts);
}

}  // namespace gnomon

#include "trainer/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/hash.h"
#include "base/wall_clock.h"
#include "protocol/json.h"
#include "trainer/engine/fingerprint.h"
#include "trainer/engine/resident_memory.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kIdle(50);

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
      absence_(config_, engine_, link_, shutdown, log_),
      checkpoints_(engine_, directory_, link_, config_.keep_last, shutdown, log_),
      directives_(engine_, directory_, link_, absence_, checkpoints_, log_) {
  const VerificationConfig& verification = config_.verification;
  if (link_.inbox() != nullptr && (verification.by_trainer || verification.confirms)) {
    verifier_.emplace(engine_, config_, *link_.reporter(), *link_.inbox(), console_, shutdown_);
  }
  if (config_.watch_gpu.empty()) config_.watch_gpu = device_bus_id(config_.engine.device);
  if (link_.inbox() != nullptr && !config_.watch_gpu.empty())
    watch_.emplace(DeviceWatchOptions{config_.watch_gpu});
  const std::string differences = differences_of_ranks(engine_.fingerprint());
  if (!differences.empty()) log_.warn("{}", differences);
  engine_.prepare();
  print_arenas();
  begin();
}

TrainingLoop::~TrainingLoop() = default;

// An attempt begins where the run is, unless the run is over.
void TrainingLoop::begin() {
  if (state_.attempts.empty()) {
    log_.info("run {}/{}: {} parameters, {} steps of {} tokens, in {}", config_.name,
              config_.job_id, config_.engine.model.parameters(), config_.steps,
              config_.engine.batch.tokens_per_step(), config_.dir.string());
    begin_attempt("start", {});
  } else {
    report_again();
    if (over_) return;
    state_.finished.clear();
    log_.info("run {}/{}: attempt {} goes on from step {} of {}, in {}", config_.name,
              config_.job_id, state_.attempt() + 1, engine_.step(), config_.steps,
              config_.dir.string());
    begin_attempt("restart",
                  base_ ? AttemptBase{base_->step, base_->attempt, base_->uri} : AttemptBase{});
  }
  if (!base_) checkpoints_.take(weights_hash_);
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
  link_.report("attempts", to_json(state_.attempts.back().start));
  link_.knows(directory_.standing(engine_.plan().version));
}

bool TrainingLoop::run() {
  if (over_) {
    link_.flush(config_.flush_seconds);
    link_.end_if_replaced(engine_.step());
    return true;
  }
  console_.start_progress("train", config_.steps);
  try {
    while (boundary() && engine_.step() < config_.steps) train_one_step();
    link_.end_if_replaced(engine_.step());
    const bool done = stop_ || engine_.step() >= config_.steps;
    if (done) {
      finish(stop_ ? RunOutcome("stopped") : "completed");
    } else {
      interrupt();
    }
    link_.end_if_replaced(engine_.step());
    return done;
  } catch (const Interrupted& interrupted) {
    console_.finish_progress("");
    log_.warn("{}", interrupted.what());
  }
  link_.end_if_replaced(engine_.step());
  return false;
}

void TrainingLoop::train_one_step() {
  const auto start = Clock::now();
  const int64_t plan_version = engine_.plan().version;
  const bool look = statistics_ && (engine_.step() + 1) % config_.statistics.every == 0;
  const StepResult result = engine_.train_step(look ? statistics_.get() : nullptr);
  weights_hash_ = hex64(result.weights_hash);
  train_seconds_ += result.seconds;
  StepReport step;
  step.attempt = state_.attempt();
  step.step = result.step;
  step.plan_version = plan_version;
  step.loss = result.loss;
  step.grad_norm = result.grad_norm;
  step.learning_rate = result.learning_rate;
  step.tokens = result.tokens;
  step.step_seconds = result.seconds;
  step.weights_hash = weights_hash_;
  step.batch_hash = hex64(result.batch_hash);
  step.time = now_seconds();
  step.device_health = newest_health();
  link_.report(step);
  if (look) link_.report_statistics(step, statistics_->rows());
  if (!result.finite)
    log_.warn("step {}: loss {} with gradient norm {}; no weight was changed", result.step,
              result.loss, result.grad_norm);
  if (result.step % config_.checkpoint_every == 0) checkpoints_.take(weights_hash_);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  overhead_seconds_ += seconds - result.seconds;
  show_progress(result, seconds);
}

std::optional<DeviceHealth> TrainingLoop::newest_health() {
  if (!watch_) return std::nullopt;
  DeviceWatch::News news = watch_->take();
  if (!news.trouble.empty()) log_.warn("{}", news.trouble);
  return std::move(news.health);
}

void TrainingLoop::show_progress(const StepResult& result, double seconds) {
  constexpr double kSmoothing = 0.1;
  const double now = seconds > 0 ? static_cast<double>(result.tokens) / seconds : 0;
  tokens_per_second_ =
      tokens_per_second_ == 0 ? now : (1 - kSmoothing) * tokens_per_second_ + kSmoothing * now;
  console_.update(result.step,
                  fmt::format("loss {:.4f}  {:.0f} tok/s", result.loss, tokens_per_second_));
}

// At every step boundary: directives, pauses, replays, the controller's absence. Returns whether to
// take another step.
bool TrainingLoop::boundary() {
  for (bool told = false;;) {
    link_.end_if_replaced(engine_.step());
    if (shutdown_.requested()) return false;
    absence_.check(state_.attempt());
    while (link_.inbox() != nullptr && !stop_) {
      const std::optional<Directive> directive = link_.inbox()->take();
      if (!directive) break;
      stop_ = directives_.apply(*directive, weights_hash_);
    }
    if (stop_) return false;
    const double run_seconds = train_seconds_ + overhead_seconds_;
    if (verifier_ && verifier_->verify({weights_hash_, run_seconds, state_.paused})) continue;
    if (!state_.paused) return true;
    if (!std::exchange(told, true)) tell_paused();
    shutdown_.wait_for(kIdle);
  }
}

void TrainingLoop::tell_paused() {
  std::optional<std::string> run;
  if (link_.reporter() != nullptr) run = link_.reporter()->wait_for_run(kIdle);
  log_.info(
      "paused at step {}; a person resumes it with: gnomon override {} resume --owner ME --reason "
      "WHY",
      engine_.step(), run.value_or("RUN"));
}

void TrainingLoop::finish(RunOutcome outcome) {
  checkpoints_.take(weights_hash_);
  const double loss = engine_.evaluate(PrecisionPlan::bf16());
  checkpoints_.take_last(weights_hash_);
  directives_.reject_open(outcome);
  RunFinished finished;
  finished.outcome = outcome;
  finished.step = engine_.step();
  finished.final_loss = loss;
  finished.train_seconds = train_seconds_;
  finished.time = now_seconds();
  link_.report("finished", to_json(finished));
  link_.settle();
  state_.finished = outcome;
  directory_.save(engine_.step());
  console_.finish_progress(fmt::format("{}: held-out loss {:.4f} (BF16)", outcome, loss));
  log_.info("{:.1f} s in steps; reports and checkpoints held them up by {:.3f} s ({:.2f} %)",
            train_seconds_, overhead_seconds_,
            train_seconds_ > 0 ? 100 * overhead_seconds_ / train_seconds_ : 0);
  if (verifier_) verifier_->tell_share(train_seconds_);
  checkpoints_.tell_waits();
  link_.flush(config_.flush_seconds);
}

// SIGTERM or SIGINT: the next attempt goes on from this very step.
void TrainingLoop::interrupt() {
  log_.info("asked to stop: writing a checkpoint at step {}", engine_.step());
  checkpoints_.take_and_wait(weights_hash_);
  console_.finish_progress(fmt::format("stopped at step {}", engine_.step()));
  constexpr double kPatience = 5;
  link_.flush(std::min(kPatience, config_.flush_seconds));
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

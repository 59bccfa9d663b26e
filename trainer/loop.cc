#include "trainer/loop.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <utility>

#include "base/hash.h"
#include "base/progress.h"
#include "protocol/json.h"
#include "trainer/engine/resident_memory.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kIdle(50);

}  // namespace

TrainingLoop::TrainingLoop(TrainerConfig config, ResumeMode mode, Console& console,
                           Shutdown& shutdown, EngineRanks* ranks)
    : config_(std::move(config)),
      console_(console),
      shutdown_(shutdown),
      log_(console.log()),
      engine_(config_.engine, EngineRole::kLive, ranks) {
  if (config_.check_device(engine_.lacks_fp8())) {
    log_.warn("BF16 in place of the run's plan, since {}", engine_.lacks_fp8());
    config_.plan = PrecisionPlan::bf16();
  }
  engine_.set_plan(config_.plan);
  if (config_.statistics.every > 0) {
    statistics_ = engine_.statistics(config_.statistics, config_.file);
  }
  take_directory(mode);
}

TrainingLoop::~TrainingLoop() = default;

bool TrainingLoop::run() {
  if (over_) {
    link_->flush(config_.flush_seconds);
    link_->end_if_replaced(engine_.step());
    return true;
  }
  console_.start_progress("train", config_.steps);
  try {
    while (boundary() && engine_.step() < config_.steps) train_one_step();
    link_->end_if_replaced(engine_.step());
    const bool done = stop_ || engine_.step() >= config_.steps;
    if (done) {
      finish(stop_ ? RunOutcome("stopped") : "completed");
    } else {
      interrupt();
    }
    link_->end_if_replaced(engine_.step());
    return done;
  } catch (const Interrupted& interrupted) {
    console_.finish_progress("");
    log_.warn("{}", interrupted.what());
  }
  link_->end_if_replaced(engine_.step());
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
  link_->report(step);
  if (look) link_->report_statistics(step, statistics_->rows());
  if (!result.finite)
    log_.warn("step {}: loss {} with gradient norm {}; no weight was changed", result.step,
              result.loss, result.grad_norm);
  if (result.step % config_.checkpoint_every == 0) take_checkpoint();
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
    link_->end_if_replaced(engine_.step());
    if (shutdown_.requested()) return false;
    check_contact();
    while (link_->inbox() != nullptr && !stop_) {
      const std::optional<Directive> directive = link_->inbox()->take();
      if (!directive) break;
      apply(*directive);
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
  if (link_->reporter() != nullptr) run = link_->reporter()->wait_for_run(kIdle);
  log_.info(
      "paused at step {}; a person resumes it with: gnomon override {} resume --owner ME --reason "
      "WHY",
      engine_.step(), run.value_or("RUN"));
}

TrainingLoop::Absence TrainingLoop::absence_of_controller() const {
  Absence absence{config_.on_loss.value_or(OnLoss::kContinue), config_.grace_seconds.value_or(60)};
  const std::optional<RunRegistered> policy = link_->reporter()->registered();
  if (!policy) return absence;
  if (!config_.on_loss) absence.then = on_loss_from_name(policy->on_loss).value_or(absence.then);
  if (!config_.grace_seconds) absence.grace_seconds = policy->grace_seconds;
  return absence;
}

void TrainingLoop::check_contact() {
  if (link_->reporter() == nullptr) return;
  const Absence absence = absence_of_controller();
  const bool lost = link_->contact().away_seconds() >= absence.grace_seconds &&
                    link_->contact().away_seconds() > 0;
  if (absence.then == OnLoss::kPause && lost) {
    log_.warn("no controller for {}: pausing at step {} (controller.on_loss = \"pause\")",
              format_duration(link_->contact().away_seconds()), engine_.step());
    while (link_->contact().away_seconds() > 0 && !shutdown_.wait_for(kIdle)) {
    }
    if (!shutdown_.requested()) log_.info("the controller is back: going on");
  }
  if (absence.then == OnLoss::kBf16 && lost && !plan_before_loss_) {
    log_.warn("no controller for {}: BF16 from step {} on (controller.on_loss = \"bf16\")",
              format_duration(link_->contact().away_seconds()), engine_.step() + 1);
    plan_before_loss_ = engine_.plan();
    PrecisionPlan bf16 = PrecisionPlan::bf16();
    bf16.version = kPlanVersionWithoutController;
    try {
      engine_.set_plan(bf16);
      tell_plan_without_controller();
    } catch (const ConfigError& error) {
      log_.error("no BF16, the run goes on in plan {}: {}", plan_before_loss_->version,
                 error.what());
    }
  } else if (plan_before_loss_ && link_->contact().away_seconds() == 0) {
    log_.info("the controller is back: plan {} again from step {} on", plan_before_loss_->version,
              engine_.step() + 1);
    engine_.set_plan(*plan_before_loss_);
    plan_before_loss_.reset();
  }
}

void TrainingLoop::finish(RunOutcome outcome) {
  take_checkpoint();
  const double loss = engine_.evaluate(PrecisionPlan::bf16());
  take_last_checkpoint();
  reject_open_directives(outcome);
  RunFinished finished;
  finished.outcome = outcome;
  finished.step = engine_.step();
  finished.final_loss = loss;
  finished.train_seconds = train_seconds_;
  finished.time = now_seconds();
  link_->report("finished", to_json(finished));
  link_->settle();
  state_.finished = outcome;
  save_state();
  console_.finish_progress(fmt::format("{}: held-out loss {:.4f} (BF16)", outcome, loss));
  log_.info("{:.1f} s in steps; reports and checkpoints held them up by {:.3f} s ({:.2f} %)",
            train_seconds_, overhead_seconds_,
            train_seconds_ > 0 ? 100 * overhead_seconds_ / train_seconds_ : 0);
  if (verifier_) verifier_->tell_share(train_seconds_);
  if (checkpointer_->waits() > 0) {
    log_.warn("steps waited {} times for a checkpoint, {:.1f} s in all", checkpointer_->waits(),
              checkpointer_->wait_seconds());
  }
  link_->flush(config_.flush_seconds);
}

// What the run was for: waits while the disk is full. Throws when a shutdown is requested
// meanwhile.
void TrainingLoop::take_last_checkpoint() {
  constexpr std::chrono::milliseconds kRetry(500);
  while (true) {
    try {
      take_checkpoint();
      return checkpointer_->drain();
    } catch (const SystemError& error) {
      const int number = error.error_number();
      if (number != ENOSPC && number != EDQUOT && number != EFBIG) throw;
      last_checkpoint_ = {0, -1};
      log_.error("the run's last checkpoint WAITS for room on the disk: {}", error.what());
      if (shutdown_.wait_for(kRetry)) throw;
    }
  }
}

// SIGTERM or SIGINT: the next attempt goes on from this very step.
void TrainingLoop::interrupt() {
  log_.info("asked to stop: writing a checkpoint at step {}", engine_.step());
  take_checkpoint();
  checkpointer_->drain();
  console_.finish_progress(fmt::format("stopped at step {}", engine_.step()));
  constexpr double kPatience = 5;
  link_->flush(std::min(kPatience, config_.flush_seconds));
}

void TrainingLoop::print_arenas() {
  std::vector<ArenaSize> arenas = engine_.arenas();
  arenas.push_back({"checkpoint snapshot", checkpointer_->arena_bytes()});
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

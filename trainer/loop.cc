#include "trainer/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/errors.h"
#include "base/hash.h"
#include "base/wall_clock.h"
#include "protocol/json.h"
#include "protocol/text.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kIdle(50);
constexpr double kPatience = 5;  // seconds for the controller at an end before the run's

StepReport report_of(const StepResult& result) {
  StepReport report;
  report.step = result.step;
  report.loss = result.loss;
  report.grad_norm = result.grad_norm;
  if (result.casts) {
    report.cast_saturated = result.casts->saturated;
    report.cast_flushed = result.casts->flushed;
    report.cast_peak = result.casts->peak;
  }
  if (result.state_changed) report.state_changed = true;
  report.learning_rate = result.learning_rate;
  report.tokens = result.tokens;
  report.step_seconds = result.seconds;
  report.weights_hash = hex64(result.weights_hash);
  report.batch_hash = hex64(result.batch_hash);
  report.time = now_seconds();
  return report;
}

}  // namespace

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

// At every step boundary: directives, pauses, replays, the controller's absence. Returns whether to
// take another step.
bool TrainingLoop::boundary() {
  for (bool logged = false;;) {
    link_.end_if_replaced(engine_.step());
    if (shutdown_.requested()) return false;
    checkpoints_.remember_first();
    absence_.check(state_.attempt());
    if (shutdown_.requested()) continue;
    while (link_.inbox() != nullptr && !stop_) {
      const std::optional<Directive> directive = link_.inbox()->pop();
      if (!directive) break;
      stop_ = directives_.apply(*directive, weights_hash_);
    }
    if (stop_) return false;
    const double run_seconds = train_seconds_ + overhead_seconds_;
    if (verifier_ && verifier_->verify({weights_hash_, run_seconds, state_.paused})) continue;
    if (!state_.paused) return true;
    if (!std::exchange(logged, true)) log_paused();
    shutdown_.wait_for(kIdle);
  }
}

void TrainingLoop::train_one_step() {
  const auto start = Clock::now();
  const int64_t plan_version = engine_.plan().version;
  const bool look = statistics_ && (engine_.step() + 1) % config_.statistics.every == 0;
  const bool twice =
      config_.verification.recomputes(config_.engine.seed, state_.attempt(), engine_.step() + 1);
  const StepResult result = engine_.train_step(look ? statistics_.get() : nullptr, twice);
  if (!result.committed) log_mismatch(result);
  weights_hash_ = hex64(result.weights_hash);
  train_seconds_ += result.seconds;
  StepReport step = report_of(result);
  step.attempt = state_.attempt();
  step.plan_version = plan_version;
  step.device_health = newest_health();
  link_.report(step);
  if (!result.mismatch.empty()) log_mismatch(result);
  // Those of a computation that may have been the wrong one are of no use.
  if (look && result.mismatch.empty()) link_.report_statistics(step, statistics_->rows());
  if (!result.finite)
    log_.warn("step {}: loss {} with gradient norm {}; no weight was changed", result.step,
              result.loss, result.grad_norm);
  if (result.step % config_.checkpoint_every == 0) checkpoints_.write(weights_hash_);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  overhead_seconds_ += seconds - result.seconds;
  show_progress(result, seconds);
}

// Throws where the step was not made: it is not known what is right.
void TrainingLoop::log_mismatch(const StepResult& result) {
  const std::string text = fmt::format(
      "step {}: forward and backward pass gave other bits when computed again, {}. {}", result.step,
      result.mismatch,
      result.committed
          ? "The run goes on with what two computations gave. Check this host's memory, processor "
            "and GPU: steps that were computed once may be wrong"
          : "No weight was changed, and the attempt ends. Start the run again without this host");
  TrainerNotice notice;
  notice.attempt = state_.attempt();
  notice.step = engine_.step();
  notice.kind = "gradient_mismatch";
  notice.text = shortened(text, rules::kSentence);
  notice.time = now_seconds();
  link_.notice(notice);
  if (result.committed) return log_.error("{}", text);
  console_.finish_progress("");
  link_.flush(std::min(kPatience, config_.flush_seconds));
  throw Error(text);
}

void TrainingLoop::finish(RunOutcome outcome) {
  checkpoints_.write(weights_hash_);
  const double loss = engine_.evaluate(PrecisionPlan::bf16());
  checkpoints_.write_last(weights_hash_);
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
  if (verifier_) verifier_->log_share(train_seconds_);
  checkpoints_.log_waits();
  link_.flush(config_.flush_seconds);
}

// SIGTERM or SIGINT: the next attempt goes on from this very step, if the storage takes it.
void TrainingLoop::interrupt() {
  log_.info("asked to stop: writing a checkpoint at step {}", engine_.step());
  try {
    checkpoints_.write_and_wait(weights_hash_);
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    log_.error("no checkpoint of step {}: {}. The next start goes on from the one before",
               engine_.step(), error.what());
  }
  console_.finish_progress(fmt::format("stopped at step {}", engine_.step()));
  link_.flush(std::min(kPatience, config_.flush_seconds));
}

std::optional<DeviceHealth> TrainingLoop::newest_health() {
  if (!watch_) return std::nullopt;
  DeviceWatch::News news = watch_->poll();
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

void TrainingLoop::log_paused() {
  std::optional<std::string> run;
  if (link_.reporter() != nullptr) run = link_.reporter()->wait_for_run(kIdle);
  log_.info(
      "paused at step {}; a person resumes it with: gnomon override {} resume --owner ME --reason "
      "WHY",
      engine_.step(), run.value_or("RUN"));
}

}  // namespace gnomon

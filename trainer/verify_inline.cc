// Verification by the trainer itself: at a step boundary it keeps its state in memory, replays a
// window in the arm that the controller asked for, takes its state back and goes on.
#include <fmt/format.h>
#include <unistd.h>

#include "base/errors.h"
#include "base/hash.h"
#include "base/host.h"
#include "protocol/text.h"
#include "trainer/loop.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

void TrainingLoop::start_verification() {
  if (config_.verification.by_trainer) {
    engine_.take_snapshot_memory();
    snapshot_memory_ = SnapshotMemory::kTaken;
  }
  InlineLeaseOptions options;
  options.controller = config_.controller;
  options.name = fmt::format("{}{}:{}", kTrainerPrefix, host_name(), ::getpid());
  options.fingerprint = engine_.fingerprint();
  leases_ = std::make_unique<InlineLeases>(std::move(options), *reporter_, log_);
}

// True when another replay may begin: in a pause it costs no step.
bool TrainingLoop::may_verify() const {
  const double run = train_seconds_ + overhead_seconds_ + verify_seconds_;
  return state_.paused || verify_seconds_ <= config_.verification.share_max * run;
}

// Does one replay, if the controller wants one. Returns whether, for the caller to look at
// directives again.
bool TrainingLoop::verify() {
  if (!leases_) return false;
  leases_->want(may_verify());
  const std::optional<Lease> lease = leases_->take();
  if (!lease) return false;
  const auto start = Clock::now();
  LeaseFailure failure;
  failure.token = lease->token;
  std::optional<ReplayResult> result;
  if (has_snapshot_memory(failure)) {
    engine_.snapshot();
    result = replay(*lease, failure);
    engine_.restore();
  }
  if (hex64(engine_.weights_hash()) != weights_hash_) {
    throw Error(fmt::format(
        "the weights of step {} are not what they were before a replay: this device's memory is "
        "not to be trusted; start again to go on from the newest checkpoint",
        engine_.step()));
  }
  const double seconds = seconds_since(start);
  if (!state_.paused) verify_seconds_ += seconds;
  // Before the answer: the thread asks for the next lease as soon as that is sent.
  leases_->want(may_verify());
  if (result) {
    result->time = now_seconds();
    leases_->complete(*result);
    ++replays_;
  } else {
    leases_->fail(failure);
  }
  tell_verification(*lease, result, failure.reason, seconds);
  return true;
}

// The memory is taken with the first lease: a trainer that only confirms may never be asked.
bool TrainingLoop::has_snapshot_memory(LeaseFailure& failure) {
  if (snapshot_memory_ == SnapshotMemory::kNotYet) {
    snapshot_memory_ = SnapshotMemory::kRefused;
    try {
      engine_.take_snapshot_memory();
      snapshot_memory_ = SnapshotMemory::kTaken;
    } catch (const Error& error) {
      log_.warn("no replay for the controller: {}", error.what());
    }
  }
  if (snapshot_memory_ == SnapshotMemory::kTaken) return true;
  failure.reason = "the trainer has no memory to keep its state in meanwhile";
  failure.retryable = false;
  return false;
}

ReplayRequest TrainingLoop::request_of(const Lease& lease) const {
  ReplayRequest request = replay_request(lease.task);
  request.role = EngineRole::kInline;
  return request;
}

// Nothing when it failed; `failure` then says why. The engine's state is another one afterwards.
std::optional<ReplayResult> TrainingLoop::replay(const Lease& lease, LeaseFailure& failure) {
  const ReplayTask& task = lease.task;
  const int64_t step = engine_.step();
  std::string why;
  try {
    ReplayResult result = replay_on(engine_, request_of(lease), [&](int64_t steps) {
      leases_->set_steps_done(steps);
      console_.update(step, fmt::format("verifying window {}, {}: {} of {} steps", task.window,
                                        task.arm, steps, task.steps));
      why = why_abandon();
      return why.empty();
    });
    result.token = lease.token;
    return result;
  } catch (const ReplayAbandoned&) {
    failure.reason = why;
  } catch (const std::exception& error) {
    failure.reason = shortened(error.what(), rules::kSentence);
    failure.retryable = dynamic_cast<const ConfigError*>(&error) == nullptr;
  }
  return std::nullopt;
}

// Empty: go on.
std::string TrainingLoop::why_abandon() const {
  if (leases_->lost()) return "the lease was lost";
  if (shutdown_.requested()) return "the trainer was asked to end";
  if (inbox_->urgent()) return "a directive came";
  return {};
}

void TrainingLoop::tell_verification(const Lease& lease, const std::optional<ReplayResult>& result,
                                     const std::string& why_not, double seconds) {
  const ReplayTask& task = lease.task;
  const std::string what = fmt::format("window {} (steps {} to {}), arm {}", task.window,
                                       task.start_step, task.start_step + task.steps, task.arm);
  if (!result) {
    return log_.warn("{}: not verified at step {}, {:.1f} s: {}", what, engine_.step(), seconds,
                     why_not);
  }
  const double run = train_seconds_ + overhead_seconds_ + verify_seconds_;
  log_.info(
      "{}: verified at step {} in {:.1f} s ({} steps {:.1f} s, evaluations and loading {:.1f} s); "
      "{:.1f} % of the run so far",
      what, engine_.step(), seconds, result->steps.size(), result->replay_seconds,
      result->eval_seconds, run > 0 ? 100 * verify_seconds_ / run : 0);
}

}  // namespace gnomon

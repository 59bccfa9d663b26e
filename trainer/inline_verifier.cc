#include "trainer/inline_verifier.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>

#include "base/errors.h"
#include "base/hash.h"
#include "base/host.h"
#include "base/wall_clock.h"
#include "protocol/text.h"
#include "trainer/replay.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

ReplayRequest request_of(const Lease& lease) {
  ReplayRequest request = replay_request(lease.task);
  request.role = EngineRole::kInline;
  return request;
}

}  // namespace

InlineVerifier::InlineVerifier(Engine& engine, const TrainerConfig& config, Reporter& reporter,
                               const DirectiveInbox& inbox, Console& console, Shutdown& shutdown)
    : engine_(engine),
      config_(config.verification),
      inbox_(inbox),
      console_(console),
      shutdown_(shutdown),
      log_(console.log()) {
  if (config_.by_trainer) {
    engine_.allocate_snapshot_memory();
    snapshot_memory_ = SnapshotMemory::kTaken;
  }
  InlineLeaseOptions options;
  options.controller = config.controller;
  options.name = fmt::format("{}{}:{}", kTrainerPrefix, host_name(), ::getpid());
  options.fingerprint = engine_.fingerprint();
  leases_.emplace(std::move(options), reporter, log_);
}

// True when another replay may begin: in a pause it costs no step.
bool InlineVerifier::may_verify(const Boundary& at) const {
  return at.paused || seconds_ <= config_.share_max * (at.run_seconds + seconds_);
}

bool InlineVerifier::verify(const Boundary& at) {
  leases_->want(may_verify(at));
  const std::optional<Lease> lease = leases_->pop();
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
  if (hex64(engine_.weights_hash()) != at.weights_hash) {
    throw Error(fmt::format(
        "the weights of step {} are not what they were before a replay: this device's memory is "
        "not to be trusted; start again to go on from the newest checkpoint",
        engine_.step()));
  }
  const double seconds = seconds_since(start);
  if (!at.paused) seconds_ += seconds;
  // Before the answer: the thread asks for the next lease as soon as that is sent.
  leases_->want(may_verify(at));
  if (result) {
    result->time = now_seconds();
    leases_->complete(*result);
    ++replays_;
  } else {
    leases_->fail(failure);
  }
  log_replay(*lease, result, failure.reason, seconds, at.run_seconds + seconds_);
  return true;
}

// The memory is taken with the first lease: a trainer that only confirms may never be asked.
bool InlineVerifier::has_snapshot_memory(LeaseFailure& failure) {
  if (snapshot_memory_ == SnapshotMemory::kNotYet) {
    snapshot_memory_ = SnapshotMemory::kRefused;
    try {
      engine_.allocate_snapshot_memory();
      snapshot_memory_ = SnapshotMemory::kTaken;
    } catch (const Error& error) {
      log_.warn("no replay for the controller: {}", error.what());
    }
  }
  if (snapshot_memory_ == SnapshotMemory::kTaken) return true;
  failure.reason = "the trainer has no memory to keep its state in meanwhile";
  failure.unsupported = true;
  return false;
}

// Nothing when it failed; `failure` then says why. The engine's state is another one afterwards.
std::optional<ReplayResult> InlineVerifier::replay(const Lease& lease, LeaseFailure& failure) {
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
    failure.unsupported = dynamic_cast<const ConfigError*>(&error) != nullptr;
  }
  return std::nullopt;
}

// Empty: go on.
std::string InlineVerifier::why_abandon() const {
  if (leases_->lost()) return "the lease was lost";
  if (shutdown_.requested()) return "the trainer was asked to end";
  if (inbox_.urgent()) return "a directive came";
  return {};
}

void InlineVerifier::log_replay(const Lease& lease, const std::optional<ReplayResult>& result,
                                const std::string& why_not, double seconds,
                                double run_seconds) const {
  const ReplayTask& task = lease.task;
  const std::string what = fmt::format("window {} (steps {} to {}), arm {}", task.window,
                                       task.start_step + 1, task.start_step + task.steps, task.arm);
  if (!result) {
    return log_.warn("{}: not replayed at step {}, {:.1f} s: {}", what, engine_.step(), seconds,
                     why_not);
  }
  log_.info(
      "{}: replayed at step {} in {:.1f} s ({} steps {:.1f} s, evaluations and loading {:.1f} s); "
      "{:.1f} % of the run so far",
      what, engine_.step(), seconds, result->steps.size(), result->replay_seconds,
      result->eval_seconds, run_seconds > 0 ? 100 * seconds_ / run_seconds : 0);
}

void InlineVerifier::log_share(double train_seconds) const {
  log_.info("{} windows' replays between steps took {:.1f} s more ({:.1f} % of the run)", replays_,
            seconds_, seconds_ > 0 ? 100 * seconds_ / (train_seconds + seconds_) : 0);
}

}  // namespace gnomon

#include "trainer/directive_handler.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/hash.h"
#include "base/wall_clock.h"
#include "protocol/json.h"
#include "trainer/directives.h"

namespace gnomon {

DirectiveHandler::DirectiveHandler(Engine& engine, RunDirectory& directory, ControllerLink& link,
                                   ControllerAbsence& absence, RunCheckpoints& checkpoints,
                                   Shutdown& shutdown, spdlog::logger& log)
    : engine_(engine),
      directory_(directory),
      state_(directory.state()),
      link_(link),
      absence_(absence),
      checkpoints_(checkpoints),
      shutdown_(shutdown),
      log_(log) {}

bool DirectiveHandler::apply(const Directive& directive, std::string& weights_hash) {
  const int64_t step = engine_.step();
  if (directive.number <= state_.last_directive) {
    const std::string reason = used_number(directive.number, state_.last_directive);
    log_.error("directive {} {} is rejected: {}", directive.number, directive.kind, reason);
    link_.report(ack_target(directive.number),
                 to_json(DirectiveAck{"rejected", state_.attempt(), step, reason, now_seconds()}));
    return false;
  }
  if (directive.kind == "set_plan") {
    apply_set_plan(directive);
  } else if (directive.kind == "rollback") {
    apply_rollback(directive, weights_hash);
  } else if (directive.kind == "checkpoint_now") {
    apply_checkpoint_now(directive, weights_hash);
  } else if (directive.kind == "pause" || directive.kind == "resume") {
    state_.paused = directive.kind == "pause";
    acknowledge(directive, "applied", step, "");
  } else if (directive.kind == "stop") {
    state_.finished = kStopping;
    acknowledge(directive, "applied", step, "");
    return true;
  } else {
    acknowledge(directive, "rejected", step,
                fmt::format("kind \"{}\" is unknown; accepted: set_plan, rollback, checkpoint_now, "
                            "pause, resume, stop",
                            directive.kind));
  }
  return false;
}

// Throws ConfigError.
PrecisionPlan DirectiveHandler::plan_of(const Directive& directive) const {
  PrecisionPlan plan =
      PrecisionPlan::parse(directive.plan, fmt::format("directive {}", directive.number));
  plan.version = directive.plan_version;
  plan.check_sites(engine_.config().model.sites(), engine_.config().model.layers,
                   fmt::format("directive {}", directive.number));
  return plan;
}

void DirectiveHandler::apply_set_plan(const Directive& directive) {
  const int64_t step = engine_.step();
  try {
    engine_.set_plan(plan_of(directive));
  } catch (const ConfigError& error) {
    return acknowledge(directive, "rejected", step, error.what());
  }
  absence_.forget_plan();
  state_.plan = engine_.plan().to_toml();
  log_.info("plan {} from step {} on: {}", engine_.plan().version, step + 1, directive.reason);
  acknowledge(directive, "applied", step, "");
}

// It is answered once it is on disk: whoever ordered it may switch the machine off.
void DirectiveHandler::apply_checkpoint_now(const Directive& directive,
                                            const std::string& weights_hash) {
  std::string why;
  try {
    checkpoints_.write_and_wait(weights_hash);
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    why = error.what();
  }
  acknowledge(directive, why.empty() ? AckState("applied") : "rejected", engine_.step(), why);
}

// The checkpoint, verified. Storage that is away for some minutes is waited for: a checkpoint that
// is refused once is not ordered again. Throws CheckpointError, SystemError, Interrupted.
CheckpointInfo DirectiveHandler::wait_for_checkpoint(const std::string& uri) const {
  using Seconds = std::chrono::duration<double>;
  constexpr Seconds kLongest(30), kPatience(300);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (Seconds pause(0.5);; pause = std::min(2 * pause, kLongest)) {
    try {
      return verify_checkpoint(uri);
    } catch (const SystemError& error) {
      if (std::chrono::steady_clock::now() > deadline) throw;
      log_.warn("a rollback WAITS for its checkpoint: {}", error.what());
      if (shutdown_.wait_for(std::chrono::duration_cast<std::chrono::milliseconds>(pause)))
        throw Interrupted(error.what());
    }
  }
}

void DirectiveHandler::apply_rollback(const Directive& directive, std::string& weights_hash) {
  const int64_t step = engine_.step();
  std::optional<CheckpointInfo> base;
  try {
    std::optional<PrecisionPlan> plan;
    if (!directive.plan.empty()) {
      plan = plan_of(directive);
      engine_.check_plan(*plan);
    }
    base = wait_for_checkpoint(directive.checkpoint_uri);
    if (base->step != directive.to_step) {
      throw Error(fmt::format("{} is of step {}, not {}", directive.checkpoint_uri, base->step,
                              directive.to_step));
    }
    engine_.load(base->path);
    if (plan) engine_.set_plan(*plan);
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    // A load that failed half-way leaves a state that is neither: end, and restart from the newest
    // checkpoint.
    if (engine_.step() != step || hex64(engine_.weights_hash()) != weights_hash) throw;
    log_.error("rollback to step {} rejected: {}", directive.to_step, error.what());
    return acknowledge(directive, "rejected", step, error.what());
  }
  absence_.forget_plan();
  weights_hash = hex64(engine_.weights_hash());
  log_.warn("rolled back from step {} to step {}, plan {}: {}", step, base->step,
            engine_.plan().version, directive.reason);
  // The answer and the new attempt reach the disk as one: a restart between them would go on from
  // the checkpoints that the rollback was to leave behind.
  remember_answer(directive, "applied", step, "");
  directory_.add_attempt("rollback", {base->step, base->attempt, base->path.string()}, engine_);
  directory_.save(engine_.step());
  link_.knows(directory_.standing(engine_.plan().version));
  link_.report(ack_target(directive.number), to_json(state_.last_ack));
  link_.report("attempts", to_json(state_.attempts.back().start));
}

void DirectiveHandler::acknowledge(const Directive& directive, AckState state, int64_t step,
                                   const std::string& reason) {
  remember_answer(directive, state, step, reason);
  directory_.save(engine_.step());
  link_.knows(directory_.standing(engine_.plan().version));
  link_.report(ack_target(directive.number), to_json(state_.last_ack));
}

void DirectiveHandler::remember_answer(const Directive& directive, AckState state, int64_t step,
                                       const std::string& reason) {
  state_.last_directive = directive.number;
  state_.newest_plan_version = std::max(state_.newest_plan_version, directive.plan_version);
  state_.last_ack = {state, state_.attempt(), step, reason, now_seconds()};
}

void DirectiveHandler::reject_open(RunOutcome outcome) {
  if (link_.inbox() == nullptr) return;
  for (const Directive& directive : link_.inbox()->close()) {
    const std::string reason =
        fmt::format("the run has {}", outcome == "completed" ? "completed" : "stopped");
    log_.warn("directive {} {} is rejected: {}", directive.number, directive.kind, reason);
    acknowledge(directive, "rejected", engine_.step(), reason);
  }
}

}  // namespace gnomon

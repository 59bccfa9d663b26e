#include "trainer/replay.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "base/errors.h"
#include "base/hash.h"
#include "trainer/engine/engine_ranks.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

PrecisionPlan plan_of_arm(const ReplayRequest& request, const PrecisionPlan& own) {
  if (request.arm == "bf16") return PrecisionPlan::bf16();
  if (request.arm == "same") return own;
  if (request.arm == "plan") return PrecisionPlan::parse(request.plan_toml, "plan of the arm");
  throw ConfigError("replay", 0, "arm", request.arm, "bf16, same, plan");
}

}  // namespace

Replayer::Replayer(int threads, EngineRanks* ranks) : threads_(threads), ranks_(ranks) {}
Replayer::~Replayer() = default;

ReplayResult Replayer::run(const ReplayRequest& request,
                           const std::function<bool(int64_t)>& progress) {
  if (request.steps < 0) {
    throw ConfigError("replay", 0, "steps", std::to_string(request.steps), "0 or more");
  }
  ReplayResult result;
  Clock::time_point start = Clock::now();
  EngineConfig config = read_engine_config(request.checkpoint);
  if (threads_ > 0) config.threads = threads_;
  const int ranks = ranks_ == nullptr ? 1 : ranks_->collectives->size();
  if (config.batch.accumulation % ranks != 0) {
    throw Error(fmt::format("{} ranks cannot share the {} micro-batches of this run's steps", ranks,
                            config.batch.accumulation));
  }
  if (engine_ == nullptr || engine_->config().to_json() != config.to_json()) {
    engine_.reset();
    engine_ = std::make_unique<Engine>(config, EngineRole::kReplay, ranks_);
  }
  Engine& engine = *engine_;
  result.fingerprint = engine.fingerprint();
  result.heldout_tokens = engine.heldout_tokens();
  if (request.evaluate_endpoints && !request.end_checkpoint.empty()) {
    engine.load(request.end_checkpoint);
    result.run_end_loss_bf16 = engine.evaluate(PrecisionPlan::bf16());
  }
  engine.load(request.checkpoint);
  PrecisionPlan own = engine.plan();
  if (request.evaluate_endpoints) {
    result.start_loss_bf16 = engine.evaluate(PrecisionPlan::bf16());
    result.start_loss_plan = engine.evaluate(own);
  }
  engine.set_plan(plan_of_arm(request, own));
  result.eval_seconds = seconds_since(start);

  bool finite = true;
  for (int64_t done = 0; done < request.steps && finite;) {
    StepResult step = engine.train_step();
    result.steps.push_back({step.step, step.loss, step.grad_norm, hex64(step.weights_hash)});
    result.replay_seconds += step.seconds;
    finite = step.finite;
    ++done;
    if (progress && !progress(done)) throw Error("the replay was abandoned");
  }
  if (finite) {
    Clock::time_point evaluation = Clock::now();
    result.replay_end_loss_bf16 = engine.evaluate(PrecisionPlan::bf16());
    result.eval_seconds += seconds_since(evaluation);
  }
  return result;
}

}  // namespace gnomon

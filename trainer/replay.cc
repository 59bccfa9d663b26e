#include "trainer/replay.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "base/errors.h"
#include "base/files.h"
#include "base/hash.h"
#include "trainer/engine/engine_ranks.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

const std::string kPerturbedArm = "bf16-perturbed";
const std::string kScoresArm = "scores";

PrecisionPlan plan_of_arm(const ReplayRequest& request, const PrecisionPlan& own) {
  if (request.arm == "bf16" || request.arm == kPerturbedArm) return PrecisionPlan::bf16();
  if (request.arm == "plan" || !request.plan_toml.empty())
    return PrecisionPlan::parse(request.plan_toml, "plan of the arm");
  return own;
}

EngineMode mode_of_arm(const ReplayRequest& request) {
  EngineMode mode{.role = request.role, .fakequant = request.arm == "fakequant"};
  if (request.arm == kPerturbedArm) mode.order_seed = request.perturb == 0 ? 1 : request.perturb;
  return mode;
}

// The plan that the run had in the window: that of the checkpoint unless the request says another.
PrecisionPlan plan_of_run(const ReplayRequest& request, const PrecisionPlan& saved) {
  if (request.arm == "plan" || request.plan_toml.empty()) return saved;
  return PrecisionPlan::parse(request.plan_toml, "plan of the arm");
}

// Standard error of the difference of two mean losses, from the differences of their parts; nothing
// for fewer than two parts.
std::optional<double> paired_error(const std::vector<Engine::Part>& a,
                                   const std::vector<Engine::Part>& b) {
  if (a.size() < 2 || a.size() != b.size()) return std::nullopt;
  double tokens = 0, sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    tokens += static_cast<double>(a[i].tokens);
    sum += a[i].loss_sum - b[i].loss_sum;
  }
  const double mean = sum / tokens;
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double of_part = static_cast<double>(a[i].tokens);
    const double residual = a[i].loss_sum - b[i].loss_sum - mean * of_part;
    squares += residual * residual;
  }
  const double count = static_cast<double>(a.size());
  const double error = std::sqrt(squares * count / (count - 1)) / tokens;
  return std::isfinite(error) ? std::optional<double>(error) : std::nullopt;
}

void check_request(const ReplayRequest& request) {
  if (request.steps < 0) {
    throw ConfigError("replay", 0, "steps", std::to_string(request.steps), "0 or more");
  }
  if (std::ranges::find(kArms, request.arm) == kArms.end()) {
    throw ConfigError("replay", 0, "arm", request.arm, fmt::format("{}", fmt::join(kArms, ", ")));
  }
  if (request.perturb < 0) {
    throw ConfigError("replay", 0, "perturb", std::to_string(request.perturb),
                      "a seed above 0, or 0 for no perturbation");
  }
  if (!(request.perturb_scale >= 0 && request.perturb_scale <= 1)) {
    throw ConfigError("replay", 0, "perturb_scale", fmt::format("{}", request.perturb_scale),
                      "0 to 1");
  }
}

// A single sequence has one order only.
void check_batch(const ReplayRequest& request, const BatchConfig& batch) {
  if (request.arm == kPerturbedArm && batch.sequences * int64_t{1} * batch.accumulation < 2) {
    throw ConfigError("replay", 0, "arm", request.arm,
                      "an arm without another order: this run's steps have one sequence (bf16 with "
                      "a perturbation says what chance does)");
  }
}

// Bits would differ for a reason that is neither the plan nor the device. Where the data lies, what
// computes and with how many threads is no setting: a hash of the data is checked, and the
// fingerprint says the rest. What is computed again, shared out or planned for changes no bits.
void check_settings(const EngineConfig& own, const std::filesystem::path& checkpoint) {
  EngineConfig config = read_engine_config(checkpoint);
  config.threads = own.threads;
  config.device = own.device;
  config.memory.recompute = own.memory.recompute;
  config.memory.moments = own.memory.moments;
  config.shard = own.shard;
  config.data = own.data;
  if (config.to_json() == own.to_json()) return;
  throw Error(
      fmt::format("{} was written under other settings than this engine has", checkpoint.string()));
}

}  // namespace

ReplayRequest replay_request(const ReplayTask& task) {
  ReplayRequest request;
  request.checkpoint = task.checkpoint_uri;
  request.steps = task.steps;
  request.arm = task.arm;
  request.plan_toml = task.plan;
  request.end_checkpoint = task.end_checkpoint_uri;
  request.evaluate_endpoints = task.evaluate_endpoints;
  request.perturb = task.perturb;
  if (task.perturb_scale != 0) request.perturb_scale = task.perturb_scale;
  return request;
}

Replayer::Replayer(ReplayDevice on, EngineRanks* ranks, std::vector<std::filesystem::path> roots)
    : on_(on), ranks_(ranks), roots_(std::move(roots)) {}
Replayer::~Replayer() = default;

std::unique_ptr<Engine> Replayer::make_engine(const EngineConfig& config) const {
  try {
    return std::make_unique<Engine>(config, EngineRole::kReplay, ranks_);
  } catch (const Error& error) {
    if (config.device == Device::kCpu || on_.device) throw;
    throw Error(
        fmt::format("{} (the run computes on a GPU; with --device cpu its replays run on the "
                    "CPU, whose bits cannot be compared with it)",
                    error.what()));
  }
}

// What it says of a place that it may not read does not depend on what is there.
void Replayer::check_place(const std::string& what, const std::filesystem::path& path) const {
  if (roots_.empty() || path.empty() || lies_below(path, roots_)) return;
  std::vector<std::string> roots;
  roots.reserve(roots_.size());
  for (const std::filesystem::path& root : roots_) roots.push_back(root.string());
  throw Error(
      fmt::format("{} {} is not there, or not below a folder that this verifier may read ({})",
                  what, path.string(), fmt::join(roots, ", ")));
}

ReplayResult Replayer::run(const ReplayRequest& request, const ReplayProgress& progress) {
  check_request(request);
  check_place("the checkpoint", request.checkpoint);
  check_place("the checkpoint", request.end_checkpoint);
  EngineConfig config = read_engine_config(request.checkpoint);
  check_place("the data", config.data);
  if (on_.threads > 0) config.threads = on_.threads;
  if (on_.device) config.device = *on_.device;
  config.memory.moments = MomentFormat::kFp32;  // which BF16 has
  const int ranks = ranks_ == nullptr ? 1 : ranks_->collectives->size();
  if (config.batch.accumulation % ranks != 0) {
    throw Error(fmt::format("{} ranks cannot share the {} micro-batches of this run's steps", ranks,
                            config.batch.accumulation));
  }
  if (engine_ == nullptr || engine_->config().to_json() != config.to_json()) {
    engine_.reset();
    engine_ = make_engine(config);
  }
  try {
    return replay_on(*engine_, request, progress);
  } catch (const ReplayAbandoned&) {
    throw;
  } catch (...) {
    // It may be the engine: with data that have been replaced since, or a device that has failed.
    // Ranks have said what to do with theirs.
    if (ranks == 1) engine_.reset();
    throw;
  }
}

ReplayResult replay_on(Engine& engine, const ReplayRequest& request,
                       const ReplayProgress& progress) {
  check_request(request);
  check_settings(engine.config(), request.checkpoint);
  check_batch(request, engine.config().batch);
  ReplayResult result;
  Clock::time_point start = Clock::now();
  const auto check_progress = [&] {
    if (progress && !progress(std::ssize(result.steps))) {
      throw ReplayAbandoned("the replay was abandoned");
    }
  };
  engine.set_mode({.role = request.role});
  std::vector<Engine::Part> run_end;
  result.fingerprint = engine.fingerprint();
  result.heldout_tokens = engine.heldout_tokens();
  if (request.evaluate_endpoints && !request.end_checkpoint.empty()) {
    engine.load(request.end_checkpoint);
    result.run_end_loss_bf16 = engine.evaluate(PrecisionPlan::bf16());
    run_end = engine.evaluated_parts();
    check_progress();
  }
  engine.load(request.checkpoint);
  const PrecisionPlan own = plan_of_run(request, engine.plan());
  if (request.evaluate_endpoints) {
    result.start_loss_bf16 = engine.evaluate(PrecisionPlan::bf16());
    check_progress();
    result.start_loss_plan = engine.evaluate(own);
  }
  engine.set_mode(mode_of_arm(request));
  if (request.evaluate_endpoints && engine.mode().fakequant) {
    result.start_loss_fakequant = engine.evaluate(own);
  }
  engine.set_plan(plan_of_arm(request, own));
  if (request.perturb != 0) engine.perturb(request.perturb, request.perturb_scale);
  result.eval_seconds = seconds_since(start);

  if (request.arm == kScoresArm) {
    Clock::time_point analysis = Clock::now();
    result.scores = engine.scores(own, engine.step() + std::max<int64_t>(request.steps, 1));
    result.eval_seconds += seconds_since(analysis);
    return result;
  }
  bool finite = true;
  check_progress();
  while (finite && std::ssize(result.steps) < request.steps) {
    StepResult step = engine.train_step();
    result.steps.push_back(
        {step.step, step.loss, step.grad_norm, hex64(step.weights_hash), hex64(step.batch_hash)});
    result.replay_seconds += step.seconds;
    finite = step.finite;
    check_progress();
  }
  if (finite) {
    Clock::time_point evaluation = Clock::now();
    result.replay_end_loss_bf16 = engine.evaluate(PrecisionPlan::bf16());
    result.gap_error = paired_error(run_end, engine.evaluated_parts());
    result.eval_seconds += seconds_since(evaluation);
  }
  return result;
}

}  // namespace gnomon

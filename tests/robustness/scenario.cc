#include "tests/robustness/scenario.h"

#include <fmt/format.h>

#include <limits>

#include "base/philox.h"
#include "protocol/precision_plan.h"
#include "tests/support/words.h"

namespace gnomon::robustness {
namespace {

constexpr double kGap = 0.2;          // nats: far above any tolerance
constexpr double kGapNoise = 0.0005;  // nats

// In [-1, 1], of a step or a window.
double noise(const RunScenario& scenario, uint64_t kind, int64_t attempt, int64_t step) {
  const uint64_t stream = (static_cast<uint64_t>(scenario.number) << 8) | kind;
  const uint64_t index = (static_cast<uint64_t>(attempt) << 32) | static_cast<uint64_t>(step);
  return 2.0 * static_cast<double>(philox_uniform(philox(scenario.seed, stream, index)[0])) - 1.0;
}

// Loss of a step that goes well.
double loss_of(const RunScenario& scenario, int64_t attempt, int64_t step) {
  return 4.0 - 0.002 * static_cast<double>(step) + 0.01 * noise(scenario, 1, attempt, step);
}

}  // namespace

std::string RunScenario::name() const { return fmt::format("scenario-{}", number); }

Fingerprint fingerprint() { return {"test CPU", "cpu", "none 1.0", "test", 1, 1}; }

RunRegistration registration_of(const RunScenario& scenario) {
  RunRegistration registration;
  registration.name = scenario.name();
  registration.job_id = "1";
  registration.fingerprint = fingerprint();
  PrecisionPlan plan = PrecisionPlan::fp8();
  plan.version = 1;
  registration.base_plan = plan.to_toml();
  registration.layers = 2;
  registration.sites = {"model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj", "lm_head"};
  registration.total_steps = scenario.steps;
  registration.tokens_per_step = 64;
  registration.checkpoint_every = kCheckpointEvery;
  return registration;
}

StepReport step_of(const RunScenario& scenario, int64_t attempt, int64_t step,
                   int64_t plan_version) {
  StepReport report;
  report.attempt = attempt;
  report.step = step;
  report.plan_version = plan_version;
  const bool blows_up = attempt == 1 && step == scenario.blow_up_at;
  report.loss =
      blows_up ? std::numeric_limits<double>::infinity() : loss_of(scenario, attempt, step);
  report.grad_norm = 1.0 / 3.0;
  report.learning_rate = 1e-3;
  report.tokens = 64;
  report.step_seconds = 0.25;
  report.weights_hash = fmt::format("{:016x}", (scenario.number * 1000 + attempt) * 100000 + step);
  report.time = static_cast<double>(step);
  return report;
}

CheckpointReport checkpoint_of(const RunScenario& scenario, int64_t attempt, int64_t step,
                               int64_t plan_version) {
  const StepReport report = step_of(scenario, attempt, step, plan_version);
  return {attempt,
          step,
          fmt::format("/checkpoints/{}/attempt{}/step{}", scenario.name(), attempt, step),
          plan_version,
          1000,
          "m" + report.weights_hash,
          report.weights_hash,
          report.time};
}

TrainerNotice notice_of(const RunScenario& scenario, int64_t attempt, int64_t step) {
  return {attempt,
          step,
          "checkpoint_failed",
          fmt::format("{} had no room at step {}", scenario.name(), step),
          "",
          0,
          static_cast<double>(step)};
}

RunFinished finish_of(const RunScenario& scenario, const std::string& outcome, int64_t step) {
  return {test::any_word(outcome), step, 3.5 + 0.1 * noise(scenario, 2, 0, 0),
          0.25 * static_cast<double>(step), 1.0};
}

ReplayResult result_of(const RunScenario& scenario, const ReplayTask& task, int64_t plan_version) {
  ReplayResult result;
  result.fingerprint = fingerprint();
  const int64_t end = task.start_step + task.steps;
  const bool bad = scenario.gap_from > 0 && end >= scenario.gap_from && plan_version == 1;
  const bool same = task.arm == "same";
  const double gap = (bad ? kGap : 0.0) + kGapNoise * noise(scenario, 3, task.attempt, end);
  for (int64_t step = task.start_step + 1; step <= end; ++step) {
    const StepReport own = step_of(scenario, task.attempt, step, plan_version);
    result.steps.push_back({step, same ? own.loss : loss_of(scenario, task.attempt, step) - gap,
                            own.grad_norm, same ? own.weights_hash : "0000000000000000"});
  }
  result.start_loss_bf16 = 4.0;
  result.start_loss_plan = 4.004;
  result.run_end_loss_bf16 = 3.9;
  result.replay_end_loss_bf16 = same ? 3.9 : 3.9 - gap;
  result.heldout_tokens = 1024;
  result.replay_seconds = 1.5;
  result.eval_seconds = 0.5;
  return result;
}

std::string policy_text(double lease_ttl_seconds) {
  return fmt::format(
      "[window]\nevery = 5\nsteps = 5\nopen_max = 8\n[verifier]\nlease_ttl_seconds = {}\n"
      "attempts_max = 20\n[instrument]\nevery = 0\n[triage]\npairs = 0\n"
      "[attribution]\nscores = false\n",
      lease_ttl_seconds);
}

}  // namespace gnomon::robustness

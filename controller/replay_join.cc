#include "controller/replay_join.h"

#include <cmath>
#include <limits>
#include <map>

#include "base/hash.h"
#include "protocol/json.h"

namespace gnomon {

bool same_bits(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

static std::string fingerprint_digest(const Fingerprint& fingerprint) {
  if (fingerprint == Fingerprint{}) return {};
  const std::string text = to_json(fingerprint);
  return hex64(hash64(text.data(), text.size()));
}

decide::ReplayFinished join_replay(const ReplayOrder& replay, const ReplayResult& result,
                                   const std::vector<StepRow>& run_steps,
                                   const Fingerprint& run_fingerprint, const std::string& verifier,
                                   bool on_trainer) {
  decide::ReplayFinished event;
  event.replay = replay.replay;
  event.window = replay.window;
  event.arm = replay.arm;
  event.purpose = replay.purpose;
  event.fingerprint_equal = result.fingerprint == run_fingerprint;
  event.start_loss_bf16 = result.start_loss_bf16;
  event.start_loss_plan =
      result.start_loss_fakequant ? result.start_loss_fakequant : result.start_loss_plan;
  event.run_end_loss_bf16 = result.run_end_loss_bf16;
  event.replay_end_loss_bf16 = result.replay_end_loss_bf16;
  event.verifier = verifier;
  event.fingerprint = fingerprint_digest(result.fingerprint);
  event.on_trainer = on_trainer;
  event.gap_error = result.gap_error;
  event.seconds = result.replay_seconds + result.eval_seconds;
  event.step_seconds = result.replay_seconds;
  if (!result.steps.empty()) event.end_hash = result.steps.back().weights_hash;
  for (const SiteScoreRow& score : result.scores) {
    event.scores.push_back({score.site, score.phi, score.psi, score.sqnr_db});
  }
  std::map<int64_t, const StepRow*> by_step;
  for (const StepRow& step : run_steps) {
    by_step[step.step] = &step;
  }
  for (const ReplayStep& step : result.steps) {
    auto found = by_step.find(step.step);
    const StepRow* reported = found == by_step.end() ? nullptr : found->second;
    event.steps.push_back(step.step);
    event.losses.push_back(step.loss);
    bool comparable = reported && std::isfinite(reported->loss);
    event.run_losses.push_back(comparable ? reported->loss
                                          : std::numeric_limits<double>::quiet_NaN());
    if (!reported) continue;
    const bool hashed = !reported->batch_hash.empty() && !step.batch_hash.empty();
    if (hashed && reported->batch_hash != step.batch_hash) {
      if (!event.first_other_batch_step) event.first_other_batch_step = step.step;
      if (event.other_batches.size() < decide::kOtherBatchesMax) {
        event.other_batches.push_back({step.step, reported->batch_hash, step.batch_hash});
      }
    }
    if (reported->weights_hash.empty() || step.weights_hash.empty()) continue;
    ++event.compared_steps;
    bool equal = reported->weights_hash == step.weights_hash &&
                 same_bits(reported->loss, step.loss) &&
                 (!reported->grad_norm || !step.grad_norm ||
                  same_bits(*reported->grad_norm, *step.grad_norm));
    if (!equal && !event.first_mismatch_step) {
      event.first_mismatch_step = step.step;
    }
  }
  return event;
}

}  // namespace gnomon

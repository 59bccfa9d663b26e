#include "controller/decide/health.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/hash.h"

namespace gnomon::decide {
namespace {

constexpr size_t kBatchesMax = 128;       // newest batches that a new one is compared with
constexpr int64_t kRepeatsMin = 3;        // in a row
constexpr double kCollapsedLoss = 0.25;   // nats; no text that is new to a model is so easy
constexpr double kOverfitShare = 0.8;     // of the lowest held-out loss
constexpr double kMeanWeight = 1.0 / 32;  // of a new step in the mean loss

void note_batch(Core& core, const StepReported& step) {
  Health& health = core.s.watch.health;
  if (step.batch_hash.empty()) return;
  std::vector<int64_t>& keys = health.batch_keys;
  const auto key = static_cast<int64_t>(hash64(step.batch_hash.data(), step.batch_hash.size()));
  const auto found = std::find(keys.rbegin(), keys.rend(), key);
  const auto ago = found - keys.rbegin() + 1;
  health.repeats = found != keys.rend() ? health.repeats + 1 : 0;
  if (keys.size() >= kBatchesMax) keys.erase(keys.begin());
  keys.push_back(key);
  if (health.repeats == 0) health.repeats_recorded = false;
  if (health.repeats < kRepeatsMin || health.repeats_recorded) return;
  health.repeats_recorded = true;
  core.record("health",
              fmt::format("The run trains on the same batches again: those of steps {} to {} are "
                          "those of {} steps before. Look at the loader and at the size of the "
                          "data.",
                          step.step - health.repeats + 1, step.step, ago),
              {{"first_step", step.step - health.repeats + 1}, {"steps_ago", ago}})
      .verdict = "repeated_data";
}

void note_collapse(Core& core, const StepReported& step) {
  State& s = core.s;
  if (!std::isfinite(step.loss)) return;
  double& mean = s.watch.health.mean_loss;
  mean += (mean == 0 ? 1 : kMeanWeight) * (step.loss - mean);
  if (s.watch.sentinels.loss.count < kSentinelLearns) return;
  if (mean >= kCollapsedLoss) {
    if (mean > 2 * kCollapsedLoss) s.watch.health.collapse_recorded = false;
    return;
  }
  if (s.watch.health.collapse_recorded) return;
  s.watch.health.collapse_recorded = true;
  core.record(
          "health",
          fmt::format("The training loss has fallen to {:.3f} nats at step {}. Text that is new "
                      "to a model is not so easy: the data repeats itself, or the targets are "
                      "among the inputs.",
                      mean, step.step),
          {{"loss", number(mean)}})
      .verdict = "loss_collapse";
}

}  // namespace

void note_health(Core& core, const StepReported& step) {
  note_batch(core, step);
  note_collapse(core, step);
}

bool note_overfitting(Core& core, double lowest_held_out, const std::string& seen) {
  State& s = core.s;
  const double mean = s.watch.health.mean_loss;
  if (s.watch.sentinels.loss.count < kSentinelLearns || mean > kOverfitShare * lowest_held_out)
    return false;
  if (s.watch.health.overfitting_recorded) return true;
  s.watch.health.overfitting_recorded = true;
  core.record("health",
              fmt::format("The run learns its text by heart: {}, while the training loss is {:.3f} "
                          "nats and the held-out loss has been {:.3f} at best. More data or fewer "
                          "epochs, not another precision.",
                          seen, mean, lowest_held_out),
              {{"loss", number(mean)}, {"lowest_bf16_loss", number(lowest_held_out)}})
      .verdict = "overfitting";
  return true;
}

void forget_batches(State& state) {
  state.watch.health.batch_keys.clear();
  state.watch.health.repeats = 0;
}

}  // namespace gnomon::decide

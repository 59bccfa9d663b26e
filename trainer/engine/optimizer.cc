#include "trainer/engine/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/errors.h"

namespace gnomon {

double OptimizerConfig::at(int64_t step) const {
  if (step < warmup_steps) {
    return learning_rate * static_cast<double>(step) / static_cast<double>(warmup_steps);
  }
  double length = static_cast<double>(std::max<int64_t>(total_steps - warmup_steps, 1));
  double done = std::clamp(static_cast<double>(step - warmup_steps) / length, 0.0, 1.0);
  double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * done));
  return learning_rate * (min_ratio + (1.0 - min_ratio) * cosine);
}

Optimizer::Optimizer(const OptimizerConfig& config, const ParameterLayout& layout,
                     BackendBase& backend, uint64_t seed, Shard shard, MomentFormat room)
    : config_(config),
      layout_(layout),
      backend_(backend),
      seed_(seed),
      state_("optimizer", config.name, room, shard, backend.memory()) {
  GNOMON_ASSERT(shard.end <= layout.elements());
}

Optimizer::Optimizer(const OptimizerConfig& config, const ParameterLayout& layout,
                     BackendBase& backend, uint64_t seed)
    : Optimizer(config, layout, backend, seed, {0, layout.elements()}, MomentFormat::kFp32) {}

double Optimizer::sum_of_squares(std::span<const float> gradients) const {
  return backend_.sum_of_squares(gradients);
}

double Optimizer::norm(std::span<const float> gradients) const {
  return std::sqrt(sum_of_squares(gradients));
}

bool Optimizer::update(int64_t step, double norm, std::span<const float> gradients,
                       WeightSpan weights) {
  return update(step, config_.at(step), norm, gradients, weights);
}

bool Optimizer::update(int64_t step, double learning_rate, double norm,
                       std::span<const float> gradients, WeightSpan weights) {
  double clip = config_.clip > 0 && norm > config_.clip ? config_.clip / norm : 1.0;
  state_.count_update();
  const double t = static_cast<double>(state_.updates());
  const UpdateStep update{
      .learning_rate = static_cast<float>(learning_rate),
      .beta1 = static_cast<float>(config_.beta1),
      .beta2 = static_cast<float>(config_.beta2),
      .eps = static_cast<float>(config_.eps),
      .weight_decay = static_cast<float>(config_.weight_decay),
      .bias_correction1 = static_cast<float>(1.0 - std::pow(config_.beta1, t)),
      .bias_correction2 = static_cast<float>(1.0 - std::pow(config_.beta2, t)),
      .gradient_scale = static_cast<float>(clip),
      .decayed = layout_.decayed() - shard().begin,
      .seed = seed_,
      .step = step,
      .first_element = shard().begin,
      .optimizer = config_.name,
  };
  return state_.note_sums(backend_.update(update, gradients, moments(), masters(), weights));
}

}  // namespace gnomon

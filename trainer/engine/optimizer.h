// AdamW with FP32 masters over the flat numbering of ParameterLayout, and the gradient's norm.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/tensor.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/parameters.h"

namespace gnomon {

class Optimizer {
 public:
  // Takes memory for masters and moments of `layout`. `backend` and `layout` must outlive this.
  Optimizer(const OptimizerConfig& config, const ParameterLayout& layout, BackendBase& backend);

  std::span<float> masters() { return masters_; }
  std::span<float> first_moments() { return first_moments_; }
  std::span<float> second_moments() { return second_moments_; }
  const Arena& arena() const { return arena_; }

  // Euclidean norm of all gradients.
  double norm(std::span<const float> gradients) const;
  // One update as step 1, 2, ...: gradients are clipped to config.clip by `norm`. Writes masters,
  // moments and `weights`, the working copy.
  void update(int64_t step, double norm, std::span<const float> gradients, WeightSpan weights);

 private:
  OptimizerConfig config_;
  const ParameterLayout& layout_;
  BackendBase& backend_;
  Arena arena_{"optimizer"};
  std::span<float> masters_, first_moments_, second_moments_;
};

}  // namespace gnomon

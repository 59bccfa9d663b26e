// An optimizer with FP32 masters over the flat numbering of ParameterLayout, and the gradient's
// norm. An optimizer may own a part of the elements only (ZeRO-1, arXiv 1910.02054): the masters
// and moments of its shard.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/optimizer_state.h"
#include "trainer/engine/parameters.h"

namespace gnomon {

class Optimizer {
 public:
  // Takes memory for masters and moments, of `room` or narrower, of `shard` of `layout`. `seed`
  // keys the rounding of moments that are not FP32. `backend` and `layout` must outlive this.
  Optimizer(const OptimizerConfig& config, const ParameterLayout& layout, BackendBase& backend,
            uint64_t seed, Shard shard, MomentFormat room);
  // The same for all elements, with room for FP32 moments.
  Optimizer(const OptimizerConfig& config, const ParameterLayout& layout, BackendBase& backend,
            uint64_t seed = 0);

  OptimizerState& state() { return state_; }
  const OptimizerState& state() const { return state_; }
  const Shard& shard() const { return state_.shard(); }
  std::span<float> masters() { return state_.masters(); }
  const MomentSpans& moments() const { return state_.moments(); }

  // Σ g² over `gradients`, and the root of it.
  double sum_of_squares(std::span<const float> gradients) const;
  double norm(std::span<const float> gradients) const;
  // One update in step 1, 2, ..., of which any may have been skipped: gradients are clipped to
  // config.clip by `norm`, that of all elements. `gradients` and `weights`, the working copy, are
  // the shard's. Weights, masters and moments are written. Returns OptimizerState::note_sums().
  bool update(int64_t step, double learning_rate, double norm, std::span<const float> gradients,
              WeightSpan weights);
  // The same at the configured learning rate.
  bool update(int64_t step, double norm, std::span<const float> gradients, WeightSpan weights);

 private:
  OptimizerConfig config_;
  const ParameterLayout& layout_;
  BackendBase& backend_;
  uint64_t seed_;
  OptimizerState state_;
};

}  // namespace gnomon

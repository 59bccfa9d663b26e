// A Llama-style decoder on a backend's operations: forward, and backward from stashed activations.
// Activations and working weights are BF16, gradients FP32; which GEMMs run in FP8 is told pass by
// pass. All memory is taken in the constructor.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor.h"
#include "trainer/engine/linear.h"
#include "trainer/engine/model_config.h"
#include "trainer/engine/parameters.h"

namespace gnomon {

// Stashed values of one layer; n tokens, names as in the model's equations.
struct LayerActivations {
  std::span<bf16> attention_residual;  // what the first norm normalised [n,width]
  std::span<float> attention_rstd;     // [n]
  GemmOperand attention_input;         // normalised, input of q, k, v
  std::span<bf16> q, k, v;             // after bias and rotation
  std::span<bf16> attention_output;
  GemmOperand o_input;  // attention_output as operand
  std::span<std::byte> attention_saved;
  std::span<bf16> mlp_residual;
  std::span<float> mlp_rstd;
  GemmOperand mlp_input;  // normalised, input of gate and up
  std::span<bf16> gate, up, hidden;
  GemmOperand down_input;  // hidden as operand
  std::span<bf16> attention_normed, mlp_normed;
};

class Model {
 public:
  // For micro-batches of up to `sequences` × `tokens`. `backend` and `scaling` must outlive the
  // model. Throws ConfigError (config.check(), faults that name no site), Error when memory is
  // short.
  Model(const ModelConfig& config, int64_t sequences, int64_t tokens, Backend& backend,
        ScalingState& scaling, const std::vector<Fault>& faults);

  const ModelConfig& config() const { return config_; }
  const ParameterLayout& layout() const { return layout_; }
  const std::vector<std::string>& sites() const { return sites_; }
  LinearLayers& linears() { return linears_; }

  // All working weights and all gradients, numbered by the layout.
  std::span<bf16> weights() { return weights_; }
  std::span<const bf16> weights() const { return weights_; }
  std::span<float> gradients() { return gradients_; }
  std::span<bf16> weight(int index) { return slice(weights_, index); }
  std::span<float> gradient(int index) { return slice(gradients_, index); }
  // Must be called after weights() were written, before the next pass.
  void weights_changed();

  // Sum over tokens of the loss in nats. `tokens` and `targets` hold a whole number of sequences,
  // at most as many as the constructor was told.
  double forward(const PassPlan& pass, std::span<const int32_t> tokens,
                 std::span<const int32_t> targets);
  // The same, and the gradient of (loss sum · gradient_scale): added to gradients() when
  // `accumulate`, otherwise replacing them.
  double forward_backward(const PassPlan& pass, std::span<const int32_t> tokens,
                          std::span<const int32_t> targets, float gradient_scale, bool accumulate);

  std::vector<const Arena*> arenas() const {
    return {&weights_arena_, &gradients_arena_, &activations_arena_, &workspace_arena_};
  }

 private:
  enum SiteKind { kQ, kK, kV, kO, kGate, kUp, kDown, kSitesPerLayer };
  int site(int layer, SiteKind kind) const { return layer * kSitesPerLayer + kind; }
  int head_site() const { return config_.layers * kSitesPerLayer; }
  template <typename T>
  std::span<T> slice(std::span<T> all, int index) const {
    const Parameter& parameter = layout_[index];
    return all.subspan(static_cast<size_t>(parameter.offset), static_cast<size_t>(parameter.size));
  }

  void take_memory();
  void take_weights();
  void take_activations();
  void take_workspace();

  AttentionShape attention_shape() const;
  std::span<const bf16> rows(std::span<bf16> x, int64_t row_width) const {
    return x.first(static_cast<size_t>(n_ * row_width));
  }
  std::span<bf16> rows_mutable(std::span<bf16> x, int64_t row_width) const {
    return x.first(static_cast<size_t>(n_ * row_width));
  }
  double run_forward(const PassPlan& pass, std::span<const int32_t> tokens,
                     std::span<const int32_t> targets, float gradient_scale, bool with_gradient);
  void forward_attention(int layer, std::span<const bf16> update);
  void forward_mlp(int layer);
  void backward_head(bool accumulate);
  void backward_mlp(int layer, bool accumulate);
  void backward_attention(int layer, bool accumulate);
  void backward_shared_input(std::span<const bf16> residual, int norm, std::span<const float> rstd);
  void start_gradients(bool accumulate);
  GemmOperand& gradient_operand(std::span<const bf16> dy);

  ModelConfig config_;
  ParameterLayout layout_;
  std::vector<std::string> sites_;
  Backend& backend_;
  LinearLayers linears_;
  int64_t sequences_;  // most
  int64_t tokens_;     // per sequence
  int64_t n_ = 0;      // tokens of the pass
  int64_t width_;
  int64_t kv_width_;
  int64_t ffn_;

  Arena weights_arena_{"weights"};
  Arena gradients_arena_{"gradients"};
  Arena activations_arena_{"activations"};
  Arena workspace_arena_{"workspace"};

  std::span<bf16> weights_;
  std::span<float> gradients_;
  std::vector<GemmOperand> site_weights_;  // by site
  std::vector<LayerActivations> layers_;
  std::span<bf16> final_residual_, final_normed_, logits_;
  std::span<float> final_rstd_, losses_;
  GemmOperand final_input_;

  GemmOperand dy_;                        // the output gradient at hand
  std::span<bf16> update_;                // [n,width] what a block adds to the residual
  std::span<bf16> d_residual_, d_input_;  // [n,width]
  std::span<float> d_shared_;             // [n,width] sum over the sites that share an input
  std::span<bf16> d_attention_;           // [n,width]
  std::span<bf16> dq_, dk_, dv_;
  std::span<bf16> d_hidden_, d_gate_, d_up_;  // [n,ffn]
  std::span<std::byte> attention_scratch_;
};

}  // namespace gnomon

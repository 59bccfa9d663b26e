// A Llama-style decoder on a backend's operations: forward, and backward from stashed activations.
// Activations and working weights are of one element type, BF16 or FP32, gradients FP32; which
// GEMMs of a BF16 model run in FP8 is told pass by pass. All memory is taken in the constructor.
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
template <class E>
struct LayerActivations {
  std::span<E> attention_residual;  // what the first norm normalised [n,width]
  std::span<float> attention_rstd;  // [n]
  GemmOperand<E> attention_input;   // normalised, input of q, k, v
  std::span<E> q, k, v;             // after bias and rotation
  std::span<E> attention_output;
  GemmOperand<E> o_input;  // attention_output as operand
  std::span<std::byte> attention_saved;
  std::span<E> mlp_residual;
  std::span<float> mlp_rstd;
  GemmOperand<E> mlp_input;  // normalised, input of gate and up
  std::span<E> gate, up, hidden;
  GemmOperand<E> down_input;  // hidden as operand
  std::span<E> attention_normed, mlp_normed;
};

// What training needs of a model, whatever its elements are.
class DecoderModel {
 public:
  // Throws ConfigError (config.check()).
  explicit DecoderModel(const ModelConfig& config);
  virtual ~DecoderModel() = default;

  const ModelConfig& config() const { return config_; }
  const ParameterLayout& layout() const { return layout_; }
  const std::vector<std::string>& sites() const { return sites_; }

  // All working weights and all gradients, numbered by the layout.
  virtual WeightSpan working_weights() = 0;
  virtual std::span<float> gradients() = 0;
  std::span<const std::byte> weight_bytes();
  // Working weights from FP32 values, rounded to the element type, from element `offset` on.
  void set_weights(std::span<const float> values, int64_t offset = 0);
  // Must be called after working weights were written through a span, before the next pass.
  virtual void weights_changed() = 0;

  // Sum over tokens of the loss in nats. `tokens` and `targets` hold a whole number of sequences,
  // at most as many as the model was made for.
  virtual double forward(const PassPlan& pass, std::span<const int32_t> tokens,
                         std::span<const int32_t> targets) = 0;
  // The same, and the gradient of (loss sum · gradient_scale): added to gradients() when
  // `accumulate`, otherwise replacing them.
  virtual double forward_backward(const PassPlan& pass, std::span<const int32_t> tokens,
                                  std::span<const int32_t> targets, float gradient_scale,
                                  bool accumulate) = 0;
  // [n, vocabulary], before softmax.
  virtual std::vector<float> logits(const PassPlan& pass, std::span<const int32_t> tokens) = 0;

  // Whether the fault frozen_amax holds this history at `step`.
  virtual bool frozen(int site, TensorRole role, int64_t step) const = 0;
  virtual std::vector<const Arena*> arenas() const = 0;

 protected:
  ModelConfig config_;
  ParameterLayout layout_;
  std::vector<std::string> sites_;
};

// E is bf16 or float.
template <class E>
class BasicModel final : public DecoderModel {
 public:
  // For micro-batches of up to `sequences` × `tokens`. `backend` and `scaling` must outlive the
  // model. Throws ConfigError (config.check(), faults that name no site), Error when memory is
  // short.
  BasicModel(const ModelConfig& config, int64_t sequences, int64_t tokens, BackendOf<E>& backend,
             ScalingState& scaling, const std::vector<Fault>& faults);

  std::span<E> weights() { return weights_; }
  std::span<E> weight(int index) { return slice(weights_, index); }
  std::span<float> gradient(int index) { return slice(gradients_, index); }

  WeightSpan working_weights() override { return weights_; }
  std::span<float> gradients() override { return gradients_; }
  void weights_changed() override;
  double forward(const PassPlan& pass, std::span<const int32_t> tokens,
                 std::span<const int32_t> targets) override;
  double forward_backward(const PassPlan& pass, std::span<const int32_t> tokens,
                          std::span<const int32_t> targets, float gradient_scale,
                          bool accumulate) override;
  std::vector<float> logits(const PassPlan& pass, std::span<const int32_t> tokens) override;
  bool frozen(int site, TensorRole role, int64_t step) const override {
    return linears_.frozen(site, role, step);
  }
  std::vector<const Arena*> arenas() const override {
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
  std::span<const E> rows(std::span<E> x, int64_t row_width) const {
    return x.first(static_cast<size_t>(n_ * row_width));
  }
  std::span<E> rows_mutable(std::span<E> x, int64_t row_width) const {
    return x.first(static_cast<size_t>(n_ * row_width));
  }
  void compute_logits(const PassPlan& pass, std::span<const int32_t> tokens);
  double loss_of_logits(std::span<const int32_t> targets, float gradient_scale, bool with_gradient);
  void forward_attention(int layer, std::span<const E> update);
  void forward_mlp(int layer);
  void backward_head(bool accumulate);
  void backward_mlp(int layer, bool accumulate);
  void backward_attention(int layer, bool accumulate);
  void backward_shared_input(std::span<const E> residual, int norm, std::span<const float> rstd);
  void start_gradients(bool accumulate);
  GemmOperand<E>& gradient_operand(std::span<const E> dy);

  BackendOf<E>& backend_;
  LinearLayers<E> linears_;
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

  std::span<E> weights_;
  std::span<float> gradients_;
  std::vector<GemmOperand<E>> site_weights_;  // by site
  std::vector<LayerActivations<E>> layers_;
  std::span<E> final_residual_, final_normed_, logits_;
  std::span<float> final_rstd_, losses_;
  GemmOperand<E> final_input_;

  GemmOperand<E> dy_;                  // the output gradient at hand
  std::span<E> update_;                // [n,width] what a block adds to the residual
  std::span<E> d_residual_, d_input_;  // [n,width]
  std::span<float> d_shared_;          // [n,width] sum over the sites that share an input
  std::span<E> d_attention_;           // [n,width]
  std::span<E> dq_, dk_, dv_;
  std::span<E> d_hidden_, d_gate_, d_up_;  // [n,ffn]
  std::span<std::byte> attention_scratch_;
};

using Model = BasicModel<bf16>;

}  // namespace gnomon

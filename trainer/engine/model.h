// A Llama-style decoder on a backend's operations: forward, and backward from stashed activations.
// Activations and working weights are of one element type, BF16 or FP32, gradients FP32; which
// GEMMs of a BF16 model run in FP8 is told pass by pass. All memory is taken in the constructor.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor.h"
#include "trainer/engine/linear.h"
#include "trainer/engine/model_memory.h"

namespace gnomon {

// What training needs of a model, whatever its elements are.
class DecoderModel {
 public:
  // Weights, gradients and all else lie in `memory`, which must outlive the model. Throws
  // ConfigError (config.check()).
  DecoderModel(const ModelConfig& config, Memory& memory);
  virtual ~DecoderModel() = default;

  const ModelConfig& config() const { return config_; }
  const ParameterLayout& layout() const { return layout_; }
  const std::vector<std::string>& sites() const { return sites_; }

  // Working weights and all gradients, numbered by the layout, in memory().
  virtual WorkingWeights& working() = 0;
  virtual std::span<float> gradients() = 0;
  Memory& memory() { return memory_; }
  // All working weights, where they are whole.
  WeightSpan working_weights() { return working().all(); }
  // Working weights from FP32 values of the host, rounded to the element type, from element
  // `offset` on.
  void set_weights(std::span<const float> values, int64_t offset = 0) {
    working().set(values, offset);
  }
  // Must be called after working weights were written through a span, before the next pass.
  void weights_changed() { working().changed(); }

  // Sum over tokens of the loss in nats. `tokens` and `targets`, the host's, hold a whole number of
  // sequences, at most as many as the model was made for.
  virtual double forward(const PassPlan& pass, std::span<const int32_t> tokens,
                         std::span<const int32_t> targets) = 0;
  // The same, and the gradient of (loss sum · gradient_scale): added to gradients() when
  // `accumulate`, otherwise replacing them.
  virtual double forward_backward(const PassPlan& pass, std::span<const int32_t> tokens,
                                  std::span<const int32_t> targets, float gradient_scale,
                                  bool accumulate) = 0;
  // Runs both passes through one layer and the ends, on tokens of no meaning, so that the backend
  // has all it needs for `pass` before the first step. Overwrites gradients().
  virtual void prepare(const PassPlan& pass, int64_t tokens, bool accumulate) = 0;
  // The same for forward() alone.
  virtual void prepare_forward(const PassPlan& pass, int64_t tokens) = 0;
  // The last batch of an evaluation has so many tokens: its products are expected too.
  virtual void expect_evaluations(int64_t last_tokens) = 0;
  // A pass that other ranks make: forward(), or forward_backward() where it `trains`.
  virtual void accompany(bool trains) = 0;
  // Tells the scaling state the amaxes that passes with PassPlan::record have met since the last
  // call.
  virtual void report_observed() = 0;
  // What casts did to the tensors of passes since begin_counting(): by site and TensorRole.
  virtual std::vector<CastCounts> casts() = 0;
  virtual void begin_counting() = 0;
  // [n, vocabulary], before softmax.
  virtual std::vector<float> logits(const PassPlan& pass, std::span<const int32_t> tokens) = 0;

  // ---- faults ----
  // Before the passes of `step`: what a fault keeps of the weights as they are now.
  virtual void begin_step(int64_t step) = 0;
  // In memory(): the weight of a site whose FP8 copy is stale in `step`, which later steps cannot
  // be computed without; empty where there is none.
  virtual std::span<std::byte> stale_weight(int site, int64_t step) = 0;
  // Room for the one that a checkpoint has.
  virtual std::span<std::byte> allocate_stale_weight(int site) = 0;
  virtual void forget_stale_weights() = 0;
  // Keeps a copy of all stale weights, and brings it back.
  virtual void keep_stale_weights() = 0;
  virtual void restore_stale_weights() = 0;

  virtual std::vector<const Arena*> arenas() const = 0;

 protected:
  ModelConfig config_;
  Memory& memory_;
  ParameterLayout layout_;
  std::vector<std::string> sites_;
};

// E is bf16 or float.
template <class E>
class BasicModel final : public DecoderModel {
 public:
  // For micro-batches of up to `sequences` × `tokens`. `backend`, `scaling` and `faults`, which may
  // be nullptr, must outlive the model. Throws ConfigError (config.check()), Error when memory is
  // short.
  BasicModel(const ModelConfig& config, int64_t sequences, int64_t tokens, BackendOf<E>& backend,
             ScalingState& scaling, const FaultView* faults, const MemoryChoice& choice = {},
             WeightRanks ranks = {});
  // The arenas that it would have, of which nothing is taken.
  static std::vector<ArenaSize> measure(const ModelConfig& config, int64_t sequences,
                                        int64_t tokens, BackendOf<E>& backend,
                                        const MemoryChoice& choice, WeightRanks ranks = {});

  std::span<E> weights() { return std::get<std::span<E>>(working_weights()); }
  std::span<E> weight(int index) { return room_.weights->weight(index); }
  std::span<float> gradient(int index) {
    const Parameter& parameter = layout_[index];
    return room_.gradients.subspan(static_cast<size_t>(parameter.offset),
                                   static_cast<size_t>(parameter.size));
  }

  WorkingWeights& working() override { return *room_.weights; }
  std::span<float> gradients() override { return room_.gradients; }
  double forward(const PassPlan& pass, std::span<const int32_t> tokens,
                 std::span<const int32_t> targets) override;
  double forward_backward(const PassPlan& pass, std::span<const int32_t> tokens,
                          std::span<const int32_t> targets, float gradient_scale,
                          bool accumulate) override;
  void prepare(const PassPlan& pass, int64_t tokens, bool accumulate) override;
  void prepare_forward(const PassPlan& pass, int64_t tokens) override;
  void expect_evaluations(int64_t last_tokens) override;
  void accompany(bool trains) override { room_.weights->accompany_pass(layers_run_, trains); }
  void report_observed() override { linears_.report_observed(); }
  std::vector<CastCounts> casts() override { return linears_.casts(); }
  void begin_counting() override { linears_.begin_counting(); }
  std::vector<float> logits(const PassPlan& pass, std::span<const int32_t> tokens) override;
  void begin_step(int64_t step) override {
    linears_.faulty_operands().begin_step(step, room_.weights->all_operands());
  }
  std::span<std::byte> stale_weight(int site, int64_t step) override {
    return std::as_writable_bytes(linears_.faulty_operands().stale_weight(site, step));
  }
  std::span<std::byte> allocate_stale_weight(int site) override {
    const int64_t size = layout_.weight_of(sites_[static_cast<size_t>(site)]).size;
    return std::as_writable_bytes(linears_.faulty_operands().allocate_stale_weight(site, size));
  }
  void forget_stale_weights() override { linears_.faulty_operands().forget_stale_weights(); }
  void keep_stale_weights() override { linears_.faulty_operands().keep_stale_weights(); }
  void restore_stale_weights() override { linears_.faulty_operands().restore_stale_weights(); }
  std::vector<const Arena*> arenas() const override { return room_.arenas(); }

 private:
  std::vector<ExpectedProduct> products_of_run(int64_t last_tokens) const;
  AttentionShape attention_shape() const { return gnomon::attention_shape(config_, n_, tokens_); }
  int64_t qkv_width() const { return attention_width_ + 2 * kv_width_; }
  std::span<const E> rows(std::span<E> x, int64_t row_width) const {
    return x.first(static_cast<size_t>(n_ * row_width));
  }
  std::span<E> rows_mutable(std::span<E> x, int64_t row_width) const {
    return x.first(static_cast<size_t>(n_ * row_width));
  }
  void begin_pass(const PassPlan& pass, std::span<const int32_t> tokens);
  // Up to the input of lm_head.
  void run_layers();
  // All that forward_backward() puts on the device.
  void both_ways(float gradient_scale, bool accumulate);
  // lm_head, a part of the rows after another: its logits, then `use` of their first row and
  // number.
  template <class Use>
  void run_head(Use use);
  // Reads the targets brought for the pass.
  void loss_of_logits(int64_t first, int64_t count, float gradient_scale, bool with_gradient,
                      float* amax);
  double sum_of_losses();
  // The pass's tokens where the backend reads them.
  std::span<const int32_t> bring(std::span<const int32_t> from_host, std::span<int32_t> room) {
    const std::span<int32_t> there = room.first(from_host.size());
    write_from_host(memory_, from_host, there);
    return there;
  }
  // `below` is the residual that `update` is to be added to.
  void forward_attention(int layer, std::span<const E> below, std::span<const E> update);
  void forward_hidden(int layer);
  void multiply_gate(int layer);
  void forward_down(int layer);
  // What of the layer's forward pass was not kept.
  void compute_again(int layer);
  void backward_head(int64_t first, int64_t count, bool accumulate);
  void backward_final_norm();
  void backward_mlp(int layer, bool accumulate);
  void backward_attention(int layer, bool accumulate);
  void start_gradients(bool accumulate);
  // Where the gradients of a group's outputs go, as LinearLayers::backward wants them: in `memory`
  // of n × total_out elements, a place for each site.
  std::array<StridedRows<E>, SiteGroup::kMax> places(const SiteGroup& group,
                                                     std::span<E> memory) const;
  // What a group's outputs' gradients, n rows, are about to be, and where their amaxes belong.
  std::array<float*, SiteGroup::kMax> renew_gradients(const SiteGroup& group,
                                                      std::span<E> d_outputs, int64_t n);
  SiteGroup group(int layer, SiteGroupName name) const;
  SiteGroup head_group() const {
    return {.first = config_.layers * layout_.table().count(),
            .in = width_,
            .out = {config_.vocabulary}};
  }
  // After renew_gradients().
  void backward_group(const SiteGroup& group, GemmOperand<E>& x, int64_t n, std::span<E> dx,
                      bool accumulate);
  std::span<GemmOperand<E>> weights_of(const SiteGroup& group) {
    return room_.weights->operands(group.first, group.count);
  }
  // A vector of a layer, by its place in the table, as a parameter.
  int vector(int layer, int place) const {
    return layout_.layers()[static_cast<size_t>(layer)].vectors[static_cast<size_t>(place)];
  }
  // Layers that keep nothing of their own share what the last one computed has.
  size_t kept_by(int layer) const {
    return choice_.recompute == Recompute::kBlock ? 0 : static_cast<size_t>(layer);
  }
  LayerActivations<E>& activations(int layer) { return room_.layers[kept_by(layer)]; }
  HeadPass<E> head_pass(int layer, const std::array<StridedRows<E>, 3>& rows) {
    return {.backend = backend_,
            .weights = *room_.weights,
            .layout = layout_,
            .gradients = room_.gradients,
            .layer = layer,
            .memory = kept_by(layer),
            .n = n_,
            .tokens = tokens_,
            .rows = rows};
  }
  LayerHidden<E>& hidden(int layer) {
    return room_.hidden[choice_.recompute == Recompute::kNone ? static_cast<size_t>(layer) : 0];
  }
  std::span<E> block_input(int layer) { return room_.block_inputs[static_cast<size_t>(layer)]; }

  BackendOf<E>& backend_;
  LinearLayers<E> linears_;
  MemoryChoice choice_;
  PassPlan pass_;      // at hand
  int64_t sequences_;  // most
  int64_t tokens_;     // per sequence
  int64_t n_ = 0;      // tokens of the pass
  int layers_run_;     // all but while preparing
  int64_t width_;
  int64_t attention_width_;
  int64_t kv_width_;
  int64_t ffn_;
  int attention_norm_, mlp_norm_;  // places in the table of a layer's vectors

  ModelMemory<E> room_;
};

using Model = BasicModel<bf16>;

}  // namespace gnomon

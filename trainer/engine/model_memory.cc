#include "trainer/engine/model_memory.h"

#include <algorithm>

namespace gnomon {

AttentionShape attention_shape(const ModelConfig& config, int64_t n, int64_t tokens) {
  const int64_t stride = config.attention_width() + 2 * config.kv_width();
  return {.sequences = n / tokens,
          .tokens = tokens,
          .heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim(),
          .stride_q = stride,
          .stride_kv = stride};
}

template <class E>
ModelMemory<E>::ModelMemory(const ModelConfig& config, const ParameterLayout& layout,
                            int64_t sequences, int64_t tokens, BackendOf<E>& backend,
                            const MemoryChoice& choice, WeightRanks ranks)
    : head_rows(choice.rows_of_logits(config, sequences * tokens)),
      config_(config),
      layout_(layout),
      n_(sequences * tokens),
      tokens_(tokens),
      backend_(backend),
      memory_(backend.memory()),
      choice_(choice),
      ranks_(ranks) {
  allocate();
}

template <class E>
void ModelMemory<E>::commit() {
  for (Arena* arena :
       {&weights_arena_, &gradients_arena_, &activations_arena_, &workspace_arena_}) {
    arena->commit();
  }
  allocate();
}

template <class E>
void ModelMemory<E>::allocate() {
  gradients = gradients_arena_.allocate<float>(layout_.elements());
  weights = make_working_weights(layout_, ranks_, backend_, weights_arena_, gradients);
  allocate_activations();
  allocate_workspace();
}

template <class E>
void ModelMemory<E>::give_room(Arena& arena, GemmOperand<E>& operand, int64_t elements) {
  operand.room = {allocate_copy_room(arena, elements), 0, elements};
  allocate_scalars(arena, memory_, operand);
}

template <class E>
void ModelMemory<E>::allocate_activations() {
  Arena& arena = activations_arena_;
  const auto all = static_cast<size_t>(config_.layers);
  block_inputs.resize(all);
  for (std::span<E>& input : block_inputs) input = arena.allocate<E>(n_ * config_.width);
  head_steps = make_head_steps<E>(config_, layout_.table());
  layers.clear();
  layers.resize(choice_.recompute == Recompute::kBlock ? 1 : all);
  for (LayerActivations<E>& layer : layers) allocate_layer(layer);
  hidden.clear();
  hidden.resize(choice_.recompute == Recompute::kNone ? all : 1);
  for (LayerHidden<E>& layer : hidden) {
    layer.hidden = arena.allocate<E>(n_ * config_.ffn);
    give_room(arena, layer.down_input, n_ * config_.ffn);
  }
  final_residual = arena.allocate<E>(n_ * config_.width);
  final_rstd = arena.allocate<float>(n_);
  final_normed = arena.allocate<E>(n_ * config_.width);
  give_room(arena, final_input, head_rows * config_.width);
  logits = arena.allocate<E>(head_rows * config_.vocabulary);
  losses = arena.allocate<float>(n_);
}

template <class E>
void ModelMemory<E>::allocate_layer(LayerActivations<E>& layer) {
  Arena& arena = activations_arena_;
  layer.attention_rstd = arena.allocate<float>(n_);
  layer.attention_normed = arena.allocate<E>(n_ * config_.width);
  give_room(arena, layer.attention_input, n_ * config_.width);
  layer.qkv = arena.allocate<E>(n_ * (config_.attention_width() + 2 * config_.kv_width()));
  for (const auto& step : head_steps) step->allocate(arena, n_);
  layer.attention_saved = arena.allocate<std::byte>(
      backend_.attention_saved_bytes(attention_shape(config_, n_, tokens_)));
  layer.attention_output = arena.allocate<E>(n_ * config_.attention_width());
  give_room(arena, layer.o_input, n_ * config_.attention_width());
  layer.mlp_residual = arena.allocate<E>(n_ * config_.width);
  layer.mlp_rstd = arena.allocate<float>(n_);
  layer.mlp_normed = arena.allocate<E>(n_ * config_.width);
  give_room(arena, layer.mlp_input, n_ * config_.width);
  layer.gate_up = arena.allocate<E>(n_ * 2 * config_.ffn);
}

template <class E>
void ModelMemory<E>::allocate_workspace() {
  Arena& arena = workspace_arena_;
  const int64_t most =
      std::max(head_rows * config_.vocabulary,
               n_ * std::max<int64_t>({config_.ffn, config_.width, config_.attention_width()}));
  std::byte* room = allocate_copy_room(arena, most);
  for (GemmOperand<E>& operand : dy) {
    operand.room = {room, 0, most};
    allocate_scalars(arena, memory_, operand);
  }
  tokens_of_pass = arena.allocate<int32_t>(n_);
  targets_of_pass = arena.allocate<int32_t>(n_);
  embedded = arena.allocate<E>(n_ * config_.width);
  update = arena.allocate<E>(n_ * config_.width);
  d_residual = arena.allocate<E>(n_ * config_.width);
  d_input = arena.allocate<E>(n_ * config_.width);
  d_shared = arena.allocate<float>(n_ * config_.width);
  d_attention = arena.allocate<E>(n_ * config_.attention_width());
  d_qkv = arena.allocate<E>(n_ * (config_.attention_width() + 2 * config_.kv_width()));
  d_hidden = arena.allocate<E>(n_ * config_.ffn);
  d_gate_up = arena.allocate<E>(n_ * 2 * config_.ffn);
  attention_scratch = arena.allocate<std::byte>(
      backend_.attention_scratch_bytes(attention_shape(config_, n_, tokens_)));
}

template struct ModelMemory<bf16>;
template struct ModelMemory<float>;

}  // namespace gnomon

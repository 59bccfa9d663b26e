#include <algorithm>

#include "trainer/engine/model.h"

namespace gnomon {

DecoderModel::DecoderModel(const ModelConfig& config, Memory& memory)
    : config_((config.check(), config)), memory_(memory), layout_(config), sites_(config.sites()) {}

template <class E>
BasicModel<E>::BasicModel(const ModelConfig& config, int64_t sequences, int64_t tokens,
                          BackendOf<E>& backend, ScalingState& scaling, const FaultView* faults,
                          const MemoryChoice& choice, WeightRanks ranks, bool commits)
    : DecoderModel(config, backend.memory()),
      backend_(backend),
      linears_(backend, faults, scaling),
      choice_(choice),
      sequences_(sequences),
      tokens_(tokens),
      head_rows_(choice.rows_of_logits(config, sequences * tokens)),
      layers_run_(config.layers),
      width_(config.width),
      attention_width_(config.attention_width()),
      kv_width_(config.kv_width()),
      ffn_(config.ffn),
      attention_norm_(layout_.table().vector("input_layernorm.weight")),
      mlp_norm_(layout_.table().vector("post_attention_layernorm.weight")),
      ranks_(ranks) {
  allocate_memory();
  if (!commits) return;
  for (Arena* arena :
       {&weights_arena_, &gradients_arena_, &activations_arena_, &workspace_arena_}) {
    arena->commit();
  }
  allocate_memory();
  weights_changed();
  backend_.expect_products(products_of_run(0));
}

// fprop, dgrad and wgrad of every site over the rows of a micro-batch, and fprop over those of an
// evaluation's last batch. The head's are made in parts, of which the last one may be smaller.
template <class E>
std::vector<ExpectedProduct> BasicModel<E>::products_of_run(int64_t last_tokens) const {
  std::vector<ExpectedProduct> all;
  for (const std::string& site : sites_) {
    const std::vector<int64_t>& shape = layout_.weight_of(site).shape;
    const int64_t out = shape[0], in = shape[1];
    const bool head = site == sites_.back();
    const auto parts = [&](int64_t rows) {
      return head ? std::vector{std::min(rows, head_rows_), rows % head_rows_} : std::vector{rows};
    };
    for (const int64_t rows : parts(n_)) {
      if (rows == 0) continue;
      all.push_back({rows, out, in, false});
      all.push_back({rows, in, out, false});
      all.push_back({out, in, rows, true});
    }
    for (const int64_t rows : parts(last_tokens)) {
      if (rows > 0) all.push_back({rows, out, in, false});
    }
  }
  return all;
}

template <class E>
void BasicModel<E>::expect_evaluations(int64_t last_tokens) {
  backend_.expect_products(products_of_run(last_tokens));
}

template <class E>
std::vector<ArenaSize> BasicModel<E>::measure(const ModelConfig& config, int64_t sequences,
                                              int64_t tokens, BackendOf<E>& backend,
                                              const MemoryChoice& choice, WeightRanks ranks) {
  ScalingState scaling(static_cast<int>(config.sites().size()));
  const BasicModel counted(config, sequences, tokens, backend, scaling, nullptr, choice, ranks,
                           false);
  std::vector<ArenaSize> sizes;
  for (const Arena* arena : counted.arenas()) sizes.push_back({arena->name(), arena->bytes()});
  return sizes;
}

template <class E>
void BasicModel<E>::allocate_memory() {
  n_ = sequences_ * tokens_;
  gradients_ = gradients_arena_.allocate<float>(layout_.elements());
  weights_ = make_working_weights(layout_, ranks_, backend_, weights_arena_, gradients_);
  allocate_activations();
  allocate_workspace();
}

template <class E>
void BasicModel<E>::give_room(Arena& arena, GemmOperand<E>& operand, int64_t elements) {
  operand.room = {allocate_copy_room(arena, elements), 0, elements};
  allocate_scalars(arena, memory_, operand);
}

template <class E>
AttentionShape BasicModel<E>::attention_shape() const {
  return {.sequences = n_ / tokens_,
          .tokens = tokens_,
          .heads = config_.heads,
          .kv_heads = config_.kv_heads,
          .head_dim = config_.head_dim(),
          .stride_q = qkv_width(),
          .stride_kv = qkv_width()};
}

template <class E>
SiteGroup BasicModel<E>::group(int layer, SiteGroupName name) const {
  const LayerTable& table = layout_.table();
  const auto first = std::ranges::find(table.sites, name, &Site::group);
  SiteGroup group{.first = layer * table.count() + static_cast<int>(first - table.sites.begin()),
                  .count = 0,
                  .in = first->in};
  for (auto site = first; site != table.sites.end() && site->group == name; ++site) {
    group.out[static_cast<size_t>(group.count++)] = site->out;
  }
  for (int site = group.first; site + 1 < group.first + group.count; ++site) {
    const Parameter &it = layout_[layout_.matrix(site)], &next = layout_[layout_.matrix(site + 1)];
    if (it.offset + it.size != next.offset) group.contiguous = false;
  }
  return group;
}

template <class E>
void BasicModel<E>::allocate_activations() {
  Arena& arena = activations_arena_;
  const auto all = static_cast<size_t>(config_.layers);
  block_inputs_.resize(all);
  for (std::span<E>& input : block_inputs_) input = arena.allocate<E>(n_ * width_);
  head_steps_ = make_head_steps<E>(config_, layout_.table());
  layers_.clear();
  layers_.resize(choice_.recompute == Recompute::kBlock ? 1 : all);
  for (LayerActivations<E>& layer : layers_) allocate_layer(layer);
  hidden_.clear();
  hidden_.resize(choice_.recompute == Recompute::kNone ? all : 1);
  for (LayerHidden<E>& layer : hidden_) {
    layer.hidden = arena.allocate<E>(n_ * ffn_);
    give_room(arena, layer.down_input, n_ * ffn_);
  }
  final_residual_ = arena.allocate<E>(n_ * width_);
  final_rstd_ = arena.allocate<float>(n_);
  final_normed_ = arena.allocate<E>(n_ * width_);
  give_room(arena, final_input_, head_rows_ * width_);
  logits_ = arena.allocate<E>(head_rows_ * config_.vocabulary);
  losses_ = arena.allocate<float>(n_);
}

template <class E>
void BasicModel<E>::allocate_layer(LayerActivations<E>& layer) {
  Arena& arena = activations_arena_;
  layer.attention_rstd = arena.allocate<float>(n_);
  layer.attention_normed = arena.allocate<E>(n_ * width_);
  give_room(arena, layer.attention_input, n_ * width_);
  layer.qkv = arena.allocate<E>(n_ * qkv_width());
  for (const auto& step : head_steps_) step->allocate(arena, n_);
  layer.attention_saved =
      arena.allocate<std::byte>(backend_.attention_saved_bytes(attention_shape()));
  layer.attention_output = arena.allocate<E>(n_ * attention_width_);
  give_room(arena, layer.o_input, n_ * attention_width_);
  layer.mlp_residual = arena.allocate<E>(n_ * width_);
  layer.mlp_rstd = arena.allocate<float>(n_);
  layer.mlp_normed = arena.allocate<E>(n_ * width_);
  give_room(arena, layer.mlp_input, n_ * width_);
  layer.gate_up = arena.allocate<E>(n_ * 2 * ffn_);
}

template <class E>
void BasicModel<E>::allocate_workspace() {
  Arena& arena = workspace_arena_;
  const int64_t most =
      std::max(head_rows_ * config_.vocabulary, n_ * std::max({ffn_, width_, attention_width_}));
  std::byte* room = allocate_copy_room(arena, most);
  for (GemmOperand<E>& dy : dy_) {
    dy.room = {room, 0, most};
    allocate_scalars(arena, memory_, dy);
  }
  tokens_of_pass_ = arena.allocate<int32_t>(n_);
  targets_of_pass_ = arena.allocate<int32_t>(n_);
  embedded_ = arena.allocate<E>(n_ * width_);
  update_ = arena.allocate<E>(n_ * width_);
  d_residual_ = arena.allocate<E>(n_ * width_);
  d_input_ = arena.allocate<E>(n_ * width_);
  d_shared_ = arena.allocate<float>(n_ * width_);
  d_attention_ = arena.allocate<E>(n_ * attention_width_);
  d_qkv_ = arena.allocate<E>(n_ * qkv_width());
  d_hidden_ = arena.allocate<E>(n_ * ffn_);
  d_gate_up_ = arena.allocate<E>(n_ * 2 * ffn_);
  attention_scratch_ =
      arena.allocate<std::byte>(backend_.attention_scratch_bytes(attention_shape()));
}

#define GNOMON_FOR(E)                                                                         \
  template BasicModel<E>::BasicModel(const ModelConfig&, int64_t, int64_t, BackendOf<E>&,     \
                                     ScalingState&, const FaultView*, const MemoryChoice&,    \
                                     WeightRanks, bool);                                      \
  template std::vector<ArenaSize> BasicModel<E>::measure(                                     \
      const ModelConfig&, int64_t, int64_t, BackendOf<E>&, const MemoryChoice&, WeightRanks); \
  template AttentionShape BasicModel<E>::attention_shape() const;                             \
  template SiteGroup BasicModel<E>::group(int, SiteGroupName) const;
GNOMON_FOR(bf16)
GNOMON_FOR(float)
#undef GNOMON_FOR

}  // namespace gnomon

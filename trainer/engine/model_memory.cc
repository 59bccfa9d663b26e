#include <algorithm>

#include "trainer/engine/model.h"

namespace gnomon {

DecoderModel::DecoderModel(const ModelConfig& config, Memory& memory)
    : config_((config.check(), config)), memory_(memory), layout_(config), sites_(config.sites()) {}

std::span<const std::byte> DecoderModel::weight_bytes() {
  return std::visit(
      [](auto weights) -> std::span<const std::byte> { return std::as_bytes(weights); },
      working_weights());
}

void DecoderModel::set_weights(std::span<const float> values, int64_t offset) {
  std::visit(
      [&]<class E>(std::span<E> weights) {
        auto part = weights.subspan(static_cast<size_t>(offset), values.size());
        fill_on_host(memory_, part, [&](std::span<E> room) {
          std::ranges::transform(values, room.begin(), from_float<E>);
        });
      },
      working_weights());
  weights_changed();
}

template <class E>
BasicModel<E>::BasicModel(const ModelConfig& config, int64_t sequences, int64_t tokens,
                          BackendOf<E>& backend, ScalingState& scaling, const FaultView* faults,
                          const MemoryChoice& choice, bool commits)
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
      ffn_(config.ffn) {
  take_memory();
  if (!commits) return;
  for (Arena* arena :
       {&weights_arena_, &gradients_arena_, &activations_arena_, &workspace_arena_}) {
    arena->commit();
  }
  take_memory();
  weights_changed();
}

template <class E>
std::vector<ArenaSize> BasicModel<E>::measure(const ModelConfig& config, int64_t sequences,
                                              int64_t tokens, BackendOf<E>& backend,
                                              const MemoryChoice& choice) {
  ScalingState scaling(static_cast<int>(config.sites().size()));
  const BasicModel counted(config, sequences, tokens, backend, scaling, nullptr, choice, false);
  std::vector<ArenaSize> sizes;
  for (const Arena* arena : counted.arenas()) sizes.push_back({arena->name(), arena->bytes()});
  return sizes;
}

template <class E>
void BasicModel<E>::take_memory() {
  n_ = sequences_ * tokens_;
  take_weights();
  gradients_ = gradients_arena_.take<float>(layout_.elements());
  take_activations();
  take_workspace();
}

template <class E>
void BasicModel<E>::take_weights() {
  weights_ = weights_arena_.take<E>(layout_.elements());
  site_weights_.clear();
  site_weights_.resize(sites_.size());
  // Sites that read the same input have their copies side by side.
  auto give_room = [&](int first_site, std::initializer_list<int> parameters) {
    int64_t elements = 0;
    for (int parameter : parameters) elements += layout_[parameter].size;
    OperandRoom room{take_room(weights_arena_, elements), 0, elements};
    int site = first_site;
    for (int parameter : parameters) {
      GemmOperand<E>& weight = site_weights_[static_cast<size_t>(site++)];
      weight.room = room;
      give_scalars(weights_arena_, weight);
      room.before += layout_[parameter].size;
    }
  };
  for (int layer = 0; layer < config_.layers; ++layer) {
    const LayerParameters& at = layout_.layers()[static_cast<size_t>(layer)];
    give_room(site(layer, kQ), {at.q, at.k, at.v});
    give_room(site(layer, kO), {at.o});
    give_room(site(layer, kGate), {at.gate, at.up});
    give_room(site(layer, kDown), {at.down});
  }
  give_room(head_site(), {layout_.head()});
}

template <class E>
void BasicModel<E>::give_scalars(Arena& arena, GemmOperand<E>& operand) {
  operand.scalars = arena.take<float>(kOperandScalars).data();
  operand.tile_scales = Buffer<float>(memory_);
}

template <class E>
void BasicModel<E>::give_room(Arena& arena, GemmOperand<E>& operand, int64_t elements) {
  operand.room = {take_room(arena, elements), 0, elements};
  give_scalars(arena, operand);
}

template <class E>
void BasicModel<E>::weights_changed() {
  for (int layer = 0; layer < config_.layers; ++layer) {
    const LayerParameters& at = layout_.layers()[static_cast<size_t>(layer)];
    const int parameters[] = {at.q, at.k, at.v, at.o, at.gate, at.up, at.down};
    for (int kind = 0; kind < kSitesPerLayer; ++kind) {
      int index = site(layer, static_cast<SiteKind>(kind));
      site_weights_[static_cast<size_t>(index)].renew(weight(parameters[kind]));
    }
  }
  site_weights_.back().renew(weight(layout_.head()));
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

// Whether no parameter of these is followed by a gap.
template <class E>
bool BasicModel<E>::neighbours(std::initializer_list<int> parameters) const {
  for (const int* it = parameters.begin(); it + 1 != parameters.end(); ++it) {
    if (layout_[it[0]].offset + layout_[it[0]].size != layout_[it[1]].offset) return false;
  }
  return true;
}

template <class E>
SiteGroup BasicModel<E>::qkv_group(int layer) const {
  const LayerParameters& at = layout_.layers()[static_cast<size_t>(layer)];
  return {.first = site(layer, kQ),
          .count = 3,
          .in = width_,
          .out = {attention_width_, kv_width_, kv_width_},
          .contiguous = neighbours({at.q, at.k, at.v})};
}

template <class E>
SiteGroup BasicModel<E>::gate_up_group(int layer) const {
  const LayerParameters& at = layout_.layers()[static_cast<size_t>(layer)];
  return {.first = site(layer, kGate),
          .count = 2,
          .in = width_,
          .out = {ffn_, ffn_},
          .contiguous = neighbours({at.gate, at.up})};
}

template <class E>
void BasicModel<E>::take_activations() {
  Arena& arena = activations_arena_;
  const auto all = static_cast<size_t>(config_.layers);
  block_inputs_.resize(all);
  for (std::span<E>& input : block_inputs_) input = arena.take<E>(n_ * width_);
  layers_.clear();
  layers_.resize(choice_.recompute == Recompute::kBlock ? 1 : all);
  for (LayerActivations<E>& layer : layers_) take_layer(layer);
  hidden_.clear();
  hidden_.resize(choice_.recompute == Recompute::kNone ? all : 1);
  for (LayerHidden<E>& layer : hidden_) {
    layer.hidden = arena.take<E>(n_ * ffn_);
    give_room(arena, layer.down_input, n_ * ffn_);
  }
  final_residual_ = arena.take<E>(n_ * width_);
  final_rstd_ = arena.take<float>(n_);
  final_normed_ = arena.take<E>(n_ * width_);
  give_room(arena, final_input_, head_rows_ * width_);
  logits_ = arena.take<E>(head_rows_ * config_.vocabulary);
  losses_ = arena.take<float>(n_);
}

template <class E>
void BasicModel<E>::take_layer(LayerActivations<E>& layer) {
  Arena& arena = activations_arena_;
  layer.attention_rstd = arena.take<float>(n_);
  layer.attention_normed = arena.take<E>(n_ * width_);
  give_room(arena, layer.attention_input, n_ * width_);
  layer.qkv = arena.take<E>(n_ * qkv_width());
  layer.attention_saved = arena.take<std::byte>(backend_.attention_saved_bytes(attention_shape()));
  layer.attention_output = arena.take<E>(n_ * attention_width_);
  give_room(arena, layer.o_input, n_ * attention_width_);
  layer.mlp_residual = arena.take<E>(n_ * width_);
  layer.mlp_rstd = arena.take<float>(n_);
  layer.mlp_normed = arena.take<E>(n_ * width_);
  give_room(arena, layer.mlp_input, n_ * width_);
  layer.gate_up = arena.take<E>(n_ * 2 * ffn_);
}

template <class E>
void BasicModel<E>::take_workspace() {
  Arena& arena = workspace_arena_;
  const int64_t most =
      std::max(head_rows_ * config_.vocabulary, n_ * std::max({ffn_, width_, attention_width_}));
  std::byte* room = take_room(arena, most);
  for (GemmOperand<E>& dy : dy_) {
    dy.room = {room, 0, most};
    give_scalars(arena, dy);
  }
  tokens_of_pass_ = arena.take<int32_t>(n_);
  targets_of_pass_ = arena.take<int32_t>(n_);
  embedded_ = arena.take<E>(n_ * width_);
  update_ = arena.take<E>(n_ * width_);
  d_residual_ = arena.take<E>(n_ * width_);
  d_input_ = arena.take<E>(n_ * width_);
  d_shared_ = arena.take<float>(n_ * width_);
  d_attention_ = arena.take<E>(n_ * attention_width_);
  d_qkv_ = arena.take<E>(n_ * qkv_width());
  d_hidden_ = arena.take<E>(n_ * ffn_);
  d_gate_up_ = arena.take<E>(n_ * 2 * ffn_);
  attention_scratch_ = arena.take<std::byte>(backend_.attention_scratch_bytes(attention_shape()));
}

template BasicModel<bf16>::BasicModel(const ModelConfig&, int64_t, int64_t, BackendOf<bf16>&,
                                      ScalingState&, const FaultView*, const MemoryChoice&, bool);
template BasicModel<float>::BasicModel(const ModelConfig&, int64_t, int64_t, BackendOf<float>&,
                                       ScalingState&, const FaultView*, const MemoryChoice&, bool);
template std::vector<ArenaSize> BasicModel<bf16>::measure(const ModelConfig&, int64_t, int64_t,
                                                          BackendOf<bf16>&, const MemoryChoice&);
template std::vector<ArenaSize> BasicModel<float>::measure(const ModelConfig&, int64_t, int64_t,
                                                           BackendOf<float>&, const MemoryChoice&);
template void BasicModel<bf16>::weights_changed();
template void BasicModel<float>::weights_changed();
template AttentionShape BasicModel<bf16>::attention_shape() const;
template AttentionShape BasicModel<float>::attention_shape() const;

template SiteGroup BasicModel<bf16>::qkv_group(int) const;
template SiteGroup BasicModel<float>::qkv_group(int) const;
template SiteGroup BasicModel<bf16>::gate_up_group(int) const;
template SiteGroup BasicModel<float>::gate_up_group(int) const;

}  // namespace gnomon

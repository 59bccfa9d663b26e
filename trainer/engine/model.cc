#include "trainer/engine/model.h"

#include <algorithm>

#include "base/errors.h"

namespace gnomon {

DecoderModel::DecoderModel(const ModelConfig& config, Memory& memory)
    : config_((config.check(), config)), memory_(memory), layout_(config), sites_(config.sites()) {}

template <class E>
BasicModel<E>::BasicModel(const ModelConfig& config, int64_t sequences, int64_t tokens,
                          BackendOf<E>& backend, ScalingState& scaling, const FaultView* faults,
                          const MemoryChoice& choice, WeightRanks ranks)
    : DecoderModel(config, backend.memory()),
      backend_(backend),
      linears_(backend, faults, scaling),
      choice_(choice),
      sequences_(sequences),
      tokens_(tokens),
      n_(sequences * tokens),
      layers_run_(config.layers),
      width_(config.width),
      attention_width_(config.attention_width()),
      kv_width_(config.kv_width()),
      ffn_(config.ffn),
      attention_norm_(layout_.table().vector("input_layernorm.weight")),
      mlp_norm_(layout_.table().vector("post_attention_layernorm.weight")),
      room_(config, layout_, sequences, tokens, backend, choice, ranks) {
  room_.commit();
  weights_changed();
  backend_.expect_products(products_of_run(0));
}

template <class E>
std::vector<ArenaSize> BasicModel<E>::measure(const ModelConfig& config, int64_t sequences,
                                              int64_t tokens, BackendOf<E>& backend,
                                              const MemoryChoice& choice, WeightRanks ranks) {
  config.check();
  const ParameterLayout layout(config);
  const ModelMemory<E> counted(config, layout, sequences, tokens, backend, choice, ranks);
  std::vector<ArenaSize> sizes;
  for (const Arena* arena : counted.arenas()) sizes.push_back({arena->name(), arena->bytes()});
  return sizes;
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
      return head ? std::vector{std::min(rows, room_.head_rows), rows % room_.head_rows}
                  : std::vector{rows};
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
double BasicModel<E>::forward(const PassPlan& pass, std::span<const int32_t> tokens,
                              std::span<const int32_t> targets) {
  const PassOverWeights over(*room_.weights, layers_run_, false);
  begin_pass(pass, tokens);
  run_layers();
  bring(targets, room_.targets_of_pass);
  run_head(
      [&](int64_t first, int64_t count) { loss_of_logits(first, count, 0.0f, false, nullptr); });
  return sum_of_losses();
}

template <class E>
double BasicModel<E>::forward_backward(const PassPlan& pass, std::span<const int32_t> tokens,
                                       std::span<const int32_t> targets, float gradient_scale,
                                       bool accumulate) {
  PassPlan training = pass;
  training.trains = true;
  const PassOverWeights over(*room_.weights, layers_run_, true);
  begin_pass(training, tokens);
  bring(targets, room_.targets_of_pass);
  const auto both = [&] { both_ways(gradient_scale, accumulate); };
  if (pass.repeat_key == 0) {
    both();
  } else if (!backend_.repeat(pass.repeat_key, both)) {
    room_.weights->forget_copies();  // some are remembered that were not made
    both();
  }
  return sum_of_losses();
}

template <class E>
void BasicModel<E>::both_ways(float gradient_scale, bool accumulate) {
  run_layers();
  start_gradients(accumulate);
  run_head([&](int64_t first, int64_t count) {
    const std::span<E> gradients =
        room_.logits.first(static_cast<size_t>(count * config_.vocabulary));
    float* amax = renew_gradients(head_group(), gradients, count)[0];
    loss_of_logits(first, count, gradient_scale, true, amax);
    backward_head(first, count, accumulate || first > 0);
  });
  backward_final_norm();
  for (int layer = layers_run_ - 1; layer >= 0; --layer) {
    room_.weights->enter_layer(layer);
    compute_again(layer);
    backward_mlp(layer, accumulate);
    backward_attention(layer, accumulate);
  }
  backend_.embed_backward(room_.tokens_of_pass.first(static_cast<size_t>(n_)),
                          rows(room_.d_residual, width_), width_, gradient(layout_.embedding()));
}

template <class E>
std::vector<float> BasicModel<E>::logits(const PassPlan& pass, std::span<const int32_t> tokens) {
  const PassOverWeights over(*room_.weights, layers_run_, false);
  begin_pass(pass, tokens);
  run_layers();
  std::vector<float> values;
  run_head([&](int64_t, int64_t count) {
    const auto size = static_cast<size_t>(count * config_.vocabulary);
    const HostView<E> found(memory_, room_.logits.first(size));
    std::ranges::transform(found, std::back_inserter(values),
                           [](E value) { return to_float(value); });
  });
  return values;
}

template <class E>
void BasicModel<E>::begin_pass(const PassPlan& pass, std::span<const int32_t> tokens) {
  n_ = static_cast<int64_t>(tokens.size());
  GNOMON_ASSERT(n_ > 0 && n_ <= sequences_ * tokens_ && n_ % tokens_ == 0);
  GNOMON_ASSERT(pass.sites != nullptr && pass.sites->size() == sites_.size());
  pass_ = pass;
  linears_.begin(pass);
  bring(tokens, room_.tokens_of_pass);
}

template <class E>
void BasicModel<E>::run_layers() {
  std::span<E> embedded = rows_mutable(room_.embedded, width_);
  room_.weights->enter_embedding();
  backend_.embed(room_.tokens_of_pass.first(static_cast<size_t>(n_)), weight(layout_.embedding()),
                 width_, embedded);
  for (int layer = 0; layer < layers_run_; ++layer) {
    room_.weights->enter_layer(layer);
    if (layer == 0) {
      forward_attention(layer, embedded, {});
    } else {
      forward_attention(layer, rows(activations(layer - 1).mlp_residual, width_),
                        rows(room_.update, width_));
    }
    forward_hidden(layer);
    forward_down(layer);
  }
  const LayerActivations<E>& last = activations(layers_run_ - 1);
  std::span<E> normed = rows_mutable(room_.final_normed, width_);
  // Parts of it have amaxes of their own.
  float* amax = nullptr;
  if (n_ <= room_.head_rows) {
    amax = linears_.renew(head_group().first, 1, TensorRole::kInput, room_.final_input, normed);
  }
  backend_.add_rms_norm(rows(last.mlp_residual, width_), rows(room_.update, width_),
                        weight(layout_.final_norm()), static_cast<float>(config_.norm_eps),
                        rows_mutable(room_.final_residual, width_), normed,
                        room_.final_rstd.first(static_cast<size_t>(n_)), amax);
}

template <class E>
template <class Use>
void BasicModel<E>::run_head(Use use) {
  room_.weights->enter_head();
  const SiteGroup head = head_group();
  const bool in_parts = n_ > room_.head_rows;
  const auto report = [&](int64_t first, int64_t count) {
    if (in_parts && pass_.observer != nullptr) pass_.observer->begin_rows(first, count);
  };
  for (int64_t first = 0; first < n_; first += room_.head_rows) {
    const int64_t count = std::min(room_.head_rows, n_ - first);
    report(first, count);
    if (in_parts) {
      room_.final_input.renew(room_.final_normed.subspan(static_cast<size_t>(first * width_),
                                                         static_cast<size_t>(count * width_)));
    }
    linears_.fprop(head, room_.final_input, weights_of(head), count, room_.logits.data());
    use(first, count);
  }
  report(0, n_);
}

template <class E>
void BasicModel<E>::loss_of_logits(int64_t first, int64_t count, float gradient_scale,
                                   bool with_gradient, float* amax) {
  const auto at = static_cast<size_t>(first), size = static_cast<size_t>(count);
  backend_.cross_entropy(room_.logits.first(size * static_cast<size_t>(config_.vocabulary)),
                         room_.targets_of_pass.subspan(at, size), config_.vocabulary,
                         gradient_scale, with_gradient, room_.losses.subspan(at, size), amax);
}

template <class E>
double BasicModel<E>::sum_of_losses() {
  double sum = 0;
  for (float loss : HostView<float>(memory_, room_.losses.first(static_cast<size_t>(n_)))) {
    sum += static_cast<double>(loss);
  }
  return sum;
}

template <class E>
void BasicModel<E>::forward_attention(int layer, std::span<const E> below,
                                      std::span<const E> update) {
  LayerActivations<E>& act = activations(layer);
  std::span<E> normed = rows_mutable(act.attention_normed, width_);
  const SiteGroup qkv = group(layer, SiteGroupName::kQkv);
  float* amax =
      linears_.renew(qkv.first, qkv.count, TensorRole::kInput, act.attention_input, normed);
  backend_.add_rms_norm(below, update, weight(vector(layer, attention_norm_)),
                        static_cast<float>(config_.norm_eps),
                        rows_mutable(block_input(layer), width_), normed,
                        act.attention_rstd.first(static_cast<size_t>(n_)), amax);

  E* q = act.qkv.data();
  E* k = q + attention_width_;
  E* v = k + kv_width_;
  linears_.fprop(qkv, act.attention_input, weights_of(qkv), n_, q);
  const HeadPass<E> heads =
      head_pass(layer, {{{q, qkv_width()}, {k, qkv_width()}, {v, qkv_width()}}});
  for (const auto& step : room_.head_steps) step->forward(heads);
  backend_.attention(attention_shape(), q, k, v, act.attention_output.data(),
                     act.attention_saved.data(), room_.attention_scratch.data());
  act.o_input.renew(rows(act.attention_output, attention_width_));
  const SiteGroup o = group(layer, SiteGroupName::kO);
  linears_.fprop(o, act.o_input, weights_of(o), n_, room_.update.data());
}

template <class E>
void BasicModel<E>::forward_hidden(int layer) {
  LayerActivations<E>& act = activations(layer);
  std::span<E> normed = rows_mutable(act.mlp_normed, width_);
  const SiteGroup gate_up = group(layer, SiteGroupName::kGateUp);
  float* amax =
      linears_.renew(gate_up.first, gate_up.count, TensorRole::kInput, act.mlp_input, normed);
  backend_.add_rms_norm(rows(block_input(layer), width_), rows(room_.update, width_),
                        weight(vector(layer, mlp_norm_)), static_cast<float>(config_.norm_eps),
                        rows_mutable(act.mlp_residual, width_), normed,
                        act.mlp_rstd.first(static_cast<size_t>(n_)), amax);
  E* gate = act.gate_up.data();
  linears_.fprop(gate_up, act.mlp_input, weights_of(gate_up), n_, gate);
  multiply_gate(layer);
}

template <class E>
void BasicModel<E>::multiply_gate(int layer) {
  const E* gate = activations(layer).gate_up.data();
  LayerHidden<E>& product = hidden(layer);
  const int down = group(layer, SiteGroupName::kDown).first;
  float* amax =
      linears_.renew(down, 1, TensorRole::kInput, product.down_input, rows(product.hidden, ffn_));
  const auto copy = linears_.copy_along(down, product.down_input);
  backend_.swiglu(gate, gate + ffn_, n_, ffn_, 2 * ffn_, product.hidden.data(), amax,
                  copy ? &*copy : nullptr);
}

template <class E>
void BasicModel<E>::forward_down(int layer) {
  const SiteGroup down = group(layer, SiteGroupName::kDown);
  linears_.fprop(down, hidden(layer).down_input, weights_of(down), n_, room_.update.data());
}

template <class E>
void BasicModel<E>::compute_again(int layer) {
  // The last layer's is still there.
  if (choice_.recompute == Recompute::kNone || layer == layers_run_ - 1) return;
  if (choice_.recompute == Recompute::kSwiglu) return multiply_gate(layer);
  PassPlan again = pass_;
  again.observer = nullptr;
  again.record = false;
  linears_.begin(again);
  forward_attention(layer, rows(block_input(layer), width_), {});
  forward_hidden(layer);
  linears_.begin(pass_);
}

#define GNOMON_FOR(E)                                                                         \
  template BasicModel<E>::BasicModel(const ModelConfig&, int64_t, int64_t, BackendOf<E>&,     \
                                     ScalingState&, const FaultView*, const MemoryChoice&,    \
                                     WeightRanks);                                            \
  template std::vector<ArenaSize> BasicModel<E>::measure(                                     \
      const ModelConfig&, int64_t, int64_t, BackendOf<E>&, const MemoryChoice&, WeightRanks); \
  template void BasicModel<E>::expect_evaluations(int64_t);                                   \
  template SiteGroup BasicModel<E>::group(int, SiteGroupName) const;                          \
  template double BasicModel<E>::forward(const PassPlan&, std::span<const int32_t>,           \
                                         std::span<const int32_t>);                           \
  template double BasicModel<E>::forward_backward(const PassPlan&, std::span<const int32_t>,  \
                                                  std::span<const int32_t>, float, bool);     \
  template std::vector<float> BasicModel<E>::logits(const PassPlan&, std::span<const int32_t>);
GNOMON_FOR(bf16)
GNOMON_FOR(float)
#undef GNOMON_FOR

}  // namespace gnomon

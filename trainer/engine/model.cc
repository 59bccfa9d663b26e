#include "trainer/engine/model.h"

#include <algorithm>
#include <cstring>

#include "base/errors.h"

namespace gnomon {

template <class E>
double BasicModel<E>::forward(const PassPlan& pass, std::span<const int32_t> tokens,
                              std::span<const int32_t> targets) {
  compute_logits(pass, tokens);
  return loss_of_logits(targets, 0.0f, false);
}

template <class E>
std::vector<float> BasicModel<E>::logits(const PassPlan& pass, std::span<const int32_t> tokens) {
  compute_logits(pass, tokens);
  std::span<const E> found = rows(logits_, config_.vocabulary);
  std::vector<float> values(found.size());
  std::ranges::transform(found, values.begin(), [](E value) { return to_float(value); });
  return values;
}

template <class E>
void BasicModel<E>::compute_logits(const PassPlan& pass, std::span<const int32_t> tokens) {
  n_ = static_cast<int64_t>(tokens.size());
  GNOMON_ASSERT(n_ > 0 && n_ <= sequences_ * tokens_ && n_ % tokens_ == 0);
  GNOMON_ASSERT(pass.sites != nullptr && pass.sites->size() == sites_.size());
  linears_.begin(pass);

  backend_.embed(tokens, weight(layout_.embedding()), width_,
                 rows_mutable(layers_[0].attention_residual, width_));
  for (int layer = 0; layer < config_.layers; ++layer) {
    forward_attention(layer, layer == 0 ? std::span<const E>{} : rows(update_, width_));
    forward_mlp(layer);
  }
  std::span<E> residual = rows_mutable(final_residual_, width_);
  std::span<E> normed = rows_mutable(final_normed_, width_);
  std::copy_n(layers_.back().mlp_residual.data(), residual.size(), residual.data());
  backend_.add_rms_norm(residual, rows(update_, width_), weight(layout_.final_norm()),
                        static_cast<float>(config_.norm_eps), normed,
                        final_rstd_.first(static_cast<size_t>(n_)));
  final_input_.renew(normed);
  linears_.fprop(head_site(), final_input_, site_weights_.back(), n_, width_, config_.vocabulary,
                 logits_.data());
}

template <class E>
double BasicModel<E>::loss_of_logits(std::span<const int32_t> targets, float gradient_scale,
                                     bool with_gradient) {
  GNOMON_ASSERT(static_cast<int64_t>(targets.size()) == n_);
  std::span<float> losses = losses_.first(static_cast<size_t>(n_));
  backend_.cross_entropy(rows_mutable(logits_, config_.vocabulary), targets, config_.vocabulary,
                         gradient_scale, with_gradient, losses);
  double sum = 0;
  for (float loss : losses) sum += static_cast<double>(loss);
  return sum;
}

template <class E>
void BasicModel<E>::forward_attention(int layer, std::span<const E> update) {
  LayerActivations<E>& act = layers_[static_cast<size_t>(layer)];
  const LayerParameters& at = layout_.layers()[static_cast<size_t>(layer)];
  std::span<E> residual = rows_mutable(act.attention_residual, width_);
  std::span<E> normed = rows_mutable(act.attention_normed, width_);
  if (layer > 0) {
    const LayerActivations<E>& below = layers_[static_cast<size_t>(layer) - 1];
    std::copy_n(below.mlp_residual.data(), residual.size(), residual.data());
  }
  backend_.add_rms_norm(residual, update, weight(at.attention_norm),
                        static_cast<float>(config_.norm_eps), normed,
                        act.attention_rstd.first(static_cast<size_t>(n_)));
  act.attention_input.renew(normed);

  auto project = [&](SiteKind kind, std::span<E> y, int64_t out, int bias) {
    int index = site(layer, kind);
    linears_.fprop(index, act.attention_input, site_weights_[static_cast<size_t>(index)], n_,
                   width_, out, y.data());
    if (bias >= 0) backend_.add_bias(rows_mutable(y, out), weight(bias));
  };
  project(kQ, act.q, width_, at.q_bias);
  project(kK, act.k, kv_width_, at.k_bias);
  project(kV, act.v, kv_width_, at.v_bias);
  backend_.rope(rows_mutable(act.q, width_), tokens_, config_.heads, config_.head_dim(),
                config_.rope_theta, false);
  backend_.rope(rows_mutable(act.k, kv_width_), tokens_, config_.kv_heads, config_.head_dim(),
                config_.rope_theta, false);
  backend_.attention(attention_shape(), act.q.data(), act.k.data(), act.v.data(),
                     act.attention_output.data(), act.attention_saved.data(),
                     attention_scratch_.data());
  act.o_input.renew(rows(act.attention_output, width_));
  int o_site = site(layer, kO);
  linears_.fprop(o_site, act.o_input, site_weights_[static_cast<size_t>(o_site)], n_, width_,
                 width_, update_.data());
}

template <class E>
void BasicModel<E>::forward_mlp(int layer) {
  LayerActivations<E>& act = layers_[static_cast<size_t>(layer)];
  const LayerParameters& at = layout_.layers()[static_cast<size_t>(layer)];
  std::span<E> residual = rows_mutable(act.mlp_residual, width_);
  std::span<E> normed = rows_mutable(act.mlp_normed, width_);
  std::copy_n(act.attention_residual.data(), residual.size(), residual.data());
  backend_.add_rms_norm(residual, rows(update_, width_), weight(at.mlp_norm),
                        static_cast<float>(config_.norm_eps), normed,
                        act.mlp_rstd.first(static_cast<size_t>(n_)));
  act.mlp_input.renew(normed);
  int gate_site = site(layer, kGate);
  int up_site = site(layer, kUp);
  int down_site = site(layer, kDown);
  linears_.fprop(gate_site, act.mlp_input, site_weights_[static_cast<size_t>(gate_site)], n_,
                 width_, ffn_, act.gate.data());
  linears_.fprop(up_site, act.mlp_input, site_weights_[static_cast<size_t>(up_site)], n_, width_,
                 ffn_, act.up.data());
  backend_.swiglu(rows(act.gate, ffn_), rows(act.up, ffn_), rows_mutable(act.hidden, ffn_));
  act.down_input.renew(rows(act.hidden, ffn_));
  linears_.fprop(down_site, act.down_input, site_weights_[static_cast<size_t>(down_site)], n_, ffn_,
                 width_, update_.data());
}

template double BasicModel<bf16>::forward(const PassPlan&, std::span<const int32_t>,
                                          std::span<const int32_t>);
template double BasicModel<float>::forward(const PassPlan&, std::span<const int32_t>,
                                           std::span<const int32_t>);
template std::vector<float> BasicModel<bf16>::logits(const PassPlan&, std::span<const int32_t>);
template std::vector<float> BasicModel<float>::logits(const PassPlan&, std::span<const int32_t>);
template double BasicModel<bf16>::loss_of_logits(std::span<const int32_t>, float, bool);
template double BasicModel<float>::loss_of_logits(std::span<const int32_t>, float, bool);
template void BasicModel<bf16>::compute_logits(const PassPlan&, std::span<const int32_t>);
template void BasicModel<float>::compute_logits(const PassPlan&, std::span<const int32_t>);

}  // namespace gnomon

#include "trainer/engine/model.h"

#include <algorithm>

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
  const HostView<E> found(memory_, rows(logits_, config_.vocabulary));
  std::vector<float> values(found.get().size());
  std::ranges::transform(found, values.begin(), [](E value) { return to_float(value); });
  return values;
}

template <class E>
void BasicModel<E>::compute_logits(const PassPlan& pass, std::span<const int32_t> tokens) {
  n_ = static_cast<int64_t>(tokens.size());
  GNOMON_ASSERT(n_ > 0 && n_ <= sequences_ * tokens_ && n_ % tokens_ == 0);
  GNOMON_ASSERT(pass.sites != nullptr && pass.sites->size() == sites_.size());
  linears_.begin(pass);

  std::span<E> embedded = rows_mutable(embedded_, width_);
  backend_.embed(bring(tokens, tokens_of_pass_), weight(layout_.embedding()), width_, embedded);
  for (int layer = 0; layer < layers_run_; ++layer) {
    if (layer == 0) {
      forward_attention(layer, embedded, {});
    } else {
      const LayerActivations<E>& below = layers_[static_cast<size_t>(layer) - 1];
      forward_attention(layer, rows(below.mlp_residual, width_), rows(update_, width_));
    }
    forward_mlp(layer);
  }
  const LayerActivations<E>& last = layers_[static_cast<size_t>(layers_run_) - 1];
  std::span<E> normed = rows_mutable(final_normed_, width_);
  backend_.add_rms_norm(rows(last.mlp_residual, width_), rows(update_, width_),
                        weight(layout_.final_norm()), static_cast<float>(config_.norm_eps),
                        rows_mutable(final_residual_, width_), normed,
                        final_rstd_.first(static_cast<size_t>(n_)));
  final_input_.renew(normed);
  SiteGroup head = one_site(head_site(), width_, config_.vocabulary);
  linears_.fprop(head, final_input_, weights_of(head), n_, logits_.data());
}

template <class E>
double BasicModel<E>::loss_of_logits(std::span<const int32_t> targets, float gradient_scale,
                                     bool with_gradient) {
  GNOMON_ASSERT(static_cast<int64_t>(targets.size()) == n_);
  std::span<float> losses = losses_.first(static_cast<size_t>(n_));
  backend_.cross_entropy(rows_mutable(logits_, config_.vocabulary),
                         bring(targets, targets_of_pass_), config_.vocabulary, gradient_scale,
                         with_gradient, losses);
  double sum = 0;
  for (float loss : HostView<float>(memory_, losses)) sum += static_cast<double>(loss);
  return sum;
}

template <class E>
void BasicModel<E>::forward_attention(int layer, std::span<const E> below,
                                      std::span<const E> update) {
  LayerActivations<E>& act = layers_[static_cast<size_t>(layer)];
  const LayerParameters& at = layout_.layers()[static_cast<size_t>(layer)];
  std::span<E> normed = rows_mutable(act.attention_normed, width_);
  backend_.add_rms_norm(below, update, weight(at.attention_norm),
                        static_cast<float>(config_.norm_eps),
                        rows_mutable(act.attention_residual, width_), normed,
                        act.attention_rstd.first(static_cast<size_t>(n_)));
  act.attention_input.renew(normed);

  SiteGroup qkv = qkv_group(layer);
  E* q = act.qkv.data();
  E* k = q + attention_width_;
  E* v = k + kv_width_;
  linears_.fprop(qkv, act.attention_input, weights_of(qkv), n_, q);
  if (at.q_bias >= 0) {
    backend_.add_bias(q, n_, weight(at.q_bias), qkv_width());
    backend_.add_bias(k, n_, weight(at.k_bias), qkv_width());
    backend_.add_bias(v, n_, weight(at.v_bias), qkv_width());
  }
  // The heads of q and k are neighbours.
  backend_.rope(q, n_, tokens_, config_.heads + config_.kv_heads, config_.head_dim(),
                config_.rotary(), false, qkv_width());
  backend_.attention(attention_shape(), q, k, v, act.attention_output.data(),
                     act.attention_saved.data(), attention_scratch_.data());
  act.o_input.renew(rows(act.attention_output, attention_width_));
  SiteGroup o = one_site(site(layer, kO), attention_width_, width_);
  linears_.fprop(o, act.o_input, weights_of(o), n_, update_.data());
}

template <class E>
void BasicModel<E>::forward_mlp(int layer) {
  LayerActivations<E>& act = layers_[static_cast<size_t>(layer)];
  const LayerParameters& at = layout_.layers()[static_cast<size_t>(layer)];
  std::span<E> normed = rows_mutable(act.mlp_normed, width_);
  backend_.add_rms_norm(rows(act.attention_residual, width_), rows(update_, width_),
                        weight(at.mlp_norm), static_cast<float>(config_.norm_eps),
                        rows_mutable(act.mlp_residual, width_), normed,
                        act.mlp_rstd.first(static_cast<size_t>(n_)));
  act.mlp_input.renew(normed);
  SiteGroup gate_up = gate_up_group(layer);
  E* gate = act.gate_up.data();
  linears_.fprop(gate_up, act.mlp_input, weights_of(gate_up), n_, gate);
  backend_.swiglu(gate, gate + ffn_, n_, ffn_, 2 * ffn_, act.hidden.data());
  act.down_input.renew(rows(act.hidden, ffn_));
  SiteGroup down = one_site(site(layer, kDown), ffn_, width_);
  linears_.fprop(down, act.down_input, weights_of(down), n_, update_.data());
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

#include <algorithm>

#include "trainer/engine/model.h"

namespace gnomon {

template <class E>
double BasicModel<E>::forward_backward(const PassPlan& pass, std::span<const int32_t> tokens,
                                       std::span<const int32_t> targets, float gradient_scale,
                                       bool accumulate) {
  compute_logits(pass, tokens);
  double loss = loss_of_logits(targets, gradient_scale, true);
  start_gradients(accumulate);
  backward_head(accumulate);
  for (int layer = config_.layers - 1; layer >= 0; --layer) {
    backward_mlp(layer, accumulate);
    backward_attention(layer, accumulate);
  }
  backend_.embed_backward(tokens, rows(d_residual_, width_), width_, gradient(layout_.embedding()));
  return loss;
}

// The matrices' gradients are overwritten by their first GEMM; everything else adds and must start
// at zero.
template <class E>
void BasicModel<E>::start_gradients(bool accumulate) {
  if (accumulate) return;
  backend_.zero(gradients_.subspan(static_cast<size_t>(layout_.decayed())));
  if (!config_.tie_embeddings) backend_.zero(gradient(layout_.embedding()));
}

template <class E>
GemmOperand<E>& BasicModel<E>::gradient_operand(std::span<const E> dy) {
  dy_.renew(dy);
  return dy_;
}

template <class E>
void BasicModel<E>::backward_head(bool accumulate) {
  int64_t vocabulary = config_.vocabulary;
  GemmOperand<E>& dy = gradient_operand(rows(logits_, vocabulary));
  linears_.dgrad(head_site(), dy, site_weights_.back(), n_, width_, vocabulary, d_input_.data());
  linears_.wgrad(head_site(), dy, final_input_, n_, width_, vocabulary,
                 gradient(layout_.head()).data(), accumulate);
  std::span<E> d_residual = rows_mutable(d_residual_, width_);
  std::fill(d_residual.begin(), d_residual.end(), E{});
  backend_.rms_norm_backward(rows(final_residual_, width_), weight(layout_.final_norm()),
                             final_rstd_.first(static_cast<size_t>(n_)), rows(d_input_, width_),
                             d_residual, gradient(layout_.final_norm()));
}

// From the sum in d_shared_ through the norm into d_residual_.
template <class E>
void BasicModel<E>::backward_shared_input(std::span<const E> residual, int norm,
                                          std::span<const float> rstd) {
  std::span<E> d_input = rows_mutable(d_input_, width_);
  backend_.round_sum(d_shared_.first(d_input.size()), d_input);
  backend_.rms_norm_backward(residual, weight(norm), rstd.first(static_cast<size_t>(n_)), d_input,
                             rows_mutable(d_residual_, width_), gradient(norm));
}

template <class E>
void BasicModel<E>::backward_mlp(int layer, bool accumulate) {
  LayerActivations<E>& act = layers_[static_cast<size_t>(layer)];
  const LayerParameters& at = layout_.layers()[static_cast<size_t>(layer)];
  int down_site = site(layer, kDown);
  GemmOperand<E>& d_update = gradient_operand(rows(d_residual_, width_));
  linears_.dgrad(down_site, d_update, site_weights_[static_cast<size_t>(down_site)], n_, ffn_,
                 width_, d_hidden_.data());
  linears_.wgrad(down_site, d_update, act.down_input, n_, ffn_, width_, gradient(at.down).data(),
                 accumulate);
  backend_.swiglu_backward(rows(act.gate, ffn_), rows(act.up, ffn_), rows(d_hidden_, ffn_),
                           rows_mutable(d_gate_, ffn_), rows_mutable(d_up_, ffn_));

  auto back = [&](SiteKind kind, std::span<E> d_output, int parameter, bool add) {
    int index = site(layer, kind);
    GemmOperand<E>& dy = gradient_operand(rows(d_output, ffn_));
    linears_.dgrad(index, dy, site_weights_[static_cast<size_t>(index)], n_, width_, ffn_,
                   d_shared_.data(), add);
    linears_.wgrad(index, dy, act.mlp_input, n_, width_, ffn_, gradient(parameter).data(),
                   accumulate);
  };
  back(kGate, d_gate_, at.gate, false);
  back(kUp, d_up_, at.up, true);
  backward_shared_input(rows(act.mlp_residual, width_), at.mlp_norm, act.mlp_rstd);
}

template <class E>
void BasicModel<E>::backward_attention(int layer, bool accumulate) {
  LayerActivations<E>& act = layers_[static_cast<size_t>(layer)];
  const LayerParameters& at = layout_.layers()[static_cast<size_t>(layer)];
  int o_site = site(layer, kO);
  GemmOperand<E>& d_update = gradient_operand(rows(d_residual_, width_));
  linears_.dgrad(o_site, d_update, site_weights_[static_cast<size_t>(o_site)], n_, width_, width_,
                 d_attention_.data());
  linears_.wgrad(o_site, d_update, act.o_input, n_, width_, width_, gradient(at.o).data(),
                 accumulate);
  backend_.attention_backward(attention_shape(), act.q.data(), act.k.data(), act.v.data(),
                              act.attention_output.data(), d_attention_.data(), dq_.data(),
                              dk_.data(), dv_.data(), act.attention_saved.data(),
                              attention_scratch_.data());
  backend_.rope(rows_mutable(dq_, width_), tokens_, config_.heads, config_.head_dim(),
                config_.rope_theta, true);
  backend_.rope(rows_mutable(dk_, kv_width_), tokens_, config_.kv_heads, config_.head_dim(),
                config_.rope_theta, true);

  auto back = [&](SiteKind kind, std::span<E> d_output, int64_t out, int parameter, int bias,
                  bool add) {
    int index = site(layer, kind);
    if (bias >= 0) backend_.bias_backward(rows(d_output, out), gradient(bias));
    GemmOperand<E>& dy = gradient_operand(rows(d_output, out));
    linears_.dgrad(index, dy, site_weights_[static_cast<size_t>(index)], n_, width_, out,
                   d_shared_.data(), add);
    linears_.wgrad(index, dy, act.attention_input, n_, width_, out, gradient(parameter).data(),
                   accumulate);
  };
  back(kQ, dq_, width_, at.q, at.q_bias, false);
  back(kK, dk_, kv_width_, at.k, at.k_bias, true);
  back(kV, dv_, kv_width_, at.v, at.v_bias, true);
  backward_shared_input(rows(act.attention_residual, width_), at.attention_norm,
                        act.attention_rstd);
}

template double BasicModel<bf16>::forward_backward(const PassPlan&, std::span<const int32_t>,
                                                   std::span<const int32_t>, float, bool);
template double BasicModel<float>::forward_backward(const PassPlan&, std::span<const int32_t>,
                                                    std::span<const int32_t>, float, bool);

}  // namespace gnomon

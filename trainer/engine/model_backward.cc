#include <algorithm>
#include <ranges>

#include "trainer/engine/model.h"

namespace gnomon {

template <class E>
void BasicModel<E>::prepare(const PassPlan& pass, int64_t tokens, bool accumulate) {
  std::vector<int32_t> zeros(static_cast<size_t>(tokens), 0);
  layers_run_ = 1;
  forward_backward(pass, zeros, zeros, 0.0f, accumulate);
  layers_run_ = config_.layers;
}

template <class E>
void BasicModel<E>::prepare_forward(const PassPlan& pass, int64_t tokens) {
  const std::vector<int32_t> zeros(static_cast<size_t>(tokens), 0);
  layers_run_ = 1;
  forward(pass, zeros, zeros);
  layers_run_ = config_.layers;
}

// The matrices' gradients are overwritten by their first GEMM; everything else adds and must start
// at zero.
template <class E>
void BasicModel<E>::start_gradients(bool accumulate) {
  if (accumulate) return;
  backend_.zero(room_.gradients.subspan(static_cast<size_t>(layout_.decayed())));
  if (!config_.tie_embeddings) backend_.zero(gradient(layout_.embedding()));
}

template <class E>
std::array<StridedRows<E>, SiteGroup::kMax> BasicModel<E>::places(const SiteGroup& group,
                                                                  std::span<E> memory) const {
  const bool together = linears_.side_by_side(group);
  std::array<StridedRows<E>, SiteGroup::kMax> places{};
  E* next = memory.data();
  for (size_t i = 0; i < static_cast<size_t>(group.count); ++i) {
    places[i] = {next, together ? group.total_out() : group.out[i]};
    next += together ? group.out[i] : n_ * group.out[i];
  }
  return places;
}

template <class E>
std::array<float*, SiteGroup::kMax> BasicModel<E>::renew_gradients(const SiteGroup& group,
                                                                   std::span<E> d_outputs,
                                                                   int64_t n) {
  const bool together = linears_.side_by_side(group);
  std::array<float*, SiteGroup::kMax> amaxes{};
  E* next = d_outputs.data();
  for (int i = 0; i < (together ? 1 : group.count); ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t size = n * (together ? group.total_out() : group.out[at]);
    amaxes[at] = linears_.renew(group.first + i, together ? group.count : 1, TensorRole::kGradient,
                                room_.dy[at], {next, static_cast<size_t>(size)});
    next += size;
  }
  return amaxes;
}

template <class E>
void BasicModel<E>::backward_group(const SiteGroup& group, GemmOperand<E>& x, int64_t n,
                                   std::span<E> dx, bool accumulate) {
  std::array<float*, SiteGroup::kMax> dw{};
  for (int i = 0; i < group.count; ++i) {
    dw[static_cast<size_t>(i)] = gradient(layout_.matrix(group.first + i)).data();
  }
  const size_t count = linears_.side_by_side(group) ? 1 : static_cast<size_t>(group.count);
  linears_.backward(group, std::span(room_.dy).first(count), weights_of(group), x, n, dx.data(),
                    std::span(dw).first(count), accumulate, room_.d_shared.data());
}

template <class E>
void BasicModel<E>::backward_head(int64_t first, int64_t count, bool accumulate) {
  backward_group(head_group(), room_.final_input, count,
                 room_.d_input.subspan(static_cast<size_t>(first * width_)), accumulate);
}

template <class E>
void BasicModel<E>::backward_final_norm() {
  std::span<E> d_residual = rows_mutable(room_.d_residual, width_);
  backend_.zero(d_residual);
  float* amax = renew_gradients(group(layers_run_ - 1, SiteGroupName::kDown), d_residual, n_)[0];
  backend_.rms_norm_backward(rows(room_.final_residual, width_), weight(layout_.final_norm()),
                             room_.final_rstd.first(static_cast<size_t>(n_)),
                             rows(room_.d_input, width_), d_residual,
                             gradient(layout_.final_norm()), amax);
}

template <class E>
void BasicModel<E>::backward_mlp(int layer, bool accumulate) {
  LayerActivations<E>& act = activations(layer);
  backward_group(group(layer, SiteGroupName::kDown), hidden(layer).down_input, n_, room_.d_hidden,
                 accumulate);
  const SiteGroup gate_up = group(layer, SiteGroupName::kGateUp);
  const E* gate = act.gate_up.data();
  auto [d_gate, d_up, none] = places(gate_up, room_.d_gate_up);
  const auto amaxes = renew_gradients(gate_up, room_.d_gate_up, n_);
  backend_.swiglu_backward(gate, gate + ffn_, room_.d_hidden.data(), n_, ffn_, 2 * ffn_,
                           d_gate.data, d_up.data, d_gate.stride, amaxes[0], amaxes[1]);
  backward_group(gate_up, act.mlp_input, n_, room_.d_input, accumulate);
  std::span<E> d_residual = rows_mutable(room_.d_residual, width_);
  float* amax = renew_gradients(group(layer, SiteGroupName::kO), d_residual, n_)[0];
  backend_.rms_norm_backward(rows(act.mlp_residual, width_), weight(vector(layer, mlp_norm_)),
                             act.mlp_rstd.first(static_cast<size_t>(n_)),
                             rows(room_.d_input, width_), d_residual,
                             gradient(vector(layer, mlp_norm_)), amax);
}

template <class E>
void BasicModel<E>::backward_attention(int layer, bool accumulate) {
  LayerActivations<E>& act = activations(layer);
  backward_group(group(layer, SiteGroupName::kO), act.o_input, n_, room_.d_attention, accumulate);
  const SiteGroup qkv = group(layer, SiteGroupName::kQkv);
  const std::array<StridedRows<E>, 3> d_heads = places(qkv, room_.d_qkv);
  const auto& [dq, dk, dv] = d_heads;
  AttentionShape shape = attention_shape();
  shape.stride_dq = dq.stride;
  shape.stride_dkv = dk.stride;
  const E* q = act.qkv.data();
  const E* k = q + attention_width_;
  backend_.attention_backward(shape, q, k, k + kv_width_, act.attention_output.data(),
                              room_.d_attention.data(), dq.data, dk.data, dv.data,
                              act.attention_saved.data(), room_.attention_scratch.data());
  const HeadPass<E> heads = head_pass(layer, d_heads);
  for (const auto& step : std::views::reverse(room_.head_steps)) step->backward(heads);
  // Two operations made these; their amaxes are found when a product asks for them.
  renew_gradients(qkv, room_.d_qkv, n_);
  for (GemmOperand<E>& gradients : room_.dy) gradients.amax_known = false;
  backward_group(qkv, act.attention_input, n_, room_.d_input, accumulate);
  std::span<E> d_residual = rows_mutable(room_.d_residual, width_);
  float* amax = layer > 0
                    ? renew_gradients(group(layer - 1, SiteGroupName::kDown), d_residual, n_)[0]
                    : nullptr;
  backend_.rms_norm_backward(
      rows(block_input(layer), width_), weight(vector(layer, attention_norm_)),
      act.attention_rstd.first(static_cast<size_t>(n_)), rows(room_.d_input, width_), d_residual,
      gradient(vector(layer, attention_norm_)), amax);
}

#define GNOMON_FOR(E)                                                          \
  template void BasicModel<E>::prepare(const PassPlan&, int64_t, bool);        \
  template void BasicModel<E>::prepare_forward(const PassPlan&, int64_t);      \
  template std::array<float*, SiteGroup::kMax> BasicModel<E>::renew_gradients( \
      const SiteGroup&, std::span<E>, int64_t);                                \
  template void BasicModel<E>::start_gradients(bool);                          \
  template void BasicModel<E>::backward_head(int64_t, int64_t, bool);          \
  template void BasicModel<E>::backward_final_norm();                          \
  template void BasicModel<E>::backward_mlp(int, bool);                        \
  template void BasicModel<E>::backward_attention(int, bool);
GNOMON_FOR(bf16)
GNOMON_FOR(float)
#undef GNOMON_FOR

}  // namespace gnomon

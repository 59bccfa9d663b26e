#include "trainer/engine/faulty_operands.h"

#include <algorithm>
#include <cmath>

namespace gnomon {

template <class T>
void scale_column(std::span<T> values, int64_t columns, int64_t column, int log2_factor) {
  for (size_t i = static_cast<size_t>(column); i < values.size();
       i += static_cast<size_t>(columns)) {
    values[i] = from_float<T>(std::ldexp(to_float(values[i]), log2_factor));
  }
}

template <class E>
void FaultyOperands<E>::Tensor::resize(size_t size) {
  data.resize(size);
  room.resize(size);
  operand.room = room.data();
}

template <class E>
GemmOperand<E>& FaultyOperands<E>::scaled(Tensor& to, const GemmOperand<E>& from, int64_t columns,
                                          int64_t channel, int log2_factor) {
  to.resize(from.data.size());
  std::ranges::copy(from.data, to.data.begin());
  scale_column(std::span<E>(to.data), columns, channel, log2_factor);
  to.operand.renew(to.data);
  return to.operand;
}

template <class E>
GemmOperand<E>& FaultyOperands<E>::input(int site, int64_t step, int64_t columns,
                                         GemmOperand<E>& own) {
  const std::optional<OutlierChannel> outlier = faults_.outlier(site, step);
  if (!outlier) return own;
  return scaled(inputs_[site], own, columns, outlier->channel, outlier->log2_factor);
}

template <class E>
GemmOperand<E>& FaultyOperands<E>::kept_input(int site, int64_t step, GemmOperand<E>& own) {
  return faults_.outlier(site, step) ? inputs_.at(site).operand : own;
}

template <class E>
GemmOperand<E>& FaultyOperands<E>::weight(int site, int64_t step, bool fp8_copy, int64_t columns,
                                          GemmOperand<E>& own) {
  GemmOperand<E>* base = &own;
  if (fp8_copy && faults_.stale(site, step)) {
    // A run that never made the copy, as before its first step, makes it now.
    if (auto found = stale_.find(site); found != stale_.end()) base = &found->second.operand;
  }
  const std::optional<OutlierChannel> outlier = faults_.outlier(site, step);
  if (!outlier) return *base;
  return scaled(weights_[site], *base, columns, outlier->channel, -outlier->log2_factor);
}

template <class E>
void FaultyOperands<E>::begin_step(int64_t step, std::span<GemmOperand<E>> weights) {
  for (int site = 0; site < static_cast<int>(weights.size()); ++site) {
    if (!faults_.stale(site, step)) continue;
    if (!faults_.refreshes(site, step) && stale_.contains(site)) continue;
    const std::span<const E> now = weights[static_cast<size_t>(site)].data;
    std::ranges::copy(now, take_stale_weight(site, std::ssize(now)).begin());
  }
}

template <class E>
std::span<E> FaultyOperands<E>::stale_weight(int site, int64_t step) {
  auto found = stale_.find(site);
  if (found == stale_.end() || !faults_.stale(site, step)) return {};
  return found->second.data;
}

template <class E>
std::span<E> FaultyOperands<E>::take_stale_weight(int site, int64_t elements) {
  Tensor& kept = stale_[site];
  kept.resize(static_cast<size_t>(elements));
  kept.operand.renew(kept.data);
  return kept.data;
}

template <class E>
void FaultyOperands<E>::keep_stale_weights() {
  std::erase_if(kept_stale_, [&](const auto& kept) { return !stale_.contains(kept.first); });
  for (const auto& [site, tensor] : stale_) kept_stale_[site] = tensor.data;
}

template <class E>
void FaultyOperands<E>::restore_stale_weights() {
  forget_stale_weights();
  for (const auto& [site, kept] : kept_stale_) {
    std::ranges::copy(kept, take_stale_weight(site, std::ssize(kept)).begin());
  }
}

template class FaultyOperands<bf16>;
template class FaultyOperands<float>;
template void scale_column(std::span<bf16>, int64_t, int64_t, int);
template void scale_column(std::span<float>, int64_t, int64_t, int);

}  // namespace gnomon

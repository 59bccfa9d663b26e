#include "trainer/engine/faulty_operands.h"

#include <algorithm>
#include <cmath>

namespace gnomon {

template <class T>
void scale_column(Memory& memory, std::span<T> values, int64_t columns, int64_t column,
                  int log2_factor) {
  edit_on_host(memory, values, [&](std::span<T> all) {
    for (size_t i = static_cast<size_t>(column); i < all.size();
         i += static_cast<size_t>(columns)) {
      all[i] = from_float<T>(std::ldexp(to_float(all[i]), log2_factor));
    }
  });
}

template <class E>
GemmOperand<E>& FaultyOperands<E>::scaled(Tensor& to, const GemmOperand<E>& from, int64_t columns,
                                          int64_t channel, int log2_factor) {
  to.data = to.content.copy_of(from.data);
  scale_column(memory_, to.data, columns, channel, log2_factor);
  return to.own.of(to.data);
}

template <class E>
GemmOperand<E>& FaultyOperands<E>::input(int site, int64_t step, int64_t columns,
                                         GemmOperand<E>& own) {
  const std::optional<OutlierChannel> outlier = faults_.outlier(site, step);
  if (!outlier) return own;
  return scaled(inputs_.try_emplace(site, memory_).first->second, own, columns, outlier->channel,
                outlier->log2_factor);
}

template <class E>
GemmOperand<E>& FaultyOperands<E>::kept_input(int site, int64_t step, GemmOperand<E>& own) {
  return faults_.outlier(site, step) ? inputs_.at(site).own.operand() : own;
}

template <class E>
GemmOperand<E>& FaultyOperands<E>::weight(int site, int64_t step, bool fp8_copy, int64_t columns,
                                          GemmOperand<E>& own) {
  GemmOperand<E>* base = &own;
  if (fp8_copy && faults_.stale(site, step)) {
    // A run that never made the copy, as before its first step, makes it now.
    if (auto found = stale_.find(site); found != stale_.end()) base = &found->second.own.operand();
  }
  const std::optional<OutlierChannel> outlier = faults_.outlier(site, step);
  if (!outlier) return *base;
  return scaled(weights_.try_emplace(site, memory_).first->second, *base, columns, outlier->channel,
                -outlier->log2_factor);
}

template <class E>
void FaultyOperands<E>::begin_step(int64_t step, std::span<GemmOperand<E>> weights) {
  for (int site = 0; site < static_cast<int>(weights.size()); ++site) {
    if (!faults_.stale(site, step)) continue;
    if (!faults_.refreshes(site, step) && stale_.contains(site)) continue;
    const std::span<const E> now = weights[static_cast<size_t>(site)].data;
    memory_.copy(std::as_bytes(now),
                 std::as_writable_bytes(allocate_stale_weight(site, std::ssize(now))).data());
  }
}

template <class E>
std::span<E> FaultyOperands<E>::stale_weight(int site, int64_t step) {
  auto found = stale_.find(site);
  if (found == stale_.end() || !faults_.stale(site, step)) return {};
  return found->second.data;
}

template <class E>
std::span<E> FaultyOperands<E>::allocate_stale_weight(int site, int64_t elements) {
  Tensor& kept = stale_.try_emplace(site, memory_).first->second;
  kept.data = kept.content.at_least(elements);
  kept.own.of(kept.data);
  return kept.data;
}

template <class E>
void FaultyOperands<E>::keep_stale_weights() {
  std::erase_if(kept_stale_, [&](const auto& kept) { return !stale_.contains(kept.first); });
  for (const auto& [site, tensor] : stale_) {
    const HostView<E> content(memory_, tensor.data);
    kept_stale_[site].assign(content.begin(), content.end());
  }
}

template <class E>
void FaultyOperands<E>::restore_stale_weights() {
  forget_stale_weights();
  for (const auto& [site, kept] : kept_stale_) {
    write_from_host(memory_, std::span<const E>(kept),
                    allocate_stale_weight(site, std::ssize(kept)));
  }
}

template class FaultyOperands<bf16>;
template class FaultyOperands<float>;
template void scale_column(Memory&, std::span<bf16>, int64_t, int64_t, int);
template void scale_column(Memory&, std::span<float>, int64_t, int64_t, int);

}  // namespace gnomon

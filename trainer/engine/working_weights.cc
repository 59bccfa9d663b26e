#include "trainer/engine/working_weights.h"

#include <algorithm>
#include <vector>

#include "trainer/engine/sharded_weights.h"

namespace gnomon {
namespace {

template <class E>
class WholeWeights final : public WorkingWeightsOf<E> {
 public:
  WholeWeights(const ParameterLayout& layout, BackendOf<E>& backend, Arena& arena)
      : layout_(layout), backend_(backend), weights_(arena.allocate<E>(layout.elements())) {
    const size_t layers = layout.layers().size();
    const auto sites = static_cast<size_t>(layout.table().count());
    operands_.resize(layers * sites + 1);
    for (size_t layer = 0; layer < layers; ++layer) {
      allocate_layer_operands(arena, backend.memory(), layout, layout.layers()[layer],
                              std::span(operands_).subspan(layer * sites, sites));
    }
    const int head = layout.head();
    allocate_operands(arena, backend.memory(), layout, std::span(&head, 1),
                      std::span(operands_).last(1));
  }

  WeightSpan all() override { return weights_; }
  std::span<std::byte> kept() override { return std::as_writable_bytes(weights_); }
  void changed() override { forget_copies(); }
  void forget_copies() override {
    size_t site = 0;
    for (const LayerParameters& layer : layout_.layers()) {
      for (int parameter : layer.matrices) operands_[site++].renew(weight(parameter));
    }
    operands_.back().renew(weight(layout_.head()));
  }
  void load(std::span<const std::byte> all_on_host) override {
    backend_.memory().write(all_on_host, kept().data());
    changed();
  }
  void set(std::span<const float> values, int64_t offset) override {
    fill_on_host(
        backend_.memory(), weights_.subspan(static_cast<size_t>(offset), values.size()),
        [&](std::span<E> room) { std::ranges::transform(values, room.begin(), from_float<E>); });
    changed();
  }
  WeightSpan updated(const Shard& owned) override { return owned.of(weights_); }
  void share(Wires& wires, WireFormat format) override {
    wires.all_gather(format, weights_);
    changed();
  }
  uint64_t hash_terms() override {
    const HashPiece piece{kept()};
    return backend_.hash_terms(std::span(&piece, 1));
  }
  uint64_t hash_of_common() override { return hash_terms(); }
  void gather(Collectives&, std::span<std::byte> all_on_host) override {
    backend_.memory().read(kept(), all_on_host.data());
  }

  std::span<E> weight(int parameter) override {
    const Parameter& it = layout_[parameter];
    return weights_.subspan(static_cast<size_t>(it.offset), static_cast<size_t>(it.size));
  }
  std::span<GemmOperand<E>> operands(int first_site, int count) override {
    return std::span(operands_).subspan(static_cast<size_t>(first_site),
                                        static_cast<size_t>(count));
  }
  std::span<GemmOperand<E>> all_operands() override { return operands_; }

 private:
  const ParameterLayout& layout_;
  BackendOf<E>& backend_;
  std::span<E> weights_;
  std::vector<GemmOperand<E>> operands_;  // by site
};

}  // namespace

template <class E>
std::unique_ptr<WorkingWeightsOf<E>> make_working_weights(const ParameterLayout& layout,
                                                          WeightRanks ranks, BackendOf<E>& backend,
                                                          Arena& arena,
                                                          std::span<float> gradients) {
  if (ranks.size == 1) return std::make_unique<WholeWeights<E>>(layout, backend, arena);
  return std::make_unique<ShardedWeights<E>>(layout, ranks, backend, arena, gradients);
}

template std::unique_ptr<WorkingWeightsOf<bf16>> make_working_weights(const ParameterLayout&,
                                                                      WeightRanks, BackendOf<bf16>&,
                                                                      Arena&, std::span<float>);
template std::unique_ptr<WorkingWeightsOf<float>> make_working_weights(const ParameterLayout&,
                                                                       WeightRanks,
                                                                       BackendOf<float>&, Arena&,
                                                                       std::span<float>);

}  // namespace gnomon

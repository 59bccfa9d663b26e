// Where a model's working weights lie, and the rounded copies of them that products read: all of
// them whole; or, where several ranks train, a part on each and in a pass the layers at hand
// (sharded_weights.h). The model says which layer it comes to and asks for its weights; the engine
// changes them through what is here and knows no more of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/errors.h"
#include "kernels/backend.h"
#include "kernels/comm/wires.h"
#include "kernels/operand.h"
#include "kernels/tensor.h"
#include "trainer/engine/optimizer_state.h"
#include "trainer/engine/parameters.h"

namespace gnomon {

// Ranks that share the working weights, and the one that this is; of one alone, all are whole.
struct WeightRanks {
  int rank = 0;
  int size = 1;
};

class WorkingWeights {
 public:
  virtual ~WorkingWeights() = default;

  // True when this rank keeps a part of them only. What is marked with * is then done by all ranks
  // together.
  virtual bool sharded() const { return false; }

  // ---- state ----
  // Every one, in the layout's numbering. Not where they are sharded.
  virtual WeightSpan all() = 0;
  // Those that this rank keeps, as they lie in memory.
  virtual std::span<std::byte> kept() = 0;
  // kept() was written.
  virtual void changed() = 0;
  // Copies that products read are made anew when they are next needed. Recorded passes ask for it.
  virtual void forget_copies() = 0;
  // Becomes those of these, of all weights, in the host's memory, that are kept here.
  virtual void load(std::span<const std::byte> all_on_host) = 0;
  // The same of FP32 values of the host, rounded; they are those of the elements from `offset` on.
  virtual void set(std::span<const float> values, int64_t offset) = 0;
  // Where the new values of the elements that this rank owns the masters of, `owned`, are to be
  // written; nothing else may use the gradients until share().
  virtual WeightSpan updated(const Shard& owned) = 0;
  // *Brings them to all that keep them.
  virtual void share(Wires& wires, WireFormat format) = 0;
  // The sum of PlacedHash's terms of those that are kept here; each counts on one rank.
  virtual uint64_t hash_terms() = 0;
  // The same of those that every rank has.
  virtual uint64_t hash_of_common() = 0;
  // *Room for all weights on rank 0's host, not looked at elsewhere, gets them.
  virtual void gather(Collectives& ranks, std::span<std::byte> all_on_host) = 0;

  // ---- gathers of a pass; nothing where they are whole ----
  // *Before the first of the other calls.
  virtual void connect(Collectives& /*ranks*/) {}
  // *A pass through the first `layers` layers, and back where it `trains`. Every rank makes the
  // same passes, and the same calls in each.
  virtual void begin_pass(int /*layers*/, bool /*trains*/) {}
  // The pass comes to this unit's weights, which are there until it comes to another one.
  virtual void enter_embedding() {}
  virtual void enter_layer(int /*layer*/) {}
  virtual void enter_head() {}
  // Also of one that was broken off.
  virtual void end_pass() noexcept {}
  // *A pass in which this rank computes nothing and others do.
  virtual void accompany_pass(int /*layers*/, bool /*trains*/) {}
};

// For as long as a pass runs.
class PassOverWeights {
 public:
  PassOverWeights(WorkingWeights& weights, int layers, bool trains) : weights_(weights) {
    weights.begin_pass(layers, trains);
  }
  ~PassOverWeights() { weights_.end_pass(); }
  PassOverWeights(const PassOverWeights&) = delete;
  PassOverWeights& operator=(const PassOverWeights&) = delete;

 private:
  WorkingWeights& weights_;
};

// Weights of the element type E, BF16 or FP32.
template <class E>
class WorkingWeightsOf : public WorkingWeights {
 public:
  // A parameter's, at hand in the pass where they are sharded.
  virtual std::span<E> weight(int parameter) = 0;
  // The operands of neighbouring sites that read one input, from this one on.
  virtual std::span<GemmOperand<E>> operands(int first_site, int count) = 0;
  // By site; empty where they are sharded.
  virtual std::span<GemmOperand<E>> all_operands() = 0;
};

// `layout` and `backend` must outlive the result. Takes what it needs of `arena`, which is counting
// or gives (kernels/tensor.h). `gradients`, of all elements, serve as room between an update and
// share().
template <class E>
std::unique_ptr<WorkingWeightsOf<E>> make_working_weights(const ParameterLayout& layout,
                                                          WeightRanks ranks, BackendOf<E>& backend,
                                                          Arena& arena, std::span<float> gradients);

// ---- rooms for copies, of the model's activations too ----
template <class E>
void allocate_scalars(Arena& arena, Memory& memory, GemmOperand<E>& operand) {
  operand.scalars = arena.allocate<float>(kOperandScalars).data();
  operand.tile_scales = Buffer<float>(memory);
}

inline std::byte* allocate_copy_room(Arena& arena, int64_t elements) {
  return arena.allocate<std::byte>(elements * OperandRoom::kBytesPerElement).data();
}

// Makes room for parameters that are read side by side.
template <class E>
void allocate_operands(Arena& arena, Memory& memory, const ParameterLayout& layout,
                       std::span<const int> parameters, std::span<GemmOperand<E>> operands) {
  int64_t elements = 0;
  for (int parameter : parameters) elements += layout[parameter].size;
  OperandRoom room{allocate_copy_room(arena, elements), 0, elements};
  for (size_t i = 0; i < parameters.size(); ++i) {
    operands[i].room = room;
    allocate_scalars(arena, memory, operands[i]);
    room.before += layout[parameters[i]].size;
  }
}

// Makes room for a layer's matrices, in the order of its sites.
template <class E>
void allocate_layer_operands(Arena& arena, Memory& memory, const ParameterLayout& layout,
                             const LayerParameters& layer, std::span<GemmOperand<E>> operands) {
  const std::vector<Site>& sites = layout.table().sites;
  for (size_t first = 0, end = 0; first < sites.size(); first = end) {
    while (end < sites.size() && sites[end].group == sites[first].group) ++end;
    allocate_operands(arena, memory, layout, std::span(layer.matrices).subspan(first, end - first),
                      operands.subspan(first, end - first));
  }
}

}  // namespace gnomon

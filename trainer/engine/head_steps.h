// What a layer does to q, k and v between their products and attention, step by step.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor.h"
#include "trainer/engine/parameters.h"
#include "trainer/engine/working_weights.h"

namespace gnomon {

// A matrix whose rows lie `stride` elements apart.
template <class E>
struct StridedRows {
  E* data;
  int64_t stride;
};

// One layer's q, k and v, or their gradients, in a pass.
template <class E>
struct HeadPass {
  BackendOf<E>& backend;
  WorkingWeightsOf<E>& weights;
  const ParameterLayout& layout;
  std::span<float> gradients;  // of all parameters
  int layer;
  size_t memory;   // which one of those that HeadStep::allocate() made
  int64_t n;       // tokens
  int64_t tokens;  // of a sequence
  std::array<StridedRows<E>, 3> rows;

  // A vector of the layer, by its place in the table.
  std::span<const E> weight(int vector) const { return weights.weight(parameter(vector)); }
  std::span<float> gradient(int vector) const {
    const Parameter& it = layout[parameter(vector)];
    return gradients.subspan(static_cast<size_t>(it.offset), static_cast<size_t>(it.size));
  }

 private:
  int parameter(int vector) const {
    return layout.layers()[static_cast<size_t>(layer)].vectors[static_cast<size_t>(vector)];
  }
};

template <class E>
class HeadStep {
 public:
  virtual ~HeadStep() = default;
  // Takes what one layer, or layers that share it, keeps of `n` tokens between the passes.
  virtual void allocate(Arena& /*arena*/, int64_t /*n*/) {}
  // In place. In the forward pass k's rows follow q's, and v's follow k's, in rows of all three.
  virtual void forward(const HeadPass<E>& pass) = 0;
  // Turns gradients of what forward() made into those of what it was given, in place, and adds
  // those of its parameters.
  virtual void backward(const HeadPass<E>& pass) = 0;
};

template <class E>
using HeadSteps = std::vector<std::unique_ptr<HeadStep<E>>>;

// A model's, in the order of the forward pass. E is bf16 or float.
template <class E>
HeadSteps<E> make_head_steps(const ModelConfig& config, const LayerTable& table);

}  // namespace gnomon

// The memory of a model: weights, gradients, what passes keep, and room to work in.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor.h"
#include "trainer/engine/head_steps.h"
#include "trainer/engine/linear.h"
#include "trainer/engine/memory_choice.h"
#include "trainer/engine/model_config.h"
#include "trainer/engine/parameters.h"
#include "trainer/engine/working_weights.h"

namespace gnomon {

// Stashed values of one layer but for what enters it; n tokens, names as in the model's equations.
template <class E>
struct LayerActivations {
  std::span<float> attention_rstd;  // [n]
  GemmOperand<E> attention_input;   // normalised, input of q, k, v
  std::span<E> qkv;                 // [n, attention_width + 2·kv_width], after the head steps
  std::span<E> attention_output;
  GemmOperand<E> o_input;  // attention_output as operand
  std::span<std::byte> attention_saved;
  std::span<E> mlp_residual;
  std::span<float> mlp_rstd;
  GemmOperand<E> mlp_input;  // normalised, input of gate and up
  std::span<E> gate_up;      // [n, 2·ffn]
  std::span<E> attention_normed, mlp_normed;
};
template <class E>
struct LayerHidden {
  std::span<E> hidden;        // [n, ffn]
  GemmOperand<E> down_input;  // hidden as operand
};

// Attention over n tokens in sequences of `tokens`, with q, k and v side by side.
AttentionShape attention_shape(const ModelConfig& config, int64_t n, int64_t tokens);

// E is bf16 or float.
template <class E>
struct ModelMemory {
  // For micro-batches of up to `sequences` × `tokens`. Counts what the model needs, and takes
  // nothing before commit(). `layout` and `backend` must outlive it.
  ModelMemory(const ModelConfig& config, const ParameterLayout& layout, int64_t sequences,
              int64_t tokens, BackendOf<E>& backend, const MemoryChoice& choice, WeightRanks ranks);
  // Throws Error when memory is short.
  void commit();
  std::vector<const Arena*> arenas() const {
    return {&weights_arena_, &gradients_arena_, &activations_arena_, &workspace_arena_};
  }

  int64_t head_rows;  // most tokens whose logits exist at a time
  std::unique_ptr<WorkingWeightsOf<E>> weights;
  std::span<float> gradients;
  std::vector<std::span<E>> block_inputs;  // by layer: what its first norm normalised [n,width]
  std::vector<LayerActivations<E>> layers;
  std::vector<LayerHidden<E>> hidden;
  HeadSteps<E> head_steps;
  std::span<E> final_residual, final_normed, logits;
  std::span<float> final_rstd, losses;
  GemmOperand<E> final_input;

  // The output gradients at hand, one room for all.
  std::array<GemmOperand<E>, SiteGroup::kMax> dy;
  std::span<int32_t> tokens_of_pass, targets_of_pass;  // [n]
  std::span<E> embedded;                               // [n,width]
  std::span<E> update;               // [n,width] what a block adds to the residual
  std::span<E> d_residual, d_input;  // [n,width]
  std::span<float> d_shared;         // [n,width] sum over the sites that share an input
  std::span<E> d_attention;          // [n,attention_width]
  std::span<E> d_qkv;                // [n,attention_width + 2·kv_width]
  std::span<E> d_hidden;             // [n,ffn]
  std::span<E> d_gate_up;            // [n,2·ffn]
  std::span<std::byte> attention_scratch;

 private:
  void allocate();
  void give_room(Arena& arena, GemmOperand<E>& operand, int64_t elements);
  void allocate_activations();
  void allocate_layer(LayerActivations<E>& layer);
  void allocate_workspace();

  ModelConfig config_;
  const ParameterLayout& layout_;
  int64_t n_;
  int64_t tokens_;  // per sequence
  BackendOf<E>& backend_;
  Memory& memory_;
  MemoryChoice choice_;
  WeightRanks ranks_;
  Arena weights_arena_{"weights", memory_};
  Arena gradients_arena_{"gradients", memory_};
  Arena activations_arena_{"activations", memory_};
  Arena workspace_arena_{"workspace", memory_};
};

}  // namespace gnomon

// Tensors that a fault puts in the place of a GEMM's own: an outlier channel in a down projection's
// input, with the weight's column made smaller by as much, and a weight that is no longer the
// newest one. Takes memory only for faults that act.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "kernels/memory.h"
#include "kernels/operand.h"
#include "trainer/engine/fault_view.h"

namespace gnomon {

template <class E>
class FaultyOperands {
 public:
  // Tensors lie in `memory`. Both must outlive this.
  FaultyOperands(const FaultView& faults, Memory& memory) : faults_(faults), memory_(memory) {}

  // ---- y = (x·S)·(w·S⁻¹)ᵀ, S = 2^n at the channel and 1 elsewhere: the same in real numbers and,
  // powers of two being exact, in BF16 to the bit ----
  // `own` where no channel of the site grows; otherwise a tensor made anew from it.
  GemmOperand<E>& input(int site, int64_t step, int64_t columns, GemmOperand<E>& own);
  // What input() gave last, for the backward pass of the same pass.
  GemmOperand<E>& kept_input(int site, int64_t step, GemmOperand<E>& own);
  // The weight's counterpart, of the stale weight where there is one and the GEMM reads FP8 copies.
  GemmOperand<E>& weight(int site, int64_t step, bool fp8_copy, int64_t columns,
                         GemmOperand<E>& own);

  // ---- stale weights: state that a checkpoint must have ----
  // Before the passes of `step`: keeps the weights as they are where the FP8 copy is made now.
  void begin_step(int64_t step, std::span<GemmOperand<E>> weights);
  // The kept weight of a site whose copy is stale in `step`; empty where there is none.
  std::span<E> stale_weight(int site, int64_t step);
  // Room for one that a checkpoint has.
  std::span<E> allocate_stale_weight(int site, int64_t elements);
  void forget_stale_weights() { stale_.clear(); }
  // Copies that products read of them are made anew when they are next needed.
  void forget_copies() {
    for (auto& [site, tensor] : stale_) tensor.own.operand().renew(tensor.data);
  }
  void keep_stale_weights();
  void restore_stale_weights();

 private:
  struct Tensor {
    explicit Tensor(Memory& memory) : content(memory), own(memory) {}
    Buffer<E> content;
    OwnOperand<E> own;
    std::span<E> data;
  };
  // `from` with column `channel` multiplied by 2^log2_factor.
  GemmOperand<E>& scaled(Tensor& to, const GemmOperand<E>& from, int64_t columns, int64_t channel,
                         int log2_factor);

  const FaultView& faults_;
  Memory& memory_;
  std::map<int, Tensor> inputs_, weights_, stale_;  // by site
  std::map<int, std::vector<E>> kept_stale_;
};

// Column `column` of rows of `columns`, in `memory`, multiplied by 2^log2_factor.
template <class T>
void scale_column(Memory& memory, std::span<T> values, int64_t columns, int64_t column,
                  int log2_factor);

}  // namespace gnomon

// Products of quantised operands with a scale for each tile, in FP32 sums or in the bits of
// Hopper's tensor cores (kernels/scaled_product.h). For what the BF16 products cannot say exactly:
// FP32 scales that change along what is summed over, and Hopper's accumulation.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/gemm.h"

namespace gnomon::cpu {

class ScaledProducts {
 public:
  explicit ScaledProducts(int threads) : threads_(threads) {}

  // C[m,n] = Σ over segments of (sum over the segment)·(1/s_a)·(1/s_b) (+ C when `accumulate`).
  // What is summed over is cut into segments where a scale of either operand changes and, for
  // hopper, every promote_every terms; a segment's sum starts at zero and goes through its terms in
  // order (hopper: in instructions of accumulation.sum.terms, the last one filled up with zeros),
  // and is added to the total in FP32 with one rounding. Strides other than the dense ones only for
  // C. Out is bf16 or float. The bits do not depend on the number of threads.
  template <class Out>
  void run(const GemmShape& shape, const Accumulation& accumulation, const ScaledOperand& a,
           const ScaledOperand& b, Out* c, bool accumulate);

 private:
  int threads_;
  GrowingScratch scratch_;
};

}  // namespace gnomon::cpu

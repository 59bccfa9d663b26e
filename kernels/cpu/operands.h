// Rounded copies of operands on the CPU, as BF16 values, and products of them: one BF16 product
// where the values are exact so, term by term with the scales of tiles otherwise.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/hopper_accumulate.h"

namespace gnomon::cpu {

// Where the copy lies; it is there for both orientations.
bf16* copy_of(const GemmOperand<bf16>& operand);

bool keeps_scales(const Accumulation& accumulation, const Quantizer& a, const Quantizer& b);

class OperandKernels {
 public:
  // `gemms` must outlive this.
  OperandKernels(int threads, GemmCache& gemms)
      : threads_(threads), gemms_(gemms), scaled_products_(threads) {}

  void quantize(GemmOperand<bf16>& operand, int64_t rows, int64_t columns, const Rounding& rounding,
                CastCounts* counts);
  // Out is bf16 or float; only a product in BF16 may have several operands on its right.
  template <class Out>
  void gemm(const GemmShape& shape, const Accumulation& accumulation, const GemmOperand<bf16>& a,
            std::span<const GemmOperand<bf16>* const> b, Out* c, bool accumulate);

 private:
  // The left operand's values as a kernel reads them that loses terms.
  const bf16* values_read(const GemmShape& shape, const TermRange& lost,
                          const GemmOperand<bf16>& a);

  int threads_;
  GemmCache& gemms_;
  ScaledProducts scaled_products_;
  std::vector<float> alphas_;
  std::vector<bf16> kept_terms_;
};

}  // namespace gnomon::cpu

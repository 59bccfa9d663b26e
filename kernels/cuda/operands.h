// Rounded copies of operands on the device, and products of them. A copy is FP8 codes where the
// device multiplies them as the recipe wants, and BF16 values otherwise.
//
// In an operand's room codes as stored come first, of all operands that share it, transposed codes
// behind them: an FP8 product wants the summed dimension innermost on both sides.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>

#include "kernels/backend.h"
#include "kernels/cuda/machine.h"
#include "kernels/cuda/quantize.h"

namespace gnomon::cuda {

// True if such copies may be multiplied as codes, if the device has such products.
bool native(const Accumulation& accumulation, const Quantizer& a, const Quantizer& b);

class OperandKernels {
 public:
  // `machine` must outlive this.
  explicit OperandKernels(Machine& machine);

  // As BackendOf::quantize.
  void quantize(GemmOperand<bf16>& operand, int64_t rows, int64_t columns, const Rounding& rounding,
                unsigned wanted, CastCounts* counts);
  // y and, in the same pass where they are codes, its copy.
  void swiglu(const CopyAlong<bf16>& copy, const Gated& from, int64_t rows, int64_t columns,
              bf16* y, float* amax);
  // What multiplies() asks for; none: usual ones.
  void expect(std::vector<ExpectedProduct> products);
  // True if the machine multiplies copies that are rounded so as codes, in each expected product
  // that can be in FP8. Asked once for each kind; where it does not, a warning says so.
  bool multiplies(const Quantizer& a, const Quantizer& b, bool fast, bool fp32_result);
  // Out is bf16 or float.
  template <class Out>
  void gemm(const GemmShape& shape, const Accumulation& accumulation, const GemmOperand<bf16>& a,
            const GemmOperand<bf16>& b, Out* c, bool accumulate);

 private:
  void quantize_codes(GemmOperand<bf16>& operand, int64_t rows, int64_t columns,
                      const Rounding& rounding, unsigned wanted, Counting counting);
  // The operand as a product reads it that has its terms along rows of what is stored
  // (`terms_last`), or along columns. `outer` are its rows in the product's sense.
  Factor factor(const GemmOperand<bf16>& operand, bool terms_last, int64_t outer, int64_t terms);
  // Where one factor has a scale for each row and the other one for all, the other gets a vector of
  // equal ones: the library takes vectors on both sides or on none.
  void make_scales_alike(const GemmShape& shape, Factor& a, Factor& b);
  void lose(Factor& a, const GemmShape& shape, const TermRange& lost);

  // What a machine is asked of once.
  using Kind = std::tuple<Format, Format, FactorScale, FactorScale, bool, bool>;

  Machine& machine_;
  std::vector<ExpectedProduct> expected_;
  std::map<Kind, bool> known_;
  Buffer<uint32_t> amaxes_;
  Buffer<std::byte> kept_terms_;
  Buffer<float> equal_scales_;
};

}  // namespace gnomon::cuda

#include "kernels/cpu/operands.h"

#include <algorithm>
#include <limits>

#include "base/errors.h"
#include "kernels/cpu/ops.h"

namespace gnomon::cpu {
namespace {

float inverse_of(const GemmOperand<bf16>& operand) {
  return operand.rounding.whole_tensor() ? operand.scalars[kInverseScale] : 1.0f;
}

ScaledOperand with_scales(const bf16* values, const GemmOperand<bf16>& operand) {
  const Rounding& rounding = operand.rounding;
  return {values, rounding.quantizer,
          rounding.whole_tensor() ? operand.scalars + kScale : operand.tile_scales.data()};
}

}  // namespace

bf16* copy_of(const GemmOperand<bf16>& operand) {
  return reinterpret_cast<bf16*>(operand.room.begin) + operand.room.before;
}

bool keeps_scales(const Accumulation& accumulation, const Quantizer& a, const Quantizer& b) {
  const auto needs = [](const Quantizer& quantizer) {
    return quantizer.tile != TileShape{} && !quantizer.exact_in_bf16();
  };
  return accumulation.hopper || needs(a) || needs(b);
}

void OperandKernels::quantize(GemmOperand<bf16>& operand, int64_t rows, int64_t columns,
                              const Rounding& rounding, CastCounts* counts) {
  GNOMON_ASSERT(rows * columns == std::ssize(operand.data));
  const std::span<bf16> copy{copy_of(operand), operand.data.size()};
  CastCounts found;
  if (rounding.whole_tensor()) {
    const float scale = tensor_scale(rounding, operand.scalars[kAmax]);
    operand.scalars[kScale] = scale;
    operand.scalars[kInverseScale] = 1.0f / scale;
    found = cpu::quantize(
        threads_, operand.data, rounding.quantizer.format, scale, copy,
        operand.amax_known ? operand.scalars[kAmax] : std::numeric_limits<float>::infinity());
  } else {
    std::span<float> scales;
    if (rounding.keeps_scales) {
      scales = operand.tile_scales.at_least(tile_grid(rounding.quantizer, rows, columns).count());
    }
    found =
        quantize_tiles(threads_, rounding.quantizer,
                       {.log2_shift = rounding.log2_shift, .dequantise = !rounding.keeps_scales},
                       operand.data, rows, columns, copy, scales);
  }
  if (counts != nullptr) counts->add(found);
  operand.rounding = rounding;
  operand.orientations = kAsStored | kTransposed;
}

const bf16* OperandKernels::values_read(const GemmShape& shape, const TermRange& lost,
                                        const GemmOperand<bf16>& a) {
  const bf16* values = copy_of(a);
  if (lost.count == 0) return values;
  GNOMON_ASSERT(shape.stride_a == 0);
  // Zeros add nothing to a sum, nor to its scales, which are those of the whole tensor.
  kept_terms_.assign(values, values + shape.m * shape.k);
  const int64_t term_stride = shape.transpose_a ? shape.m : 1;
  const int64_t row_stride = shape.transpose_a ? 1 : shape.k;
  const int64_t end = std::min(lost.first + lost.count, shape.k);
  for (int64_t row = 0; row < shape.m; ++row) {
    for (int64_t term = lost.first; term < end; ++term) {
      kept_terms_[static_cast<size_t>(row * row_stride + term * term_stride)] = bf16{};
    }
  }
  return kept_terms_.data();
}

template <class Out>
void OperandKernels::gemm(const GemmShape& shape, const Accumulation& accumulation,
                          const GemmOperand<bf16>& a, std::span<const GemmOperand<bf16>* const> b,
                          Out* c, bool accumulate) {
  GNOMON_ASSERT(!b.empty());
  const bf16* left = values_read(shape, accumulation.lost, a);
  if (a.rounding.keeps_scales) {
    GNOMON_ASSERT(b.size() == 1);
    scaled_products_.run(shape, accumulation, with_scales(left, a),
                         with_scales(copy_of(*b[0]), *b[0]), c, accumulate);
    return;
  }
  const float first = inverse_of(a) * inverse_of(*b[0]);
  const bool same_scale = std::ranges::all_of(
      b, [&](const GemmOperand<bf16>* part) { return inverse_of(*part) == inverse_of(*b[0]); });
  alphas_.assign(1, first);
  if (!same_scale) {
    GNOMON_ASSERT(shape.transpose_b);
    alphas_.clear();
    for (const GemmOperand<bf16>* part : b) {
      alphas_.insert(alphas_.end(), static_cast<size_t>(std::ssize(part->data) / shape.k),
                     inverse_of(a) * inverse_of(*part));
    }
    GNOMON_ASSERT(std::ssize(alphas_) == shape.n);
  }
  gemms_.run(shape, alphas_, left, copy_of(*b[0]), c, accumulate);
}

template void OperandKernels::gemm(const GemmShape&, const Accumulation&, const GemmOperand<bf16>&,
                                   std::span<const GemmOperand<bf16>* const>, bf16*, bool);
template void OperandKernels::gemm(const GemmShape&, const Accumulation&, const GemmOperand<bf16>&,
                                   std::span<const GemmOperand<bf16>* const>, float*, bool);

}  // namespace gnomon::cpu

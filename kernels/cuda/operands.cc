#include "kernels/cuda/operands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/errors.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/quantize.h"

namespace gnomon::cuda {
namespace {

constexpr int64_t kSquareMultiple = 4;  // that rows of squares' scales are padded to

FactorScale scale_of(const TileShape& tile) {
  if (tile == TileShape{}) return FactorScale::kTensor;
  if (tile == TileShape{kSide, kSide}) return FactorScale::kSquare;
  if (tile == TileShape{1, kSide} || tile == TileShape{kSide, 1}) return FactorScale::kBlock;
  return FactorScale::kRow;
}

bool has_kernel(const TileShape& tile) {
  return scale_of(tile) != FactorScale::kRow || tile == TileShape{1, 0} || tile == TileShape{0, 1};
}

int64_t padded_squares(int64_t terms) {
  const int64_t blocks = (terms + kSide - 1) / kSide;
  return (blocks + kSquareMultiple - 1) / kSquareMultiple * kSquareMultiple;
}

// How many scales the codes of one orientation have, rounded up to what is 16-byte aligned. `outer`
// are its rows.
int64_t scales_of(FactorScale kind, int64_t outer, int64_t terms) {
  const auto blocks = [](int64_t size) { return (size + kSide - 1) / kSide; };
  const int64_t count = kind == FactorScale::kSquare  ? blocks(outer) * padded_squares(terms)
                        : kind == FactorScale::kBlock ? outer * blocks(terms)
                                                      : outer;
  return (count + 3) / 4 * 4;
}

const uint8_t* codes_of(const GemmOperand<bf16>& operand, Orientation orientation) {
  const auto* all = reinterpret_cast<const uint8_t*>(operand.room.begin);
  return all + operand.room.before + (orientation == kTransposed ? operand.room.elements : 0);
}

}  // namespace

bool native(const Accumulation& accumulation, const Quantizer& a, const Quantizer& b) {
  if (accumulation.sum != TensorCoreSum{}) {
    throw Error(
        "the fault wrong_accumulation cannot be made on a device, whose sums are what they are; "
        "use the CPU backend");
  }
  if (!accumulation.by_codes || !is_fp8(a.format) || !is_fp8(b.format)) return false;
  if (a.format == Format::kE5m2 && b.format == Format::kE5m2) return false;
  if (!has_kernel(a.tile) || !has_kernel(b.tile)) return false;
  const FactorScale of_a = scale_of(a.tile), of_b = scale_of(b.tile);
  const auto blocks = [](FactorScale scale) {
    return scale == FactorScale::kBlock || scale == FactorScale::kSquare;
  };
  if (blocks(of_a) != blocks(of_b)) return false;
  return of_a != FactorScale::kSquare || of_b != FactorScale::kSquare;
}

namespace {

const char* in_words(FactorScale scale) {
  switch (scale) {
    case FactorScale::kRow:
      return "a scale for each row";
    case FactorScale::kBlock:
      return "a scale for each 128 terms";
    case FactorScale::kSquare:
      return "a scale for each square of 128";
    default:
      return "one scale";
  }
}

// Where none is known: a product that a device which has its kind makes.
constexpr ExpectedProduct kUsual[] = {{1024, 1024, 1024, false}, {1024, 1024, 1024, true}};

}  // namespace

void OperandKernels::expect(std::vector<ExpectedProduct> products) {
  expected_ = std::move(products);
  known_.clear();
}

bool OperandKernels::multiplies(const Quantizer& a, const Quantizer& b, bool fast,
                                bool fp32_result) {
  Factor left{.format = a.format, .scale = scale_of(a.tile)};
  Factor right{.format = b.format, .transposed = true, .scale = scale_of(b.tile)};
  // As make_scales_alike() makes them.
  if (left.scale == FactorScale::kRow || right.scale == FactorScale::kRow)
    left.scale = right.scale = FactorScale::kRow;
  const Kind kind{left.format, right.format, left.scale, right.scale, fast, fp32_result};
  const auto [entry, is_new] = known_.try_emplace(kind, true);
  if (!is_new) return entry->second;
  const std::span<const ExpectedProduct> products =
      expected_.empty() ? std::span<const ExpectedProduct>(kUsual) : expected_;
  for (const ExpectedProduct& it : products) {
    // The others are sites of BF16: check_device_shapes() refuses a plan that has them in FP8.
    const bool fits = it.m % 16 == 0 && it.n % 16 == 0 && it.k % 16 == 0;
    if (it.fp32_result != fp32_result || !fits) continue;
    left.stride = right.stride = it.k;
    Product product{.m = it.m,
                    .n = it.n,
                    .k = it.k,
                    .fp32_output = fp32_result,
                    .stride_c = it.n,
                    .fast_accumulate = fast};
    for (bool added : {false, true}) {
      product.accumulate = added;
      if ((added && !fp32_result) || machine_.multiplies(product, left, right)) continue;
      fmt::print(stderr,
                 "warning: {} has no product of {} with {} by {} with {}, {} results{}, {} × {} "
                 "over {} terms: the rounded values are multiplied in BF16\n",
                 machine_.device(), format_name(left.format), in_words(left.scale),
                 format_name(right.format), in_words(right.scale), fp32_result ? "FP32" : "BF16",
                 added ? " added to what is there" : "", it.m, it.n, it.k);
      return entry->second = false;
    }
  }
  return true;
}

OperandKernels::OperandKernels(Machine& machine)
    : machine_(machine),
      amaxes_(machine.memory()),
      kept_terms_(machine.memory()),
      equal_scales_(machine.memory()) {}

void OperandKernels::quantize_codes(GemmOperand<bf16>& operand, int64_t rows, int64_t columns,
                                    const Rounding& rounding, unsigned wanted, Counting counting) {
  auto* stored = const_cast<uint8_t*>(codes_of(operand, kAsStored));
  auto* transposed = const_cast<uint8_t*>(codes_of(operand, kTransposed));
  const bf16* x = operand.data.data();
  if (rounding.whole_tensor()) {
    cast(rounding.quantizer.format, x, rows, columns, operand.scalars,
         (wanted & kAsStored) != 0 ? stored : nullptr,
         (wanted & kTransposed) != 0 ? transposed : nullptr, counting, machine_.stream());
    return;
  }
  const FactorScale kind = scale_of(rounding.quantizer.tile);
  // Those of the codes as stored come first.
  const int64_t of_stored = scales_of(kind, rows, columns);
  float* scales = operand.tile_scales.at_least(of_stored + scales_of(kind, columns, rows)).data();
  uint32_t* amaxes = amaxes_.at_least(std::max(rows, columns)).data();
  if ((wanted & kAsStored) != 0) {
    const ScaleStrides strides = kind == FactorScale::kSquare
                                     ? ScaleStrides{padded_squares(columns), 1}
                                 : kind == FactorScale::kBlock ? ScaleStrides{1, rows}
                                                               : ScaleStrides{1, 1};
    cast_tiles(rounding, x, rows, columns, stored, nullptr, scales, strides, amaxes, counting,
               machine_.stream());
    counting = {};
  }
  if ((wanted & kTransposed) != 0) {
    const ScaleStrides strides = kind == FactorScale::kSquare
                                     ? ScaleStrides{1, padded_squares(rows)}
                                 : kind == FactorScale::kBlock ? ScaleStrides{columns, 1}
                                                               : ScaleStrides{1, 1};
    cast_tiles(rounding, x, rows, columns, nullptr, transposed, scales + of_stored, strides, amaxes,
               counting, machine_.stream());
  }
}

void OperandKernels::quantize(GemmOperand<bf16>& operand, int64_t rows, int64_t columns,
                              const Rounding& rounding, unsigned wanted, CastCounts* counts) {
  GNOMON_ASSERT(rows * columns == std::ssize(operand.data));
  // Another orientation of a copy that is rounded in the same way leaves the first as it is.
  const bool same = operand.rounding == rounding;
  const unsigned there = same ? operand.orientations : 0;
  if (rounding.whole_tensor() && !same) choose_scale(rounding, operand.scalars, machine_.stream());
  const Counting counting{same ? nullptr : counts, operand.amax_known};
  if (rounding.keeps_scales) {
    quantize_codes(operand, rows, columns, rounding, wanted & ~there, counting);
    operand.orientations = there | wanted;
  } else {
    uint32_t* amaxes = nullptr;
    if (!rounding.whole_tensor()) {
      amaxes = amaxes_.at_least(tile_grid(rounding.quantizer, rows, columns).count()).data();
    }
    auto* values = reinterpret_cast<bf16*>(operand.room.begin) + operand.room.before;
    round_copy(rounding, operand.data.data(), rows, columns, operand.scalars, values, amaxes,
               counting, machine_.stream());
    operand.orientations = kAsStored | kTransposed;
  }
  operand.rounding = rounding;
}

void OperandKernels::swiglu(const CopyAlong<bf16>& copy, const Gated& from, int64_t rows,
                            int64_t columns, bf16* y, float* amax) {
  const Rounding& rounding = copy.rounding;
  GemmOperand<bf16>& operand = *copy.operand;
  GNOMON_ASSERT(rounding.whole_tensor() && rounding.given && operand.data.data() == y);
  if (!rounding.keeps_scales) {
    cuda::swiglu(from.gate, from.up, rows, columns, from.stride, y, amax, machine_.stream());
    return quantize(operand, rows, columns, rounding, copy.wanted, copy.counts);
  }
  choose_scale(rounding, operand.scalars, machine_.stream());
  const auto codes = [&](Orientation orientation) {
    const bool wanted = (copy.wanted & orientation) != 0;
    return wanted ? const_cast<uint8_t*>(codes_of(operand, orientation)) : nullptr;
  };
  swiglu_cast(rounding.quantizer.format, from, rows, columns, y, amax, operand.scalars,
              codes(kAsStored), codes(kTransposed), {copy.counts, operand.amax_known},
              machine_.stream());
  operand.rounding = rounding;
  operand.orientations = copy.wanted;
}

Factor OperandKernels::factor(const GemmOperand<bf16>& operand, bool terms_last, int64_t outer,
                              int64_t terms) {
  const Rounding& rounding = operand.rounding;
  Factor result;
  result.scale = scale_of(rounding.quantizer.tile);
  result.inverse_scales = operand.scalars + kInverseScale;
  if (!rounding.keeps_scales) {
    result.data = reinterpret_cast<const bf16*>(operand.room.begin) + operand.room.before;
    result.stride = terms_last ? terms : outer;
    if (!rounding.whole_tensor()) result.scale = FactorScale::kNone;
    return result;
  }
  const Orientation orientation = terms_last ? kAsStored : kTransposed;
  GNOMON_ASSERT((operand.orientations & orientation) != 0);
  result.data = codes_of(operand, orientation);
  result.format = rounding.quantizer.format;
  result.stride = terms;
  if (!rounding.whole_tensor()) {
    // Transposed, the terms are the rows of what is stored.
    const int64_t before = orientation == kTransposed ? scales_of(result.scale, terms, outer) : 0;
    result.inverse_scales = operand.tile_scales.data() + before;
  }
  return result;
}

void OperandKernels::lose(Factor& a, const GemmShape& shape, const TermRange& lost) {
  if (lost.count == 0) return;
  const int64_t elements = shape.m * shape.k;
  const bool codes = a.format != Format::kBf16;
  const int64_t bytes = codes ? elements : 2 * elements;
  std::byte* copy = kept_terms_.at_least(bytes).data();
  machine_.memory().copy({static_cast<const std::byte*>(a.data), static_cast<size_t>(bytes)}, copy);
  if (codes) {
    lose_terms(reinterpret_cast<uint8_t*>(copy), shape.m, shape.k, false, lost.first, lost.count,
               machine_.stream());
  } else if (a.transposed) {
    lose_terms(reinterpret_cast<bf16*>(copy), shape.k, shape.m, true, lost.first, lost.count,
               machine_.stream());
  } else {
    lose_terms(reinterpret_cast<bf16*>(copy), shape.m, shape.k, false, lost.first, lost.count,
               machine_.stream());
  }
  a.data = copy;
}

void OperandKernels::make_scales_alike(const GemmShape& shape, Factor& a, Factor& b) {
  const auto spread_one = [&](Factor& one, int64_t outer) {
    float* copies = equal_scales_.at_least((outer + 3) / 4 * 4).data();
    spread(one.inverse_scales, outer, copies, machine_.stream());
    one.inverse_scales = copies;
    one.scale = FactorScale::kRow;
  };
  if (a.scale == FactorScale::kTensor && b.scale == FactorScale::kRow) spread_one(a, shape.m);
  if (a.scale == FactorScale::kRow && b.scale == FactorScale::kTensor) spread_one(b, shape.n);
}

template <class Out>
void OperandKernels::gemm(const GemmShape& shape, const Accumulation& accumulation,
                          const GemmOperand<bf16>& a, const GemmOperand<bf16>& b, Out* c,
                          bool accumulate) {
  GNOMON_ASSERT(shape.stride_a == 0 && shape.stride_b == 0);
  GNOMON_ASSERT(a.rounding.keeps_scales == b.rounding.keeps_scales);
  Factor left = factor(a, !shape.transpose_a, shape.m, shape.k);
  Factor right = factor(b, shape.transpose_b, shape.n, shape.k);
  const bool codes = left.format != Format::kBf16;
  left.transposed = !codes && shape.transpose_a;
  right.transposed = codes || shape.transpose_b;
  if (codes) make_scales_alike(shape, left, right);
  lose(left, shape, accumulation.lost);
  const Product product{.m = shape.m,
                        .n = shape.n,
                        .k = shape.k,
                        .fp32_output = sizeof(Out) == sizeof(float),
                        .stride_c = shape.stride_c == 0 ? shape.n : shape.stride_c,
                        .accumulate = accumulate,
                        .fast_accumulate = accumulation.hopper && accumulation.promote_every == 0};
  machine_.multiply(product, left, right, c);
}

template void OperandKernels::gemm(const GemmShape&, const Accumulation&, const GemmOperand<bf16>&,
                                   const GemmOperand<bf16>&, bf16*, bool);
template void OperandKernels::gemm(const GemmShape&, const Accumulation&, const GemmOperand<bf16>&,
                                   const GemmOperand<bf16>&, float*, bool);

}  // namespace gnomon::cuda

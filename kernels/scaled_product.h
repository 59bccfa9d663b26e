// Products of quantised operands whose scales may change along what is summed over, and how such a
// product is added up: exactly enough in FP32, or as Hopper's tensor cores do it. What is modelled,
// on whose word, and what a device has said of it: docs/recipes.md.
#pragma once

#include <cstdint>
#include <span>

#include "numerics/formats.h"
#include "numerics/quantizer.h"

namespace gnomon {

// A matrix as quantize_matrix() left it; tiles and scales are those of the matrix as it is stored.
struct ScaledOperand {
  const bf16* values = nullptr;   // y, not divided by the scales
  Quantizer quantizer;            // format and tile
  const float* scales = nullptr;  // s by tile
};

inline constexpr int kHopperTerms = 32;  // of one FP8 instruction
inline constexpr int kTensorCoreTermsMax = 64;
inline constexpr int kTensorCoreBitsMax = 23;

// How one instruction of a tensor core adds its terms: what Hopper is believed to do, unless
// another is asked for (the comparison with a device in lab/accumulation does).
struct TensorCoreSum {
  int terms = kHopperTerms;  // 16, 32 or 64
  int fraction_bits = 13;    // kept of each term below the largest exponent, at most 23
  int result_bits = 13;      // fraction bits of the sum that is handed on, at most 23
  bool operator==(const TensorCoreSum&) const = default;
};

// Terms [first, first + count) of a sum.
struct TermRange {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const TermRange&) const = default;
};

struct Accumulation {
  bool hopper = false;          // otherwise FP32 sums, term by term
  int64_t promote_every = 128;  // hopper: terms after which a sum moves to FP32, a multiple of
                                // sum.terms; 0 = only where a scale changes
  TensorCoreSum sum = {};       // hopper only
  TermRange lost = {};          // which a broken kernel leaves out
  bool by_codes = true;  // false: of the values in BF16, even where codes could be multiplied
};

// One instruction: c + Σ a[i]·b[i] over up to rule.terms terms, values of E4M3 or E5M2. Each
// product and c are cut off (towards zero) at rule.fraction_bits below the largest exponent among
// them, where a product's exponent is the sum of its factors' (a subnormal has its format's
// smallest; zeros have none), added exactly, and the sum is cut off to one leading bit and
// rule.result_bits more. A NaN, or infinities that cancel, give the NaN 0x7FFFFFFF; an infinity
// gives itself.
float hopper_sum(float c, Format format_a, std::span<const float> a, Format format_b,
                 std::span<const float> b, const TensorCoreSum& rule = {});

}  // namespace gnomon

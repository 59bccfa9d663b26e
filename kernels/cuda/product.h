// One matrix product as the device makes it, in row-major words:
// C[m,n] = op(A)·op(B)·scales (+ C when `accumulate`), FP32 accumulation, one rounding at the end.
#pragma once

#include <cstdint>

#include "numerics/formats.h"

namespace gnomon::cuda {

enum class FactorScale {
  kNone,
  kTensor,  // one number
  kRow,     // one for each row of A, or each column of op(B)
  kBlock,   // one for 128 terms of such a row: row + rows·block
  kSquare,  // one for 128 rows × 128 terms: row block · ⌈blocks of terms⌉ rounded up to 4 + block
};

// BF16 values, or FP8 codes (E4M3, E5M2). A is m×k, stored k×m with `transposed`; B is k×n, stored
// n×k with `transposed`. Codes have the terms innermost: A as it is, B transposed.
struct Factor {
  const void* data = nullptr;
  Format format = Format::kBf16;
  int64_t stride = 0;  // between stored rows, in elements
  bool transposed = false;
  FactorScale scale = FactorScale::kNone;  // BF16: kNone or kTensor
  const float* inverse_scales = nullptr;   // of the device: what takes values back
};

struct Product {
  int64_t m = 0, n = 0, k = 0;
  bool fp32_output = false;
  int64_t stride_c = 0;
  float alpha = 1;
  bool accumulate = false;       // FP32 output only
  bool fast_accumulate = false;  // of codes: no promotion of partial sums to FP32
};

}  // namespace gnomon::cuda

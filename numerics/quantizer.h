// How a matrix becomes values of a narrow format: the format, the tiles that share one scale, and
// the rule that chooses the scale. A description and its exact meaning, element by element; the
// backends have fast forms with the same bits. Formulas: docs/recipes.md.
#pragma once

#include <cstdint>
#include <span>

#include "numerics/formats.h"

namespace gnomon {

enum class ScaleRule {
  kNone,        // 1
  kGiven,       // one for the whole matrix, chosen by the caller (`current`, `delayed`)
  kFp32,        // format_max/amax of the tile, at most kLargestScale
  kPowerOfTwo,  // the largest power of two that is at most that: nothing saturates
  kOcpFloor,  // 2^(e_max − ⌊log2 amax⌋), e_max the exponent of the format's largest value (OCP MX
              // 1.0, 6.3): values above format_max saturate
};

// Rows and columns of a tile of a row-major matrix; 0 = all of them.
struct TileShape {
  int64_t rows = 0;
  int64_t columns = 0;
  bool operator==(const TileShape&) const = default;
};

struct Quantizer {
  Format format = Format::kE4m3;
  TileShape tile;
  ScaleRule rule = ScaleRule::kGiven;
  bool operator==(const Quantizer&) const = default;

  // True when every dequantised value is exact in BF16, so that a GEMM over dequantised operands is
  // the GEMM over quantised ones with the scales applied: all scales are powers of two, or 1.
  bool exact_in_bf16() const { return rule != ScaleRule::kGiven && rule != ScaleRule::kFp32; }
};

struct TileQuantiseOptions {
  int log2_shift = 0;       // every scale is 2^log2_shift times what the rule says
  bool dequantise = false;  // y/s is wanted; only where exact_in_bf16()
};

struct TileGrid {
  TileShape tile;  // no 0 left
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t count() const { return rows * columns; }
};
TileGrid tile_grid(const Quantizer& quantizer, int64_t rows, int64_t columns);

// The factor that a tile with this largest magnitude is multiplied by before rounding. An amax of
// 0, Inf or NaN (or below 0) gives 1. Not for kGiven.
float tile_scale(ScaleRule rule, Format format, float amax);

// y = round_to(format, x·s), saturating, of the matrix x[rows, columns]; scales[i] = s of tile i in
// row-major order of the grid. The product is rounded to FP32 first. Every y is exact in BF16; the
// dequantised value is y/s. A tile with NaN or Inf in it has no amax and is scaled by 1.
void quantize_matrix(const Quantizer& quantizer, std::span<const bf16> x, int64_t rows,
                     int64_t columns, float given_scale, std::span<bf16> y,
                     std::span<float> scales);

}  // namespace gnomon

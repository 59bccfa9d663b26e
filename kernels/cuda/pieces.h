// What the kernels that write codes share: a block takes a piece of a matrix, rounds it and writes
// its codes by rows, by columns or both ways.
#pragma once

#include <cmath>

#include "base/errors.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/scales.h"
#include "kernels/cuda/vectors.h"
#include "kernels/operand.h"
#include "kernels/recipe.h"

namespace gnomon::cuda {

inline constexpr int kCodes = 16;  // codes of 16 bytes
inline constexpr int kCastThreads = 256;
inline constexpr int kSide = 128;  // of the piece of a matrix that one block takes

inline ScaleArithmetic arithmetic_of(const Rounding& rounding) {
  const Quantizer& quantizer = rounding.quantizer;
  const float largest = format_max(quantizer.format);
  return {.format = quantizer.format,
          .rule = quantizer.rule,
          .format_max = largest,
          .max_exponent = std::ilogb(largest),
          .given = rounding.given.value_or(0.0f),
          .given_at = rounding.given ? rounding.given_at : nullptr,
          .margin = rounding.margin,
          .log2_shift = rounding.log2_shift};
}

struct EightBits {
  uint32_t words[kVector / 2];
  __device__ bf16 operator[](int i) const {
    return {static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16))};
  }
};

__device__ inline EightBits bits_in(const Bits128& v) { return {{v.x, v.y, v.z, v.w}}; }
__device__ inline EightBits load_bits(const bf16* x) {
  return bits_in(*reinterpret_cast<const Bits128*>(x));
}

// A piece of kSide × kSide codes on its way from rows to columns; a row's place is padded so that
// neither way meets the same bank too often.
struct Piece {
  static constexpr int kPitch = kSide + 4;
  uint8_t* codes;  // [kSide][kPitch], of shared memory

  __device__ void put(int row, int column, uint64_t eight) const {
    uint32_t* at = reinterpret_cast<uint32_t*>(codes + row * kPitch + column);
    at[0] = static_cast<uint32_t>(eight);
    at[1] = static_cast<uint32_t>(eight >> 32);
  }
  // kCodes neighbours of a column.
  __device__ Bits128 take(int row, int column) const {
    uint32_t words[4] = {0, 0, 0, 0};
    for (int i = 0; i < kCodes; ++i) {
      words[i / 4] |= uint32_t{codes[(row + i) * kPitch + column]} << (i % 4 * 8);
    }
    return {words[0], words[1], words[2], words[3]};
  }
};

__device__ inline uint64_t encode_eight(Format format, const EightBits& values, float scale) {
  uint64_t eight = 0;
  for (int i = 0; i < kVector; i += 2) {
    const uint64_t two = fp8_codes(format, product(value_of(values[i]), scale),
                                   product(value_of(values[i + 1]), scale));
    eight |= two << (i * 8);
  }
  return eight;
}

// Values that are there, [rows, columns].
struct Stored {
  const bf16* x;
  int64_t columns;
  __device__ EightBits take(int64_t row, int64_t column) {
    return load_bits(x + row * columns + column);
  }
};

// Codes of the piece at (row0, column0). Values have take(), which gives each eight of them once;
// ScaleAt has the scale for a row and a column of the piece.
template <class Values, class ScaleAt>
__device__ void cast_piece(Format format, Values& values, int64_t rows, int64_t columns,
                           int64_t row0, int64_t column0, uint8_t* as_stored, uint8_t* transposed,
                           const Piece& piece, ScaleAt scale_at) {
  constexpr int kVectorsInRow = kSide / kVector;
  for (int i = static_cast<int>(threadIdx.x); i < kSide * kVectorsInRow;
       i += static_cast<int>(blockDim.x)) {
    const int row = i / kVectorsInRow, column = i % kVectorsInRow * kVector;
    if (row0 + row >= rows || column0 + column >= columns) continue;
    const int64_t at = (row0 + row) * columns + column0 + column;
    const uint64_t eight =
        scale_at.encode(format, values.take(row0 + row, column0 + column), row, column);
    if (as_stored != nullptr) *reinterpret_cast<uint64_t*>(as_stored + at) = eight;
    if (transposed != nullptr) piece.put(row, column, eight);
  }
  if (transposed == nullptr) return;
  __syncthreads();
  constexpr int kVectorsInColumn = kSide / kCodes;
  for (int i = static_cast<int>(threadIdx.x); i < kSide * kVectorsInColumn;
       i += static_cast<int>(blockDim.x)) {
    // Neighbouring threads take neighbouring places of one column: their writes are one run.
    const int column = i / kVectorsInColumn, row = i % kVectorsInColumn * kCodes;
    if (row0 + row >= rows || column0 + column >= columns) continue;
    *reinterpret_cast<Bits128*>(transposed + (column0 + column) * rows + row0 + row) =
        piece.take(row, column);
  }
}

struct OneScale {
  float scale;
  __device__ uint64_t encode(Format format, const EightBits& values, int, int) const {
    return encode_eight(format, values, scale);
  }
};

inline Grid pieces_of(int64_t rows, int64_t columns) {
  return {.blocks_x = blocks_for(columns, kSide),
          .blocks_y = blocks_for(rows, kSide),
          .threads = kCastThreads,
          .shared_bytes = kSide * Piece::kPitch};
}

inline void check_matrix(int64_t rows, int64_t columns) {
  GNOMON_ASSERT(rows > 0 && columns > 0 && rows % kCodes == 0 && columns % kCodes == 0);
}

}  // namespace gnomon::cuda

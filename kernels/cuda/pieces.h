// What the kernels that write codes share: a block takes a piece of a matrix, rounds it and writes
// its codes by rows, by columns or both ways.
#pragma once

#include <cmath>

#include "base/errors.h"
#include "kernels/cuda/cast_counts.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/scales.h"
#include "kernels/cuda/vectors.h"
#include "kernels/operand.h"
#include "numerics/scales.h"

namespace gnomon::cuda {

inline constexpr int kCodes = 16;  // codes of 16 bytes

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

__device__ inline EightBits bits_in(Bits128 v) { return {{v.x, v.y, v.z, v.w}}; }
__device__ inline EightBits load_bits(const bf16* x) {
  return bits_in(*reinterpret_cast<const Bits128*>(x));
}

// Columns that a thread takes at once.
inline constexpr int kTogether = 4;

// kCodes neighbours of kTogether columns.
struct ColumnCodes {
  uint32_t words[kTogether][kCodes / 4];
};

// A piece of kSide × kSide codes on its way from rows to columns, in words of four. Where a word of
// a row lies depends on the row: lanes that put eight codes of a row each, or take words of rows
// kCodes apart, meet every bank of shared memory once.
struct Piece {
  static constexpr int kWords = kSide / 4;
  uint32_t* words;  // [kSide][kWords], of shared memory

  __device__ static int place(int row, int word) {
    return row * kWords + (word ^ row / kCodes * 4);
  }
  __device__ void put(int row, int column, uint64_t eight) const {
    *reinterpret_cast<uint64_t*>(words + place(row, column / 4)) = eight;
  }
  __device__ ColumnCodes load(int row, int column) const {
    ColumnCodes codes;
    for (int i = 0; i < kCodes / 4; ++i) {
      uint32_t four[4];
      for (int k = 0; k < 4; ++k) four[k] = words[place(row + 4 * i + k, column / 4)];
      const uint32_t low01 = bytes_of(four[0], four[1], 0x5140);
      const uint32_t low23 = bytes_of(four[2], four[3], 0x5140);
      const uint32_t high01 = bytes_of(four[0], four[1], 0x7362);
      const uint32_t high23 = bytes_of(four[2], four[3], 0x7362);
      codes.words[0][i] = bytes_of(low01, low23, 0x5410);
      codes.words[1][i] = bytes_of(low01, low23, 0x7632);
      codes.words[2][i] = bytes_of(high01, high23, 0x5410);
      codes.words[3][i] = bytes_of(high01, high23, 0x7632);
    }
    return codes;
  }
};

// Codes of eight neighbours of a row; `scales` gives the scale of each.
template <class Scales>
__device__ inline uint64_t encode_eight(Format format, const EightBits& values, Scales scales) {
  uint64_t eight = 0;
  for (int i = 0; i < kVector; i += 2) {
    const uint64_t two = fp8_codes(format, product(value_of(values[i]), scales(i)),
                                   product(value_of(values[i + 1]), scales(i + 1)));
    eight |= two << (i * 8);
  }
  return eight;
}

template <class Scales>
__device__ inline uint64_t tally_eight(const RoundingEnds& ends, const EightBits& values,
                                       Scales scales) {
  uint64_t all = 0;
  for (int i = 0; i < kVector; ++i)
    all += tally(ends, values[i], product(value_of(values[i]), scales(i)));
  return all;
}

// Values that are there, [rows, columns].
struct Stored {
  const bf16* x;
  int64_t columns;
  __device__ EightBits peek(int64_t row, int64_t column) const {
    return load_bits(x + row * columns + column);
  }
  __device__ EightBits load(int64_t row, int64_t column) const { return peek(row, column); }
};

// Counts what the cast of the piece at (row0, column0) does. Before it: the few values are then
// near, and nothing of this is kept through its loops. Values have peek(), which only looks.
template <class Values, class ScaleAt>
__device__ void count_piece(const CountPlan& how, const Values& values, int64_t rows,
                            int64_t columns, int64_t row0, int64_t column0, ScaleAt scale_at,
                            uint64_t* room) {
  if (how.counts == nullptr) return;
  constexpr int kVectorsInRow = kSide / kVector;
  uint64_t all = 0;
  for (int i = static_cast<int>(threadIdx.x); i < kCountedRows * kVectorsInRow;
       i += static_cast<int>(blockDim.x)) {
    const int row = i / kVectorsInRow, column = i % kVectorsInRow * kVector;
    if (row0 + row >= rows || column0 + column >= columns) continue;
    all += tally_eight(how.ends, values.peek(row0 + row, column0 + column),
                       [&](int k) { return scale_at(row, column + k); });
  }
  report_tally(how, all, room);
}

// Codes of the piece at (row0, column0). Values have load(), which gives each eight of them once;
// `scale_at` gives the scale for a row and a column of the piece.
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
    const uint64_t eight = encode_eight(format, values.load(row0 + row, column0 + column),
                                        [&](int k) { return scale_at(row, column + k); });
    if (as_stored != nullptr) *reinterpret_cast<uint64_t*>(as_stored + at) = eight;
    if (transposed != nullptr) piece.put(row, column, eight);
  }
  if (transposed == nullptr) return;
  __syncthreads();
  constexpr int kVectorsInColumn = kSide / kCodes;
  for (int i = static_cast<int>(threadIdx.x); i < kSide / kTogether * kVectorsInColumn;
       i += static_cast<int>(blockDim.x)) {
    // Neighbouring threads take neighbouring places of one column: their writes are one run.
    const int column = i / kVectorsInColumn * kTogether, row = i % kVectorsInColumn * kCodes;
    if (row0 + row >= rows || column0 + column >= columns) continue;
    const ColumnCodes codes = piece.load(row, column);
    uint8_t* to = transposed + (column0 + column) * rows + row0 + row;
    for (int k = 0; k < kTogether; ++k) {
      const uint32_t* words = codes.words[k];
      store_bits(reinterpret_cast<Bits128*>(to + k * rows),
                 {words[0], words[1], words[2], words[3]});
    }
  }
}

inline Grid pieces_of(int64_t rows, int64_t columns) {
  return {.blocks_x = blocks_for(columns, kSide),
          .blocks_y = blocks_for(rows, kSide),
          .threads = kThreads,
          .shared_bytes = kSide * Piece::kWords * 4};
}

inline void check_matrix(int64_t rows, int64_t columns) {
  GNOMON_ASSERT(rows > 0 && columns > 0 && rows % kCodes == 0 && columns % kCodes == 0);
}

}  // namespace gnomon::cuda

#include "base/errors.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/quantize.h"
#include "kernels/cuda/scales.h"
#include "kernels/cuda/vectors.h"
#include "kernels/recipe.h"

namespace gnomon::cuda {
namespace {

constexpr int kCodes = 16;  // codes of 16 bytes
constexpr int kThreads = 256;
constexpr int kSide = 128;  // of the piece of a matrix that one block takes
constexpr int64_t kBlocksMost = 132 * 8;

ScaleArithmetic arithmetic_of(const Rounding& rounding) {
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

__global__ void multiply_factors_kernel(float factor, const float* first, const float* second,
                                        float* result) {
  const float of_first = first == nullptr ? factor : product(factor, *first);
  *result = second == nullptr ? of_first : product(of_first, *second);
}

__global__ void spread_kernel(const float* value, int64_t count, float* copies) {
  const int64_t i = global_thread();
  if (i < count) copies[i] = *value;
}

struct EightBits {
  uint32_t words[kVector / 2];
  __device__ bf16 operator[](int i) const {
    return {static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16))};
  }
};

__device__ EightBits load_bits(const bf16* x) {
  const Bits128 v = *reinterpret_cast<const Bits128*>(x);
  return {{v.x, v.y, v.z, v.w}};
}

__global__ void amax_kernel(const bf16* __restrict__ x, int64_t count, uint32_t* amax) {
  __shared__ uint32_t room[kWarp];
  uint32_t largest = 0;
  for (int64_t i = global_thread(); i < count / kVector; i += all_threads()) {
    const EightBits values = load_bits(x + i * kVector);
    for (int k = 0; k < kVector; ++k) largest = Largest()(largest, magnitude_bits(values[k]));
  }
  for (int64_t i = count / kVector * kVector + global_thread(); i < count; i += all_threads()) {
    largest = Largest()(largest, magnitude_bits(x[i]));
  }
  largest = block_reduce(largest, uint32_t{0}, room, Largest());
  if (threadIdx.x == 0) atomicMax(amax, largest);
}

__global__ void raise_kernel(const float* amax, float* most) {
  if (says_something(*amax)) *most = fmaxf(*most, *amax);
}

__global__ void choose_scale_kernel(ScaleArithmetic how, float* scalars) {
  const float scale = times_power_of_two(scale_of(how, scalars[kAmax]), how.log2_shift);
  scalars[kScale] = scale;
  scalars[kInverseScale] = quotient(1.0f, scale);
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

__device__ uint64_t encode_eight(Format format, const EightBits& values, float scale) {
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
struct ScaleOfRow {
  const float* scales;  // of the piece's rows
  __device__ uint64_t encode(Format format, const EightBits& values, int row, int) const {
    return encode_eight(format, values, scales[row]);
  }
};
struct ScaleOfColumn {
  const float* scales;  // of the piece's columns
  __device__ uint64_t encode(Format format, const EightBits& values, int, int column) const {
    uint64_t eight = 0;
    for (int i = 0; i < kVector; i += 2) {
      const uint64_t two = fp8_codes(format, product(value_of(values[i]), scales[column + i]),
                                     product(value_of(values[i + 1]), scales[column + i + 1]));
      eight |= two << (i * 8);
    }
    return eight;
  }
};

__global__ void cast_kernel(Format format, const bf16* __restrict__ x, int64_t rows,
                            int64_t columns, const float* scalars, uint8_t* as_stored,
                            uint8_t* transposed) {
  const Piece piece{dynamic_shared<uint8_t>()};
  Stored values{x, columns};
  cast_piece(format, values, rows, columns, int64_t{blockIdx.y} * kSide,
             int64_t{blockIdx.x} * kSide, as_stored, transposed, piece, OneScale{scalars[kScale]});
}

// Values that are made here, and stored.
struct Made {
  Gated from;
  bf16* y;
  int64_t columns;
  uint32_t largest = 0;
  __device__ EightBits take(int64_t row, int64_t column) {
    const int64_t at = row * from.stride + column;
    bf16* to = y + row * columns + column;
    const Eight eight = swiglu_of(load_eight(from.gate + at), load_eight(from.up + at));
    largest = Largest()(largest, store_eight(to, eight));
    EightBits bits;
    for (int i = 0; i < kVector / 2; ++i)
      bits.words[i] = rounded_pair(eight[2 * i], eight[2 * i + 1]);
    return bits;
  }
};

__global__ void swiglu_cast_kernel(Format format, Gated from, int64_t rows, int64_t columns,
                                   bf16* y, float* amax, const float* scalars, uint8_t* as_stored,
                                   uint8_t* transposed) {
  __shared__ uint32_t room[kWarp];
  const Piece piece{dynamic_shared<uint8_t>()};
  Made values{from, y, columns};
  cast_piece(format, values, rows, columns, int64_t{blockIdx.y} * kSide,
             int64_t{blockIdx.x} * kSide, as_stored, transposed, piece, OneScale{scalars[kScale]});
  tell_largest(values.largest, room, amax);
}

// ---- tiles ----

// The scale of a tile with this amax, and 1/scale put where it belongs.
__device__ float tile_scale_of(const ScaleArithmetic& how, uint32_t amax, float* inverse) {
  const float scale =
      times_power_of_two(scale_of(how, float_of(no_more_than_infinity(amax))), how.log2_shift);
  if (inverse != nullptr) *inverse = quotient(1.0f, scale);
  return scale;
}

// Largest magnitudes along whole rows or columns, for tiles as long as the matrix: `amaxes` begins
// with zeros.
__global__ void row_amaxes_kernel(const bf16* __restrict__ x, int64_t columns, uint32_t* amaxes) {
  __shared__ uint32_t room[kWarp];
  const bf16* row = x + int64_t{blockIdx.x} * columns;
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < columns / kVector; i += blockDim.x) {
    const EightBits values = load_bits(row + i * kVector);
    for (int k = 0; k < kVector; ++k) largest = Largest()(largest, magnitude_bits(values[k]));
  }
  largest = block_reduce(largest, uint32_t{0}, room, Largest());
  if (threadIdx.x == 0) amaxes[blockIdx.x] = largest;
}

__global__ void column_amaxes_kernel(const bf16* __restrict__ x, int64_t rows, int64_t columns,
                                     uint32_t* amaxes) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  const int64_t row0 = int64_t{blockIdx.y} * kSide;
  const int64_t end = row0 + kSide < rows ? row0 + kSide : rows;
  uint32_t largest = 0;
  for (int64_t row = row0; row < end; ++row) {
    largest = Largest()(largest, magnitude_bits(x[row * columns + column]));
  }
  atomicMax(amaxes + column, largest);
}

enum class TileKind { kRow, kColumn, kSquare };

// Largest magnitudes of the piece's rows or columns into `amaxes`, or of all of it into amaxes[0].
__device__ void piece_amaxes(TileKind kind, const bf16* x, int64_t rows, int64_t columns,
                             int64_t row0, int64_t column0, uint32_t* amaxes) {
  for (int i = static_cast<int>(threadIdx.x); i < kSide; i += static_cast<int>(blockDim.x)) {
    amaxes[i] = 0;
  }
  __syncthreads();
  // Half a warp has a row in each turn, and a thread the same columns in all of them.
  constexpr int kVectorsInRow = kSide / kVector;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const int column = thread % kVectorsInRow * kVector;
  uint32_t of_columns[kVector] = {}, of_all = 0;
  for (int row = thread / kVectorsInRow; row < kSide; row += kThreads / kVectorsInRow) {
    EightBits values = {};
    if (row0 + row < rows && column0 + column < columns) {
      values = load_bits(x + (row0 + row) * columns + column0 + column);
    }
    uint32_t largest = 0;
    for (int k = 0; k < kVector; ++k) {
      const uint32_t magnitude = magnitude_bits(values[k]);
      of_columns[k] = Largest()(of_columns[k], magnitude);
      largest = Largest()(largest, magnitude);
    }
    of_all = Largest()(of_all, largest);
    if (kind != TileKind::kRow) continue;
    for (int distance = kVectorsInRow / 2; distance > 0; distance /= 2) {
      largest = Largest()(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    }
    if (thread % kVectorsInRow == 0) amaxes[row] = largest;
  }
  if (kind == TileKind::kColumn) {
    for (int k = 0; k < kVector; ++k) {
      const uint32_t below = __shfl_xor_sync(kAllLanes, of_columns[k], kVectorsInRow);
      if (lane < kVectorsInRow) atomicMax(amaxes + column + k, Largest()(of_columns[k], below));
    }
  } else if (kind == TileKind::kSquare) {
    of_all = warp_reduce(of_all, Largest());
    if (lane == 0) atomicMax(amaxes, of_all);
  }
  __syncthreads();
}

// `of_all`, where the tiles are as long as the matrix: their amaxes by row or column of x.
template <TileKind kKind>
__global__ void cast_tiles_kernel(ScaleArithmetic how, const bf16* __restrict__ x, int64_t rows,
                                  int64_t columns, const uint32_t* of_all, uint8_t* as_stored,
                                  uint8_t* transposed, float* inverse_scales,
                                  ScaleStrides strides) {
  __shared__ uint32_t amaxes[kSide];
  __shared__ float scales[kSide];
  const int64_t row0 = int64_t{blockIdx.y} * kSide, column0 = int64_t{blockIdx.x} * kSide;
  if (of_all == nullptr) piece_amaxes(kKind, x, rows, columns, row0, column0, amaxes);
  const int i = static_cast<int>(threadIdx.x);
  const int64_t first = kKind == TileKind::kRow ? row0 : column0;
  const int64_t end = kKind == TileKind::kRow ? rows : columns;
  if (kKind == TileKind::kSquare) {
    if (i == 0) {
      float* inverse = inverse_scales + blockIdx.y * strides.row + blockIdx.x * strides.column;
      scales[0] = tile_scale_of(how, amaxes[0], inverse);
    }
  } else if (i < kSide && first + i < end) {
    const bool rows_tiled = kKind == TileKind::kRow;
    // A tile as long as the matrix is told of by the first piece along it.
    const int64_t along = rows_tiled ? blockIdx.x : blockIdx.y;
    float* inverse = rows_tiled
                         ? inverse_scales + (row0 + i) * strides.row + along * strides.column
                         : inverse_scales + along * strides.row + (column0 + i) * strides.column;
    if (of_all != nullptr && along > 0) inverse = nullptr;
    scales[i] = tile_scale_of(how, of_all != nullptr ? of_all[first + i] : amaxes[i], inverse);
  }
  __syncthreads();
  const Piece piece{dynamic_shared<uint8_t>()};
  Stored values{x, columns};
  if constexpr (kKind == TileKind::kRow) {
    cast_piece(how.format, values, rows, columns, row0, column0, as_stored, transposed, piece,
               ScaleOfRow{scales});
  } else if constexpr (kKind == TileKind::kColumn) {
    cast_piece(how.format, values, rows, columns, row0, column0, as_stored, transposed, piece,
               ScaleOfColumn{scales});
  } else {
    cast_piece(how.format, values, rows, columns, row0, column0, as_stored, transposed, piece,
               OneScale{scales[0]});
  }
}

// ---- any format, as BF16 values ----

struct ValueRounding {
  int mantissa_bits = 0;
  int exponent_min = 0;  // of the smallest normal value
  float largest = 0;
  bool has_nan = false;
};

// As round_to(), saturating: steps of 2^(exponent − mantissa bits), to the nearest even one.
__device__ float round_value(const ValueRounding& how, float x) {
  const uint32_t sign = bits_of(x) & 0x80000000u;
  const float magnitude = float_of(bits_of(x) & 0x7FFFFFFFu);
  if (magnitude != magnitude) return how.has_nan ? x : how.largest;
  if (magnitude >= how.largest) return float_of(bits_of(how.largest) | sign);
  if (magnitude == 0) return x;
  const int exponent = exponent_of(magnitude);
  const int step = (exponent < how.exponent_min ? how.exponent_min : exponent) - how.mantissa_bits;
  const float steps = rintf(times_power_of_two(magnitude, -step));
  return float_of(bits_of(fminf(times_power_of_two(steps, step), how.largest)) | sign);
}

struct Tiling {
  int64_t rows, columns;  // of a tile
  int64_t across;         // tiles
  __device__ int64_t tile(int64_t row, int64_t column) const {
    return row / rows * across + column / columns;
  }
};

__global__ void tile_amaxes_kernel(const bf16* __restrict__ x, int64_t count, int64_t columns,
                                   Tiling tiling, uint32_t* amaxes) {
  const int64_t i = global_thread();
  if (i >= count) return;
  atomicMax(amaxes + tiling.tile(i / columns, i % columns), magnitude_bits(x[i]));
}

__global__ void round_copy_kernel(ScaleArithmetic how, ValueRounding rounding,
                                  const bf16* __restrict__ x, int64_t count, int64_t columns,
                                  Tiling tiling, const float* scalars, const uint32_t* amaxes,
                                  bf16* y) {
  const int64_t i = global_thread();
  if (i >= count) return;
  if (amaxes == nullptr) {
    y[i] = rounded(round_value(rounding, product(value_of(x[i]), scalars[kScale])));
    return;
  }
  const uint32_t amax = amaxes[tiling.tile(i / columns, i % columns)];
  const float scale = tile_scale_of(how, amax, nullptr);
  const float value = round_value(rounding, product(value_of(x[i]), scale));
  y[i] = rounded(quotient(value, scale));
}

template <class E>
__global__ void lose_terms_kernel(E* copy, int64_t rows, int64_t columns, bool along_rows,
                                  int64_t first, int64_t count) {
  const int64_t i = global_thread();
  if (i >= rows * columns) return;
  const int64_t term = along_rows ? i / columns : i % columns;
  if (term >= first && term < first + count) copy[i] = E{};
}

Grid pieces_of(int64_t rows, int64_t columns) {
  return {.blocks_x = blocks_for(columns, kSide),
          .blocks_y = blocks_for(rows, kSide),
          .threads = kThreads,
          .shared_bytes = kSide * Piece::kPitch};
}

void check_matrix(int64_t rows, int64_t columns) {
  GNOMON_ASSERT(rows > 0 && columns > 0 && rows % kCodes == 0 && columns % kCodes == 0);
}

}  // namespace

void amax(const bf16* x, int64_t count, float* amax, Stream stream) {
  clear(amax, sizeof(float), stream);
  if (count == 0) return;
  const int64_t blocks = blocks_for(count, int64_t{kThreads} * kVector * 4);
  launch("amax", amax_kernel, {.blocks_x = blocks < kBlocksMost ? blocks : kBlocksMost}, stream, x,
         count, reinterpret_cast<uint32_t*>(amax));
}

void raise(const float* amax, float* most, Stream stream) {
  launch("raise", raise_kernel, {.threads = 1}, stream, amax, most);
}

void choose_scale(const Rounding& rounding, float* scalars, Stream stream) {
  launch("choose_scale", choose_scale_kernel, {.threads = 1}, stream, arithmetic_of(rounding),
         scalars);
}

void spread(const float* value, int64_t count, float* copies, Stream stream) {
  launch("spread", spread_kernel, {.blocks_x = blocks_for(count, kThreads), .threads = kThreads},
         stream, value, count, copies);
}

void multiply_factors(float factor, const float* first, const float* second, float* product,
                      Stream stream) {
  launch("multiply_factors", multiply_factors_kernel, {.threads = 1}, stream, factor, first, second,
         product);
}

void cast(Format format, const bf16* x, int64_t rows, int64_t columns, const float* scalars,
          uint8_t* as_stored, uint8_t* transposed, Stream stream) {
  check_matrix(rows, columns);
  launch("cast", cast_kernel, pieces_of(rows, columns), stream, format, x, rows, columns, scalars,
         as_stored, transposed);
}

void swiglu_cast(Format format, const Gated& from, int64_t rows, int64_t columns, bf16* y,
                 float* amax, const float* scalars, uint8_t* as_stored, uint8_t* transposed,
                 Stream stream) {
  check_matrix(rows, columns);
  GNOMON_ASSERT(from.stride % kVector == 0);
  forget_amax(amax, stream);
  launch("swiglu_cast", swiglu_cast_kernel, pieces_of(rows, columns), stream, format, from, rows,
         columns, y, amax, scalars, as_stored, transposed);
}

void cast_tiles(const Rounding& rounding, const bf16* x, int64_t rows, int64_t columns,
                uint8_t* as_stored, uint8_t* transposed, float* inverse_scales,
                const ScaleStrides& strides, uint32_t* amaxes, Stream stream) {
  check_matrix(rows, columns);
  const ScaleArithmetic how = arithmetic_of(rounding);
  const TileShape& tile = rounding.quantizer.tile;
  const Grid grid = pieces_of(rows, columns);
  const uint32_t* of_all = nullptr;
  if (tile.rows == 1 && tile.columns == 0) {
    launch("row_amaxes", row_amaxes_kernel, {.blocks_x = rows}, stream, x, columns, amaxes);
    of_all = amaxes;
  } else if (tile.rows == 0 && tile.columns == 1) {
    clear(amaxes, columns * static_cast<int64_t>(sizeof(uint32_t)), stream);
    launch("column_amaxes", column_amaxes_kernel,
           {.blocks_x = blocks_for(columns, kThreads), .blocks_y = blocks_for(rows, kSide)}, stream,
           x, rows, columns, amaxes);
    of_all = amaxes;
  } else {
    GNOMON_ASSERT((tile.rows == 1 && tile.columns == kSide) ||
                  (tile.rows == kSide && tile.columns == 1) ||
                  (tile.rows == kSide && tile.columns == kSide));
  }
  const auto kernel = tile.rows == 1      ? cast_tiles_kernel<TileKind::kRow>
                      : tile.columns == 1 ? cast_tiles_kernel<TileKind::kColumn>
                                          : cast_tiles_kernel<TileKind::kSquare>;
  launch("cast_tiles", kernel, grid, stream, how, x, rows, columns, of_all, as_stored, transposed,
         inverse_scales, strides);
}

void round_copy(const Rounding& rounding, const bf16* x, int64_t rows, int64_t columns,
                const float* scalars, bf16* y, uint32_t* amaxes, Stream stream) {
  const FormatInfo& info = format_info(rounding.quantizer.format);
  const ValueRounding how{.mantissa_bits = info.mantissa_bits,
                          .exponent_min = std::ilogb(info.smallest_normal),
                          .largest = static_cast<float>(info.largest),
                          .has_nan = info.has_nan};
  const int64_t count = rows * columns;
  const Grid grid{.blocks_x = blocks_for(count, kThreads), .threads = kThreads};
  const bool whole = rounding.whole_tensor();
  const TileGrid tiles = tile_grid(rounding.quantizer, rows, columns);
  const Tiling tiling{tiles.tile.rows, tiles.tile.columns, tiles.columns};
  if (!whole) {
    clear(amaxes, tiles.count() * static_cast<int64_t>(sizeof(uint32_t)), stream);
    launch("tile_amaxes", tile_amaxes_kernel, grid, stream, x, count, columns, tiling, amaxes);
  }
  launch("round_copy", round_copy_kernel, grid, stream, arithmetic_of(rounding), how, x, count,
         columns, tiling, scalars, whole ? nullptr : amaxes, y);
}

template <class E>
void lose_terms(E* copy, int64_t rows, int64_t columns, bool along_rows, int64_t first,
                int64_t count, Stream stream) {
  launch("lose_terms", lose_terms_kernel<E>,
         {.blocks_x = blocks_for(rows * columns, kThreads), .threads = kThreads}, stream, copy,
         rows, columns, along_rows, first, count);
}
template void lose_terms(uint8_t*, int64_t, int64_t, bool, int64_t, int64_t, Stream);
template void lose_terms(bf16*, int64_t, int64_t, bool, int64_t, int64_t, Stream);

}  // namespace gnomon::cuda

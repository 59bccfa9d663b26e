// Casts with a scale for each row, column, or tile of 128 of a matrix.
#include "kernels/cuda/pieces.h"
#include "kernels/cuda/quantize.h"

namespace gnomon::cuda {
namespace {

// Largest magnitudes along whole rows or columns, for tiles as long as the matrix: `amaxes` begins
// with zeros.
__global__ void row_amaxes_kernel(const bf16* __restrict__ x, int64_t columns, uint32_t* amaxes) {
  GNOMON_SHARED(uint32_t, room, [kWarp]);
  const bf16* row = x + int64_t{blockIdx.x} * columns;
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < columns / kVector; i += blockDim.x) {
    const EightBits values = load_bits(row + i * kVector);
    for (int k = 0; k < kVector; ++k) largest = Largest()(largest, magnitude_bits(values[k]));
  }
  largest = block_reduce(largest, uint32_t{0}, room, Largest());
  if (threadIdx.x == 0) amaxes[blockIdx.x] = largest;
}

// A warp takes eight columns a lane, and every eighth row of the block's.
constexpr int kColumnsOfABlock = kWarp * kVector;
static_assert(kColumnsOfABlock == kThreads);
__global__ void column_amaxes_kernel(const bf16* __restrict__ x, int64_t rows, int64_t columns,
                                     uint32_t* amaxes) {
  GNOMON_SHARED(uint32_t, of_block, [kColumnsOfABlock]);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  of_block[thread] = 0;
  __syncthreads();
  const int64_t column0 = int64_t{blockIdx.x} * kColumnsOfABlock;
  const int64_t column = column0 + lane * kVector;
  const int64_t row0 = int64_t{blockIdx.y} * kSide;
  const int64_t end = row0 + kSide < rows ? row0 + kSide : rows;
  if (column < columns) {
    uint32_t largest[kVector] = {};
    for (int64_t row = row0 + thread / kWarp; row < end; row += kThreads / kWarp) {
      const EightBits values = load_bits(x + row * columns + column);
      for (int k = 0; k < kVector; ++k) {
        largest[k] = Largest()(largest[k], magnitude_bits(values[k]));
      }
    }
    for (int k = 0; k < kVector; ++k) atomicMax(of_block + lane * kVector + k, largest[k]);
  }
  __syncthreads();
  if (column0 + thread < columns) atomicMax(amaxes + column0 + thread, of_block[thread]);
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
                                  uint8_t* transposed, float* inverse_scales, ScaleStrides strides,
                                  CountPlan counting) {
  GNOMON_SHARED(uint32_t, amaxes, [kSide]);
  GNOMON_SHARED(float, scales, [kSide]);
  GNOMON_SHARED(uint64_t, room, [kWarp]);
  GNOMON_SHARED(uint32_t, of_peaks, [kWarp]);
  uint32_t peak = 0;
  const int64_t row0 = int64_t{blockIdx.y} * kSide, column0 = int64_t{blockIdx.x} * kSide;
  if (of_all == nullptr) piece_amaxes(kKind, x, rows, columns, row0, column0, amaxes);
  const int i = static_cast<int>(threadIdx.x);
  const int64_t first = kKind == TileKind::kRow ? row0 : column0;
  const int64_t end = kKind == TileKind::kRow ? rows : columns;
  if (kKind == TileKind::kSquare) {
    if (i == 0) {
      float* inverse = inverse_scales + blockIdx.y * strides.row + blockIdx.x * strides.column;
      scales[0] = tile_scale_of(how, amaxes[0], inverse);
      peak = peak_bits(counting, float_of(amaxes[0]), scales[0]);
    }
  } else if (i < kSide && first + i < end) {
    const bool rows_tiled = kKind == TileKind::kRow;
    // A tile as long as the matrix is told of by the first piece along it.
    const int64_t along = rows_tiled ? blockIdx.x : blockIdx.y;
    float* inverse = rows_tiled
                         ? inverse_scales + (row0 + i) * strides.row + along * strides.column
                         : inverse_scales + along * strides.row + (column0 + i) * strides.column;
    if (of_all != nullptr && along > 0) inverse = nullptr;
    const uint32_t amax = of_all != nullptr ? of_all[first + i] : amaxes[i];
    scales[i] = tile_scale_of(how, amax, inverse);
    peak = peak_bits(counting, float_of(amax), scales[i]);
  }
  __syncthreads();
  const Piece piece{dynamic_shared<uint32_t>()};
  Stored values{x, columns};
  const auto scale_at = [&](int row, int column) {
    return kKind == TileKind::kSquare ? scales[0] : scales[kKind == TileKind::kRow ? row : column];
  };
  if (counting.counts != nullptr) report_largest(peak, of_peaks, &counting.counts->peak);
  count_piece(counting, values, rows, columns, row0, column0, scale_at, room);
  cast_piece(how.format, values, rows, columns, row0, column0, as_stored, transposed, piece,
             scale_at);
}

// A scale for a row: its block keeps it, so that it is read once.
__global__ void cast_rows_kernel(ScaleArithmetic how, const bf16* __restrict__ x, int64_t columns,
                                 uint8_t* codes, float* inverse_scales, int64_t scale_stride,
                                 CountPlan counting) {
  GNOMON_SHARED(uint32_t, room, [kWarp]);
  GNOMON_SHARED(uint64_t, sums, [kWarp]);
  Bits128* const kept = dynamic_shared<Bits128>();
  const int64_t row = blockIdx.x, vectors = columns / kVector;
  const auto* from = reinterpret_cast<const Bits128*>(x + row * columns);
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < vectors; i += blockDim.x) {
    kept[i] = from[i];
    const EightBits values = bits_in(kept[i]);
    for (int k = 0; k < kVector; ++k) largest = Largest()(largest, magnitude_bits(values[k]));
  }
  largest = block_reduce(largest, uint32_t{0}, room, Largest());
  float* const inverse = threadIdx.x == 0 ? inverse_scales + row * scale_stride : nullptr;
  const float scale = tile_scale_of(how, largest, inverse);
  auto* to = reinterpret_cast<uint64_t*>(codes + row * columns);
  const auto scales = [=](int) { return scale; };
  for (int64_t i = threadIdx.x; i < vectors; i += blockDim.x) {
    to[i] = encode_eight(how.format, bits_in(kept[i]), scales);
  }
  if (counting.counts == nullptr) return;
  if (threadIdx.x == 0) {
    auto* peak = reinterpret_cast<uint32_t*>(&counting.counts->peak);
    const uint32_t own = peak_bits(counting, float_of(largest), scale);
    if (own > *static_cast<volatile uint32_t*>(peak)) atomicMax(peak, own);
  }
  if (row % kSide >= kCountedRows) return;
  uint64_t counted = 0;
  for (int64_t i = threadIdx.x; i < vectors; i += blockDim.x)
    counted += tally_eight(counting.ends, bits_in(kept[i]), scales);
  report_tally(counting, counted, sums);
}

}  // namespace

void cast_tiles(const Rounding& rounding, const bf16* x, int64_t rows, int64_t columns,
                uint8_t* as_stored, uint8_t* transposed, float* inverse_scales,
                const ScaleStrides& strides, uint32_t* amaxes, const Counting& counts,
                Stream stream) {
  check_matrix(rows, columns);
  const CountPlan counting = plan_counts(counts, rounding.quantizer.format, rows, columns, nullptr);
  const ScaleArithmetic how = arithmetic_of(rounding);
  const TileShape& tile = rounding.quantizer.tile;
  const Grid grid = pieces_of(rows, columns);
  const uint32_t* of_all = nullptr;
  const int64_t row_bytes = columns * static_cast<int64_t>(sizeof(bf16));
  if (tile.rows == 1 && tile.columns == 0 && transposed == nullptr &&
      row_bytes <= shared_bytes_max()) {
    const Grid of_rows{.blocks_x = rows, .threads = kThreads, .shared_bytes = row_bytes};
    launch_with_shared("cast_rows", cast_rows_kernel, of_rows, stream, how, x, columns, as_stored,
                       inverse_scales, strides.row, counting);
    return;
  }
  if (tile.rows == 1 && tile.columns == 0) {
    launch("row_amaxes", row_amaxes_kernel, {.blocks_x = rows}, stream, x, columns, amaxes);
    of_all = amaxes;
  } else if (tile.rows == 0 && tile.columns == 1) {
    clear(amaxes, columns * static_cast<int64_t>(sizeof(uint32_t)), stream);
    launch("column_amaxes", column_amaxes_kernel,
           {.blocks_x = blocks_for(columns, kColumnsOfABlock),
            .blocks_y = blocks_for(rows, kSide),
            .threads = kThreads},
           stream, x, rows, columns, amaxes);
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
         inverse_scales, strides, counting);
}

}  // namespace gnomon::cuda

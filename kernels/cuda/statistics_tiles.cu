// Rounding with a scale for each tile, counted and not kept. A block takes a piece of the matrix
// and each of its threads a square of it, which it keeps: the matrix is read once where a piece
// holds whole tiles. Of longer tiles the ranges are found before, in a pass of their own, and
// their shares of the top code are told after it.
//
// Integers go by atomic operations, whose order does not matter; sums of FP64 are made in one order
// within a block and told block by block.
#include <cmath>
#include <type_traits>

#include "base/errors.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/patterns.h"
#include "kernels/cuda/scales.h"
#include "kernels/cuda/statistics.h"
#include "numerics/scales.h"
#include "numerics/statistics_rounding.h"

namespace gnomon::cuda {
namespace {

constexpr int kPieceSide = 128;  // of a piece
constexpr int kSquare = 8;       // side of what a thread has of it
constexpr int kAcross = kPieceSide / kSquare;
constexpr int kTileThreads = kAcross * kAcross;
constexpr int kTilesOfThread = 8;  // in the last pass
constexpr int64_t kLengthMost = (int64_t{1} << 31) - 1;
static_assert(std::is_trivially_copyable_v<QuantizationTally>);

// The matrix and its tiles, as kernels are given them.
struct Tiles {
  const bf16* x;
  int64_t rows, columns, stride;
  int64_t tile_rows, tile_columns;  // of a tile
  int64_t down, across;             // tiles of the matrix
  bool in_eights;

  __device__ int64_t elements(int64_t tile) const {
    const int64_t row = tile / across * tile_rows, column = tile % across * tile_columns;
    const int64_t height = rows - row < tile_rows ? rows - row : tile_rows;
    const int64_t width = columns - column < tile_columns ? columns - column : tile_columns;
    return height * width;
  }
};

// Arrays with an entry for each tile of the matrix, or for each that a piece meets.
struct OfTiles {
  uint32_t* amax;  // magnitude bits
  uint32_t* low;   // 2^16 less the smallest magnitude's bits; 0: nothing but zeros
  uint32_t* top;   // elements in the top code
};

// A thread's place in its block's piece.
struct Place {
  int64_t row0, column0;                   // of the piece
  int64_t first_down, first_across;        // of the tiles it meets
  uint32_t skipped_rows, skipped_columns;  // of the first of them
  uint32_t across, count;                  // of these tiles
  uint32_t row, column;                    // of the thread's square, in the piece
  int rows, columns;                       // of its elements

  __device__ explicit Place(const Tiles& tiles)
      : row0(int64_t{blockIdx.y} * kPieceSide), column0(int64_t{blockIdx.x} * kPieceSide) {
    const int64_t row_end = row0 + kPieceSide < tiles.rows ? row0 + kPieceSide : tiles.rows;
    const int64_t column_end =
        column0 + kPieceSide < tiles.columns ? column0 + kPieceSide : tiles.columns;
    first_down = row0 / tiles.tile_rows;
    first_across = column0 / tiles.tile_columns;
    skipped_rows = static_cast<uint32_t>(row0 - first_down * tiles.tile_rows);
    skipped_columns = static_cast<uint32_t>(column0 - first_across * tiles.tile_columns);
    across = static_cast<uint32_t>((column_end - 1) / tiles.tile_columns - first_across + 1);
    count = across * static_cast<uint32_t>((row_end - 1) / tiles.tile_rows - first_down + 1);
    row = threadIdx.x / kAcross * kSquare;
    column = threadIdx.x % kAcross * kSquare;
    rows = clipped(row_end - row0 - row);
    columns = clipped(column_end - column0 - column);
  }
  __device__ static int clipped(int64_t left) {
    return left < 0 ? 0 : left < kSquare ? static_cast<int>(left) : kSquare;
  }
  // The tile of element (i, j) of the square, counted among those that the piece meets.
  __device__ uint32_t tile(const Tiles& tiles, int i, int j) const {
    const auto down =
        (skipped_rows + row + static_cast<uint32_t>(i)) / static_cast<uint32_t>(tiles.tile_rows);
    return down * across + (skipped_columns + column + static_cast<uint32_t>(j)) /
                               static_cast<uint32_t>(tiles.tile_columns);
  }
  // The number of such a tile among all.
  __device__ int64_t of_all(const Tiles& tiles, uint32_t tile) const {
    return (first_down + tile / across) * tiles.across + first_across + tile % across;
  }
};

struct Square {
  Patterns<kSquare> rows[kSquare];

  __device__ Square(const Tiles& tiles, const Place& place) {
    const bf16* begin =
        tiles.x + (place.row0 + place.row) * tiles.stride + place.column0 + place.column;
    for (int i = 0; i < kSquare; ++i) {
      if (i >= place.rows || place.columns == 0) continue;
      const bf16* row = begin + i * tiles.stride;
      if (tiles.in_eights) {
        rows[i] = load_patterns<kSquare>(row);
        continue;
      }
      for (int j = 0; j < kSquare; ++j) {
        if (j < place.columns) rows[i].words[j / 2] |= uint32_t{row[j].bits} << (j % 2 * 16);
      }
    }
  }
  __device__ uint32_t magnitude(int i, int j) const { return rows[i][j] & 0x7FFFu; }
};

// The groups of a square are kRows × kColumns elements of one tile.
template <int kRows, int kColumns, class OfGroup>
__device__ void each_group(const Place& place, OfGroup of_group) {
  for (int i = 0; i < kSquare; i += kRows) {
    for (int j = 0; j < kSquare; j += kColumns) {
      if (i < place.rows && j < place.columns) of_group(i, j);
    }
  }
}
template <int kRows, int kColumns, class OfElement>
__device__ void each_element(const Place& place, int row, int column, OfElement of_element) {
  for (int i = row; i < row + kRows; ++i) {
    for (int j = column; j < column + kColumns; ++j) {
      if (i < place.rows && j < place.columns) of_element(i, j);
    }
  }
}

// Into `found`, of the tiles of the piece.
template <int kRows, int kColumns>
__device__ void find_ranges(const Tiles& tiles, const Place& place, const Square& square,
                            const OfTiles& found) {
  for (uint32_t i = threadIdx.x; i < place.count; i += blockDim.x) {
    found.amax[i] = found.low[i] = found.top[i] = 0;
  }
  __syncthreads();
  each_group<kRows, kColumns>(place, [&](int row, int column) {
    uint32_t amax = 0, low = 0;
    each_element<kRows, kColumns>(place, row, column, [&](int i, int j) {
      const uint32_t magnitude = square.magnitude(i, j);
      amax = Largest()(amax, magnitude);
      low = Largest()(low, (0x10000u - magnitude) & 0xFFFFu);
    });
    const uint32_t tile = place.tile(tiles, row, column);
    atomicMax(found.amax + tile, amax);
    atomicMax(found.low + tile, low);
  });
  __syncthreads();
}

__device__ OfTiles of_piece(const Place& place) {
  auto* room = dynamic_shared<uint32_t>();
  return {room, room + place.count, room + 2 * place.count};
}

template <int kRows, int kColumns>
__global__ void tile_ranges_kernel(Tiles tiles, OfTiles all) {
  const Place place(tiles);
  const Square square(tiles, place);
  const OfTiles mine = of_piece(place);
  find_ranges<kRows, kColumns>(tiles, place, square, mine);
  for (uint32_t i = threadIdx.x; i < place.count; i += blockDim.x) {
    atomicMax(all.amax + place.of_all(tiles, i), mine.amax[i]);
    atomicMax(all.low + place.of_all(tiles, i), mine.low[i]);
  }
}

__device__ float scale_of_tile(const ScaleArithmetic& how, uint32_t amax) {
  return scale_of(how, float_of(no_more_than_infinity(amax << 16)));
}

struct BlockRoom {
  double doubles[kWarp];
  unsigned long long counts[kWarp];
  uint32_t bits[kWarp];

  __device__ double sum(double own) { return block_reduce(own, 0.0, doubles, Add()); }
  __device__ double largest(double own) { return block_reduce(own, 0.0, doubles, Largest()); }
  __device__ int64_t count(int64_t own) {
    return static_cast<int64_t>(
        block_reduce(static_cast<unsigned long long>(own), 0ULL, counts, Add()));
  }
  // Compares bits, so no number may be below 0.
  __device__ float largest(float own) {
    return float_of(block_reduce(bits_of(own), uint32_t{0}, bits, Largest()));
  }
  __device__ float smallest(float own) {
    return float_of(~block_reduce(~bits_of(own), uint32_t{0}, bits, Largest()));
  }
};

// What add_tile() of a tally has of the tiles that a thread and then its block was shown.
struct TilesSeen {
  int64_t tiles = 0, in_top = 0, ranges = 0;
  double top_max = 0, range_sum = 0, range_max = 0;
  float scale_min = float_of(0x7F800000u), scale_max = 0;

  __device__ void add(float scale, int64_t elements, uint32_t top, uint32_t amax, uint32_t low) {
    ++tiles;
    scale_min = fminf(scale_min, scale);
    scale_max = fmaxf(scale_max, scale);
    in_top += 2 * int64_t{top} > elements ? 1 : 0;
    top_max = Largest()(top_max, static_cast<double>(top) / static_cast<double>(elements));
    if (amax == 0 || amax >= 0x7F80u) return;
    ++ranges;
    const double range = log2(exact_value(amax) / exact_value(0x10000u - low));
    range_sum += range;
    range_max = Largest()(range_max, range);
  }
  // Every thread calls it; the first one writes.
  __device__ void report(BlockRoom& room, QuantizationTally& tally) const {
    const int64_t all = room.count(tiles), all_in_top = room.count(in_top),
                  all_ranges = room.count(ranges);
    const double most_top = room.largest(top_max), sum = room.sum(range_sum),
                 most_range = room.largest(range_max);
    const float least_scale = room.smallest(scale_min), most_scale = room.largest(scale_max);
    if (threadIdx.x != 0) return;
    tally.tiles = all;
    tally.tiles_in_top = all_in_top;
    tally.ranges = all_ranges;
    tally.top_tile_max = most_top;
    tally.range_sum = sum;
    tally.range_max = most_range;
    tally.scale_min = least_scale;
    tally.scale_max = most_scale;
  }
};

// What add() of a tally has of a thread's elements, and what it counts besides.
struct ElementsSeen {
  uint32_t nonzero = 0, underflowed = 0, saturated = 0, overflowed = 0, subnormal = 0, top = 0,
           finite = 0;
  double error_squares = 0, x_squares = 0, q_squares = 0, products = 0;

  // Returns whether it is in the top code.
  __device__ uint32_t add(const MagnitudeRounding& rounding, uint32_t magnitude, float scale,
                          double inverse) {
    const uint32_t bits = magnitude << 16;
    const float value = float_of(bits);
    const RoundedElement it =
        round_magnitude(rounding, rounding.shift, bits, bits_of(product(value, scale)));
    nonzero += it.nonzero ? 1 : 0;
    underflowed += it.underflowed ? 1 : 0;
    saturated += it.saturated ? 1 : 0;
    overflowed += it.overflowed ? 1 : 0;
    subnormal += it.subnormal ? 1 : 0;
    top += it.top ? 1 : 0;
    finite += it.finite ? 1 : 0;
    if (it.finite) {
      const double exact = static_cast<double>(value);
      const double back = static_cast<double>(float_of(it.code)) * inverse;
      error_squares += (back - exact) * (back - exact);
      x_squares += exact * exact;
      q_squares += back * back;
      products += exact * back;
    }
    return it.top ? 1 : 0;
  }
  // As TilesSeen has it. No count of a piece has more than 15 bits: four go at once.
  __device__ void report(BlockRoom& room, QuantizationTally& tally) const {
    static_assert(kPieceSide * kPieceSide < 1 << 16);
    const uint64_t first = room.count(static_cast<int64_t>(
        uint64_t{nonzero} | uint64_t{underflowed} << 16 | uint64_t{saturated} << 32));
    const uint64_t second = room.count(static_cast<int64_t>(
        uint64_t{overflowed} | uint64_t{subnormal} << 16 | uint64_t{top} << 32));
    const int64_t all_finite = room.count(finite);
    const double errors = room.sum(error_squares), xs = room.sum(x_squares),
                 qs = room.sum(q_squares), both = room.sum(products);
    if (threadIdx.x != 0) return;
    tally.nonzero = static_cast<int64_t>(first & 0xFFFFu);
    tally.underflowed = static_cast<int64_t>(first >> 16 & 0xFFFFu);
    tally.saturated = static_cast<int64_t>(first >> 32);
    tally.overflowed = static_cast<int64_t>(second & 0xFFFFu);
    tally.subnormal = static_cast<int64_t>(second >> 16 & 0xFFFFu);
    tally.top = static_cast<int64_t>(second >> 32);
    tally.finite = all_finite;
    tally.error_squares = errors;
    tally.x_squares = xs;
    tally.q_squares = qs;
    tally.products = both;
  }
};

// `all`, where tiles are longer than a piece: their ranges, and where their top codes are counted.
template <int kRows, int kColumns>
__global__ void tally_kernel(Tiles tiles, ScaleArithmetic how, MagnitudeRounding rounding,
                             OfTiles all, QuantizationTally* tallies) {
  GNOMON_SHARED(BlockRoom, room);
  const Place place(tiles);
  const Square square(tiles, place);
  const OfTiles mine = of_piece(place);
  auto* scales = reinterpret_cast<float*>(mine.top + place.count);
  const bool holds_tiles = all.amax == nullptr;
  if (holds_tiles) find_ranges<kRows, kColumns>(tiles, place, square, mine);
  for (uint32_t i = threadIdx.x; i < place.count; i += blockDim.x) {
    if (!holds_tiles) {
      mine.amax[i] = all.amax[place.of_all(tiles, i)];
      mine.top[i] = 0;
    }
    scales[i] = scale_of_tile(how, mine.amax[i]);
  }
  __syncthreads();
  ElementsSeen elements;
  each_group<kRows, kColumns>(place, [&](int row, int column) {
    const uint32_t tile = place.tile(tiles, row, column);
    const float scale = scales[tile];
    const double inverse = 1.0 / static_cast<double>(scale);
    uint32_t top = 0;
    each_element<kRows, kColumns>(place, row, column, [&](int i, int j) {
      top += elements.add(rounding, square.magnitude(i, j), scale, inverse);
    });
    if (top > 0) atomicAdd(mine.top + tile, top);
  });
  __syncthreads();
  TilesSeen seen;
  for (uint32_t i = threadIdx.x; i < place.count; i += blockDim.x) {
    const int64_t tile = place.of_all(tiles, i);
    if (holds_tiles) {
      seen.add(scales[i], tiles.elements(tile), mine.top[i], mine.amax[i], mine.low[i]);
    } else if (mine.top[i] > 0) {
      atomicAdd(all.top + tile, mine.top[i]);
    }
  }
  QuantizationTally& tally = tallies[int64_t{blockIdx.y} * gridDim.x + blockIdx.x];
  elements.report(room, tally);
  seen.report(room, tally);
}

__global__ void long_tiles_kernel(Tiles tiles, ScaleArithmetic how, OfTiles all,
                                  QuantizationTally* tallies) {
  GNOMON_SHARED(BlockRoom, room);
  TilesSeen seen;
  for (int k = 0; k < kTilesOfThread; ++k) {
    const int64_t tile = (int64_t{blockIdx.x} * kTilesOfThread + k) * blockDim.x + threadIdx.x;
    if (tile >= tiles.down * tiles.across) continue;
    seen.add(scale_of_tile(how, all.amax[tile]), tiles.elements(tile), all.top[tile],
             all.amax[tile], all.low[tile]);
  }
  QuantizationTally& tally = tallies[blockIdx.x];
  ElementsSeen().report(room, tally);
  seen.report(room, tally);
}

// ---- on the host ----

// Along one dimension: whether pieces hold whole tiles.
bool held(int64_t tile, int64_t length) {
  return kPieceSide % tile == 0 || (tile >= length && length <= kPieceSide);
}
// The most tiles that a piece meets.
int64_t met(int64_t tile, int64_t length) {
  const int64_t side = length < kPieceSide ? length : kPieceSide;
  return kPieceSide % tile == 0 || tile >= length ? blocks_for(side, tile) : side / tile + 2;
}
// True when a thread's square is all of one tile along it.
bool in_one(int64_t tile, int64_t length) { return tile % kSquare == 0 || tile >= length; }

Tiles tiles_of(const TileGrid& grid, const MatrixView& x) {
  return {x.data,    x.rows,       x.columns,   stride_of(x), grid.tile.rows, grid.tile.columns,
          grid.rows, grid.columns, in_eights(x)};
}

bool held(const TileGrid& grid, int64_t rows, int64_t columns) {
  return held(grid.tile.rows, rows) && held(grid.tile.columns, columns);
}

int64_t last_blocks(const TileGrid& grid) {
  return blocks_for(grid.count(), int64_t{kTileThreads} * kTilesOfThread);
}

template <int kRows, int kColumns>
void tally(const Tiles& tiles, const ScaleArithmetic& how, const MagnitudeRounding& rounding,
           const OfTiles& all, QuantizationTally* tallies, Stream stream) {
  const int64_t room = met(tiles.tile_rows, tiles.rows) * met(tiles.tile_columns, tiles.columns) *
                       4 * static_cast<int64_t>(sizeof(uint32_t));
  GNOMON_ASSERT(room <= 200 << 10);
  const Grid grid{.blocks_x = blocks_for(tiles.columns, kPieceSide),
                  .blocks_y = blocks_for(tiles.rows, kPieceSide),
                  .threads = kTileThreads,
                  .shared_bytes = room};
  if (all.amax != nullptr) {
    launch_with_shared("tile_ranges", tile_ranges_kernel<kRows, kColumns>, grid, stream, tiles,
                       all);
  }
  launch_with_shared("tally", tally_kernel<kRows, kColumns>, grid, stream, tiles, how, rounding,
                     all, tallies);
}

}  // namespace

TallyNeeds tally_needs(const Quantizer& quantizer, int64_t rows, int64_t columns) {
  const TileGrid grid = tile_grid(quantizer, rows, columns);
  const int64_t pieces = blocks_for(rows, kPieceSide) * blocks_for(columns, kPieceSide);
  if (held(grid, rows, columns)) return {pieces, 0};
  return {pieces + last_blocks(grid), 3 * grid.count()};
}

void tally_tiles(const Quantizer& quantizer, const MatrixView& x, QuantizationTally* tallies,
                 uint32_t* scratch, Stream stream) {
  GNOMON_ASSERT(quantizer.rule != ScaleRule::kGiven);
  GNOMON_ASSERT(x.rows <= kLengthMost && x.columns <= kLengthMost);
  const TileGrid grid = tile_grid(quantizer, x.rows, x.columns);
  const float largest = format_max(quantizer.format);
  const ScaleArithmetic how{.format = quantizer.format,
                            .rule = quantizer.rule,
                            .format_max = largest,
                            .max_exponent = std::ilogb(largest)};
  const MagnitudeRounding rounding(quantizer.format);
  const Tiles tiles = tiles_of(grid, x);
  const int64_t count = grid.count();
  OfTiles all{};
  if (!held(grid, x.rows, x.columns)) {
    all = {scratch, scratch + count, scratch + 2 * count};
    clear(scratch, 3 * count * static_cast<int64_t>(sizeof(uint32_t)), stream);
  }
  const bool rows = in_one(grid.tile.rows, x.rows), columns = in_one(grid.tile.columns, x.columns);
  const auto way = rows && columns ? tally<kSquare, kSquare>
                   : columns       ? tally<1, kSquare>
                   : rows          ? tally<kSquare, 1>
                                   : tally<1, 1>;
  way(tiles, how, rounding, all, tallies, stream);
  if (all.amax == nullptr) return;
  const int64_t pieces = blocks_for(x.rows, kPieceSide) * blocks_for(x.columns, kPieceSide);
  launch("long_tiles", long_tiles_kernel, {.blocks_x = last_blocks(grid), .threads = kTileThreads},
         stream, tiles, how, all, tallies + pieces);
}

}  // namespace gnomon::cuda

// Rounding with a scale for each tile, counted and not kept. A piece of work is a band of tiles and
// a slice of its columns: one sweep for the tiles' ranges, one for what rounding does. Everything a
// tile needs is kept by column, so that any tile shape runs through the same vector loop.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/errors.h"
#include "kernels/statistics_tally.h"
#include "numerics/statistics_rounding.h"

namespace gnomon {
namespace {

// By column of a slice.
struct Columns {
  explicit Columns(size_t width)
      : amax(width), amin(width), top(width), scale(width), inverse(width) {}
  std::vector<uint16_t> amax;  // magnitude bits
  std::vector<uint16_t> amin;  // magnitude bits − 1, so that zero is the largest
  std::vector<int32_t> top;
  std::vector<float> scale;
  std::vector<double> inverse;
};

struct Sums {
  int32_t nonzero = 0, underflowed = 0, saturated = 0, overflowed = 0, subnormal = 0, finite = 0;
  double error_squares = 0, x_squares = 0, q_squares = 0, products = 0;
};

void widen_ranges(const bf16* __restrict x, int64_t count, uint16_t* __restrict amax,
                  uint16_t* __restrict amin) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    auto magnitude = static_cast<uint16_t>(x[i].bits & 0x7FFFu);
    auto less_one = static_cast<uint16_t>(magnitude - 1);
    amax[i] = magnitude > amax[i] ? magnitude : amax[i];
    amin[i] = less_one < amin[i] ? less_one : amin[i];
  }
}

template <int kShift>
Sums round_row(const MagnitudeRounding& rounding_of_format, const bf16* __restrict x, int64_t count,
               const float* __restrict scale, const double* __restrict inverse,
               int32_t* __restrict top) {
  const MagnitudeRounding rounding = rounding_of_format;
  int32_t nonzero = 0, underflowed = 0, saturated = 0, overflowed = 0, subnormals = 0, finites = 0;
  double errors = 0, xs = 0, qs = 0, products = 0;
#pragma omp simd reduction(+ : nonzero, underflowed, saturated, overflowed, subnormals, finites, \
                               errors, xs, qs, products)
  for (int64_t i = 0; i < count; ++i) {
    const float value = std::abs(to_float(x[i]));
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const bool finite = bits < 0x7F800000u;
    const RoundedElement it =
        round_magnitude(rounding, kShift, bits, std::bit_cast<uint32_t>(value * scale[i]));
    nonzero += it.nonzero ? 1 : 0;
    underflowed += it.underflowed ? 1 : 0;
    saturated += it.saturated ? 1 : 0;
    overflowed += it.overflowed ? 1 : 0;
    subnormals += it.subnormal ? 1 : 0;
    finites += finite ? 1 : 0;
    top[i] += it.top ? 1 : 0;
    const double exact = finite ? static_cast<double>(value) : 0.0;
    const double back =
        finite ? static_cast<double>(std::bit_cast<float>(it.code)) * inverse[i] : 0.0;
    errors += (back - exact) * (back - exact);
    xs += exact * exact;
    qs += back * back;
    products += exact * back;
  }
  return {nonzero, underflowed, saturated, overflowed, subnormals,
          finites, errors,      xs,        qs,         products};
}

using RowFunction = Sums (*)(const MagnitudeRounding&, const bf16*, int64_t, const float*,
                             const double*, int32_t*);

RowFunction row_function(Format format) {
  constexpr std::array<RowFunction, 7> kFunctions = {round_row<22>, round_row<21>, round_row<20>,
                                                     round_row<19>, round_row<18>, round_row<17>,
                                                     round_row<16>};
  return kFunctions.at(static_cast<size_t>(format_info(format).mantissa_bits - 1));
}

// The columns of a slice are whole tiles. Bands alone are work enough where there are many of them;
// the rule must not ask for the number of threads.
int64_t slice_columns(const TileGrid& grid, int64_t columns) {
  constexpr int64_t kBandsEnough = 64;
  constexpr int64_t kColumns = 128;
  if (grid.rows >= kBandsEnough) return columns;
  return (kColumns + grid.tile.columns - 1) / grid.tile.columns * grid.tile.columns;
}

double tile_range(uint16_t amax, uint16_t amin_less_one) {
  if (amax == 0 || amax >= 0x7F80u) return std::numeric_limits<double>::quiet_NaN();
  const bf16 amin{static_cast<uint16_t>(amin_less_one + 1)};
  return std::log2(static_cast<double>(to_float(bf16{amax})) / static_cast<double>(to_float(amin)));
}

// The scale of each tile of a band, from the ranges by column.
void choose_scales(const Quantizer& quantizer, int64_t tile_columns, int64_t columns,
                   Columns& by_column) {
  for (int64_t begin = 0; begin < columns; begin += tile_columns) {
    const int64_t end = std::min(begin + tile_columns, columns);
    uint16_t amax = 0;
    uint16_t amin = 0xFFFFu;
    for (int64_t c = begin; c < end; ++c) {
      amax = std::max(amax, by_column.amax[static_cast<size_t>(c)]);
      amin = std::min(amin, by_column.amin[static_cast<size_t>(c)]);
    }
    by_column.amax[static_cast<size_t>(begin)] = amax;
    by_column.amin[static_cast<size_t>(begin)] = amin;
    const float scale =
        tile_scale(quantizer.rule, quantizer.format,
                   amax >= 0x7F80u ? std::numeric_limits<float>::infinity() : to_float(bf16{amax}));
    std::fill(by_column.scale.begin() + begin, by_column.scale.begin() + end, scale);
    std::fill(by_column.inverse.begin() + begin, by_column.inverse.begin() + end,
              1.0 / static_cast<double>(scale));
  }
}

// `part` is a band of tiles; by_column has room for its columns.
QuantizationTally tally_band(const Quantizer& quantizer, int64_t tile_columns,
                             const MatrixView& part, Columns& by_column) {
  std::ranges::fill(by_column.amax, uint16_t{0});
  std::ranges::fill(by_column.amin, uint16_t{0xFFFFu});
  std::ranges::fill(by_column.top, 0);
  for (int64_t r = 0; r < part.rows; ++r) {
    widen_ranges(part.row(r), part.columns, by_column.amax.data(), by_column.amin.data());
  }
  choose_scales(quantizer, tile_columns, part.columns, by_column);
  const MagnitudeRounding rounding(quantizer.format);
  const RowFunction round = row_function(quantizer.format);
  QuantizationTally tally;
  for (int64_t r = 0; r < part.rows; ++r) {
    const Sums sums = round(rounding, part.row(r), part.columns, by_column.scale.data(),
                            by_column.inverse.data(), by_column.top.data());
    tally.nonzero += sums.nonzero;
    tally.underflowed += sums.underflowed;
    tally.saturated += sums.saturated;
    tally.overflowed += sums.overflowed;
    tally.subnormal += sums.subnormal;
    tally.finite += sums.finite;
    tally.error_squares += sums.error_squares;
    tally.x_squares += sums.x_squares;
    tally.q_squares += sums.q_squares;
    tally.products += sums.products;
  }
  for (int64_t begin = 0; begin < part.columns; begin += tile_columns) {
    const int64_t end = std::min(begin + tile_columns, part.columns);
    int64_t top = 0;
    for (int64_t c = begin; c < end; ++c) top += by_column.top[static_cast<size_t>(c)];
    tally.top += top;
    const auto at = static_cast<size_t>(begin);
    tally.add_tile(by_column.scale[at], part.rows * (end - begin), top,
                   tile_range(by_column.amax[at], by_column.amin[at]));
  }
  return tally;
}

}  // namespace

QuantizationTally HostStatistics::tally_tiles(const Quantizer& quantizer, const MatrixView& x) {
  const TileGrid grid = tile_grid(quantizer, x.rows, x.columns);
  const int64_t slice = std::min(slice_columns(grid, x.columns), x.columns);
  const int64_t slices = (x.columns + slice - 1) / slice;
  std::vector<QuantizationTally> pieces(static_cast<size_t>(grid.rows * slices));
#pragma omp parallel num_threads(threads_)
  {
    Columns by_column(static_cast<size_t>(slice));
#pragma omp for schedule(static)
    for (int64_t piece = 0; piece < std::ssize(pieces); ++piece) {
      const int64_t row = piece / slices * grid.tile.rows;
      const int64_t column = piece % slices * slice;
      const MatrixView part{x.row(row) + column, std::min(grid.tile.rows, x.rows - row),
                            std::min(slice, x.columns - column),
                            x.stride == 0 ? x.columns : x.stride};
      pieces[static_cast<size_t>(piece)] =
          tally_band(quantizer, grid.tile.columns, part, by_column);
    }
  }
  QuantizationTally sum;
  for (const QuantizationTally& piece : pieces) sum.add(piece);
  return sum;
}

}  // namespace gnomon

#include "numerics/quantizer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "numerics/scales.h"

namespace gnomon {
namespace {

float largest_power_of_two(float limit) {
  return std::ldexp(1.0f, std::ilogb(std::min(limit, kLargestScale)));
}

// As Backend::amax: NaN and Inf give +Inf.
float tile_amax(std::span<const bf16> x, int64_t stride, int64_t row, int64_t row_end,
                int64_t column, int64_t column_end) {
  float largest = 0.0f;
  for (int64_t r = row; r < row_end; ++r) {
    for (int64_t c = column; c < column_end; ++c) {
      float magnitude = std::abs(to_float(x[static_cast<size_t>(r * stride + c)]));
      if (!std::isfinite(magnitude)) return std::numeric_limits<float>::infinity();
      largest = std::max(largest, magnitude);
    }
  }
  return largest;
}

}  // namespace

TileGrid tile_grid(const Quantizer& quantizer, int64_t rows, int64_t columns) {
  GNOMON_ASSERT(rows > 0 && columns > 0 && quantizer.tile.rows >= 0 && quantizer.tile.columns >= 0);
  TileGrid grid{quantizer.tile, 0, 0};
  if (grid.tile.rows == 0) grid.tile.rows = rows;
  if (grid.tile.columns == 0) grid.tile.columns = columns;
  grid.rows = (rows + grid.tile.rows - 1) / grid.tile.rows;
  grid.columns = (columns + grid.tile.columns - 1) / grid.tile.columns;
  return grid;
}

float tile_scale(ScaleRule rule, Format format, float amax) {
  GNOMON_ASSERT(rule != ScaleRule::kGiven);
  if (rule == ScaleRule::kNone || !(amax > 0.0f) || !std::isfinite(amax)) return 1.0f;
  float fitting = current_scale(amax, format);
  if (rule == ScaleRule::kFp32) return fitting;
  if (rule == ScaleRule::kPowerOfTwo) return largest_power_of_two(fitting);
  return std::min(std::ldexp(1.0f, std::ilogb(format_max(format)) - std::ilogb(amax)),
                  kLargestScale);
}

void quantize_matrix(const Quantizer& quantizer, std::span<const bf16> x, int64_t rows,
                     int64_t columns, float given_scale, std::span<bf16> y,
                     std::span<float> scales) {
  TileGrid grid = tile_grid(quantizer, rows, columns);
  GNOMON_ASSERT(std::ssize(x) == rows * columns && y.size() == x.size());
  GNOMON_ASSERT(std::ssize(scales) == grid.count());
  GNOMON_ASSERT(quantizer.rule != ScaleRule::kGiven || grid.count() == 1);
  for (int64_t tile = 0; tile < grid.count(); ++tile) {
    int64_t row = tile / grid.columns * grid.tile.rows;
    int64_t column = tile % grid.columns * grid.tile.columns;
    int64_t row_end = std::min(row + grid.tile.rows, rows);
    int64_t column_end = std::min(column + grid.tile.columns, columns);
    float scale = given_scale;
    if (quantizer.rule != ScaleRule::kGiven) {
      scale = tile_scale(quantizer.rule, quantizer.format,
                         tile_amax(x, columns, row, row_end, column, column_end));
    }
    scales[static_cast<size_t>(tile)] = scale;
    for (int64_t r = row; r < row_end; ++r) {
      for (int64_t c = column; c < column_end; ++c) {
        auto at = static_cast<size_t>(r * columns + c);
        y[at] = to_bf16(round_to(quantizer.format, to_float(x[at]) * scale));
      }
    }
  }
}

}  // namespace gnomon

#include "tests/engine/reference_rounding.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/errors.h"

namespace gnomon::test {

double round_to_grid(double x, int mantissa_bits, int exponent_min, double largest) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = std::max(std::ilogb(x), exponent_min);
  double step = std::ldexp(1.0, exponent - mantissa_bits);
  return std::clamp(std::nearbyint(x / step) * step, -largest, largest);
}

double round_bf16(double x) { return round_to_grid(x, 7, -126, 3.3895313892515355e38); }

namespace {

struct Grid {
  int mantissa_bits;
  int exponent_min;
  double largest;
};

Grid grid_of(Format format) {
  switch (format) {
    case Format::kE4m3:
      return {3, -6, 448.0};
    case Format::kE5m2:
      return {2, -14, 57344.0};
    case Format::kE3m2:
      return {2, -2, 28.0};
    case Format::kE2m3:
      return {3, 0, 7.5};
    case Format::kE2m1:
      return {1, 0, 6.0};
    default:  // e8m3 to e8m6
      break;
  }
  const int bits = 3 + static_cast<int>(format) - static_cast<int>(Format::kE8m3);
  return {bits, -126, std::ldexp(2.0 - std::ldexp(1.0, -bits), 127)};
}

}  // namespace

double largest_of(Format format) { return grid_of(format).largest; }

// The recipes once more, in the words of docs/recipes.md.
Quantizer description(const GemmPrecision& precision, Gemm gemm, const std::string& tensor,
                      Format format) {
  Quantizer quantizer{format, {0, 0}, ScaleRule::kFp32};
  if (precision.power_of_two) quantizer.rule = ScaleRule::kPowerOfTwo;
  // fprop sums over `in`, the columns of input and weight; dgrad over `out`, the columns of the
  // gradient and the rows of the weight; wgrad over tokens, the rows of gradient and input.
  const bool rows = gemm == Gemm::kWgrad || (gemm == Gemm::kDgrad && tensor == "weight");
  const TileShape whole_line = rows ? TileShape{0, 1} : TileShape{1, 0};
  switch (precision.recipe) {
    case Recipe::kNone:
      quantizer.rule = ScaleRule::kNone;
      break;
    case Recipe::kDelayed:
      quantizer.rule = ScaleRule::kGiven;
      break;
    case Recipe::kCurrent:
      break;
    case Recipe::kRowwise:
      quantizer.tile = whole_line;
      break;
    case Recipe::kRowwiseGwHp:
      if (gemm == Gemm::kFprop || tensor == "gradient") quantizer.tile = whole_line;
      break;
    case Recipe::kBlock:
      quantizer.tile = rows ? TileShape{128, 1} : TileShape{1, 128};
      if (tensor == "weight") quantizer.tile = {128, 128};
      break;
    case Recipe::kTile64:
      quantizer.tile = rows ? TileShape{64, 1} : TileShape{1, 64};
      if (tensor == "weight") quantizer.tile = {64, 64};
      break;
    case Recipe::kMx:
      quantizer.tile = rows ? TileShape{32, 1} : TileShape{1, 32};
      quantizer.rule = precision.mx_scale_up ? ScaleRule::kPowerOfTwo : ScaleRule::kOcpFloor;
      break;
    default:
      throw Error(std::string(recipe_name(precision.recipe)) + " has no reference");
  }
  return quantizer;
}

double own_scale(ScaleRule rule, double largest, double amax) {
  if (rule == ScaleRule::kNone || amax == 0) return 1;
  const float quotient = static_cast<float>(largest) / static_cast<float>(amax);
  if (rule == ScaleRule::kPowerOfTwo) return std::exp2(std::floor(std::log2(quotient)));
  if (rule == ScaleRule::kOcpFloor) {
    return std::exp2(std::floor(std::log2(largest)) - std::floor(std::log2(amax)));
  }
  return static_cast<double>(quotient);
}

double round_to_format(Format format, double x) {
  const Grid grid = grid_of(format);
  return round_to_grid(x, grid.mantissa_bits, grid.exponent_min, grid.largest);
}

Vector quantise_tiles(const Quantizer& quantizer, int log2_shift, const Vector& x, int columns) {
  const int rows = static_cast<int>(x.size()) / columns;
  const int tile_rows = quantizer.tile.rows == 0 ? rows : static_cast<int>(quantizer.tile.rows);
  const int tile_columns =
      quantizer.tile.columns == 0 ? columns : static_cast<int>(quantizer.tile.columns);
  const double largest = largest_of(quantizer.format);
  std::map<std::pair<int, int>, double> amax;
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      double& most = amax[{row / tile_rows, column / tile_columns}];
      most = std::max(most, std::abs(x[at(row, columns, column)]));
    }
  }
  Vector y(x.size());
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      const double scale = std::ldexp(
          own_scale(quantizer.rule, largest, amax[{row / tile_rows, column / tile_columns}]),
          log2_shift);
      const size_t k = at(row, columns, column);
      const double scaled = static_cast<double>(static_cast<float>(x[k] * scale));
      y[k] = round_to_format(quantizer.format, scaled) / scale;
    }
  }
  return y;
}

}  // namespace gnomon::test

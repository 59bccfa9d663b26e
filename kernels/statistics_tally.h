// What is summed up while a matrix is compared with its rounded copy; inside statistics*.cc only.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/statistics.h"

namespace gnomon {

struct QuantizationTally {
  int64_t nonzero = 0;
  int64_t underflowed = 0;
  int64_t saturated = 0;
  int64_t overflowed = 0;
  int64_t subnormal = 0;
  int64_t top = 0;
  int64_t finite = 0;
  double error_squares = 0;
  double x_squares = 0;
  double q_squares = 0;
  double products = 0;

  int64_t tiles = 0;
  int64_t tiles_in_top = 0;
  int64_t ranges = 0;
  double top_tile_max = 0;
  double range_sum = 0;
  double range_max = 0;
  float scale_min = std::numeric_limits<float>::infinity();
  float scale_max = 0;

  // `times` finite elements x that became q after dequantisation.
  void add(double x, double q, double times) {
    finite += static_cast<int64_t>(times);
    error_squares += times * (q - x) * (q - x);
    x_squares += times * x * x;
    q_squares += times * q * q;
    products += times * x * q;
  }

  // A tile of `elements`, `in_top` of them in the top code. `range` may be NaN.
  void add_tile(float scale, int64_t elements, int64_t in_top, double range) {
    ++tiles;
    scale_min = std::min(scale_min, scale);
    scale_max = std::max(scale_max, scale);
    tiles_in_top += 2 * in_top > elements ? 1 : 0;
    top_tile_max =
        std::max(top_tile_max, static_cast<double>(in_top) / static_cast<double>(elements));
    if (std::isnan(range)) return;
    ++ranges;
    range_sum += range;
    range_max = std::max(range_max, range);
  }

  void add(const QuantizationTally& other) {
    nonzero += other.nonzero;
    underflowed += other.underflowed;
    saturated += other.saturated;
    overflowed += other.overflowed;
    subnormal += other.subnormal;
    top += other.top;
    finite += other.finite;
    error_squares += other.error_squares;
    x_squares += other.x_squares;
    q_squares += other.q_squares;
    products += other.products;
    tiles += other.tiles;
    tiles_in_top += other.tiles_in_top;
    ranges += other.ranges;
    top_tile_max = std::max(top_tile_max, other.top_tile_max);
    range_sum += other.range_sum;
    range_max = std::max(range_max, other.range_max);
    scale_min = std::min(scale_min, other.scale_min);
    scale_max = std::max(scale_max, other.scale_max);
  }
};

// True when a value (not NaN) would be rounded to more than the format's largest if there were
// more.
inline bool rounds_beyond(const FormatInfo& info, float value) {
  const int shift = 23 - info.mantissa_bits;
  const uint32_t a = std::bit_cast<uint32_t>(std::abs(value));
  const uint32_t rounded = a + ((1u << (shift - 1)) - 1) + ((a >> shift) & 1u);
  return (rounded >> shift << shift) > std::bit_cast<uint32_t>(static_cast<float>(info.largest));
}

}  // namespace gnomon

// Tiles, scale rules and their meaning, against values worked out by hand.
#include "numerics/quantizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "numerics/scales.h"
#include "tests/support/special_numbers.h"

namespace gnomon {
namespace {

std::vector<bf16> matrix(std::initializer_list<float> values) {
  std::vector<bf16> x;
  for (float value : values) x.push_back(to_bf16(value));
  return x;
}

TEST(TileGrid, ZeroMeansAllAndLastTilesMayBeCutOff) {
  TileGrid whole = tile_grid({.format = Format::kE4m3, .tile = {0, 0}}, 3, 5);
  EXPECT_EQ(whole.count(), 1);
  TileGrid rows = tile_grid({.format = Format::kE4m3, .tile = {1, 0}}, 3, 5);
  EXPECT_EQ(rows.rows, 3);
  EXPECT_EQ(rows.columns, 1);
  TileGrid blocks = tile_grid({.format = Format::kE4m3, .tile = {1, 128}}, 2, 200);
  EXPECT_EQ(blocks.rows, 2);
  EXPECT_EQ(blocks.columns, 2);
}

TEST(TileScale, PowerOfTwoIsTheLargestThatDoesNotSaturate) {
  for (Format format : {Format::kE4m3, Format::kE5m2, Format::kE2m1}) {
    for (float amax : {1e-3f, 0.37f, 1.0f, 1.75f, 7.0f, 448.0f, 449.0f, 57344.0f, 3e30f}) {
      float scale = tile_scale(ScaleRule::kPowerOfTwo, format, amax);
      EXPECT_EQ(std::ldexp(1.0f, std::ilogb(scale)), scale) << amax;
      EXPECT_LE(amax * scale, format_max(format)) << amax;
      EXPECT_GT(amax * scale * 2, format_max(format)) << amax;
    }
  }
}

TEST(TileScale, OcpFloorKeepsTheExponentAndMaySaturate) {
  // E4M3: e_max 8. An amax of 1.9 is scaled by 2^8 to 486.4, above 448.
  EXPECT_EQ(tile_scale(ScaleRule::kOcpFloor, Format::kE4m3, 1.9f), 256.0f);
  EXPECT_EQ(tile_scale(ScaleRule::kPowerOfTwo, Format::kE4m3, 1.9f), 128.0f);
  // E2M1: largest 6, e_max 2.
  EXPECT_EQ(tile_scale(ScaleRule::kOcpFloor, Format::kE2m1, 7.9f), 1.0f);
}

TEST(TileScale, NothingToMeasureGivesOneAndTinyIsLimited) {
  for (ScaleRule rule :
       {ScaleRule::kNone, ScaleRule::kFp32, ScaleRule::kPowerOfTwo, ScaleRule::kOcpFloor}) {
    for (float amax : {0.0f, -1.0f, kInfinityF, std::numeric_limits<float>::quiet_NaN()}) {
      EXPECT_EQ(tile_scale(rule, Format::kE4m3, amax), 1.0f);
    }
    EXPECT_LE(tile_scale(rule, Format::kE4m3, 1e-38f), kLargestScale);
  }
}

TEST(QuantizeMatrix, EachTileHasItsOwnScale) {
  Quantizer quantizer{Format::kE4m3, {1, 2}, ScaleRule::kPowerOfTwo};
  std::vector<bf16> x = matrix({1.0f, 0.51953125f, 1000.0f, 3.0f,  //
                                0.0f, 0.0f, -kInfinityF, 2.0f});
  std::vector<bf16> y(x.size());
  std::vector<float> scales(4);
  quantize_matrix(quantizer, x, 2, 4, 0.0f, y, scales);
  EXPECT_EQ(scales, (std::vector<float>{256.0f, 0.25f, 1.0f, 1.0f}));
  EXPECT_EQ(to_float(y[0]), 256.0f);
  EXPECT_EQ(to_float(y[1]), 128.0f);  // 133 lies between 128 and 144
  // 250 lies between 240 and 256.
  EXPECT_EQ(to_float(y[2]), 256.0f);
  EXPECT_EQ(to_float(y[3]), 0.75f);
  EXPECT_EQ(to_float(y[4]), 0.0f);
  EXPECT_EQ(to_float(y[6]), -448.0f);
  EXPECT_EQ(to_float(y[7]), 2.0f);
}

TEST(QuantizeMatrix, ColumnsAndWholeMatrix) {
  std::vector<bf16> x = matrix({1.0f, 100.0f, 2.0f, 200.0f});
  std::vector<bf16> y(4);
  std::vector<float> columns(2);
  quantize_matrix({Format::kE4m3, {0, 1}, ScaleRule::kFp32}, x, 2, 2, 0.0f, y, columns);
  EXPECT_EQ(columns, (std::vector<float>{224.0f, 2.24f}));
  EXPECT_EQ(to_float(y[2]), 448.0f);
  EXPECT_EQ(to_float(y[3]), 448.0f);
  std::vector<float> one(1);
  quantize_matrix({Format::kE4m3, {0, 0}, ScaleRule::kGiven}, x, 2, 2, 4.0f, y, one);
  EXPECT_EQ(one[0], 4.0f);
  EXPECT_EQ(to_float(y[3]), 448.0f);  // saturated
  EXPECT_EQ(to_float(y[0]), 4.0f);
}

}  // namespace
}  // namespace gnomon

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/ops.h"
#include "tests/kernels/reference.h"

namespace gnomon {
namespace {

std::vector<Format> carried_formats() {
  std::vector<Format> formats;
  for (Format format : all_formats()) {
    if (format != Format::kFp32) formats.push_back(format);
  }
  return formats;
}

std::vector<bf16> all_bf16_values() {
  std::vector<bf16> values(0x10000);
  for (uint32_t i = 0; i < values.size(); ++i) values[i].bits = static_cast<uint16_t>(i);
  return values;
}

// The scalar codec, for each element.
struct Expected {
  std::vector<bf16> y;
  cpu::QuantizeCounts counts;
};
Expected quantize_by_codec(std::span<const bf16> x, Format format, float scale) {
  Expected expected;
  for (bf16 value : x) {
    float scaled = to_float(value) * scale;
    float rounded = round_to(format, scaled);
    expected.y.push_back(to_bf16(rounded));
    if (std::fabs(scaled) > format_info(format).largest) ++expected.counts.saturated;
    if (rounded == 0.0f && to_float(value) != 0.0f) ++expected.counts.underflowed;
  }
  return expected;
}

void expect_same_as_codec(std::span<const bf16> x, Format format, float scale) {
  std::vector<bf16> y(x.size());
  cpu::QuantizeCounts counts = cpu::quantize(2, x, format, scale, y);
  Expected expected = quantize_by_codec(x, format, scale);
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(y[i].bits, expected.y[i].bits)
        << format_name(format) << " scale " << scale << " x bits " << std::hex << x[i].bits;
  }
  EXPECT_EQ(counts.saturated, expected.counts.saturated) << format_name(format) << " " << scale;
  EXPECT_EQ(counts.underflowed, expected.counts.underflowed) << format_name(format) << " " << scale;
}

TEST(Quantize, EqualsTheCodecBitForBitForEveryBf16Value) {
  std::vector<bf16> x = all_bf16_values();
  for (Format format : carried_formats()) {
    for (float scale : {1.0f, 3.7f, 0x1p-20f, 1.0f / 3.0f, 448.0f, 0x1p60f, 1e-38f, -2.0f}) {
      expect_same_as_codec(x, format, scale);
    }
  }
}

// A random scale makes the FP32 product a random bit pattern, which BF16 inputs alone are not.
TEST(Quantize, EqualsTheCodecBitForBitForManyScales) {
  std::vector<bf16> x(997);
  for (uint32_t trial = 0; trial < 300; ++trial) {
    for (uint32_t i = 0; i < x.size(); ++i) {
      x[i].bits = static_cast<uint16_t>(philox(1, trial, i)[0]);
    }
    float scale = std::bit_cast<float>(philox(2, 0, trial)[0] & 0x7FFFFFFFu);
    if (!std::isfinite(scale)) scale = 1.0f;
    for (Format format : carried_formats()) expect_same_as_codec(x, format, scale);
  }
}

TEST(Quantize, HitsTiesOfEveryBinadeExactly) {
  for (Format format : carried_formats()) {
    const FormatInfo& info = format_info(format);
    if (info.mantissa_bits > 6) continue;
    std::vector<bf16> ties;
    uint32_t codes = 1u << (info.bits - 1);
    for (uint32_t code = 0; code + 1 < codes; ++code) {
      double low = decode(format, code);
      double high = decode(format, code + 1);
      if (std::isfinite(low) && std::isfinite(high))
        ties.push_back(to_bf16(static_cast<float>((low + high) / 2)));
    }
    expect_same_as_codec(ties, format, 1.0f);
    expect_same_as_codec(ties, format, -1.0f);
  }
}

TEST(Quantize, CountsInTheLargestTensorsAreExact) {
  std::vector<bf16> x(3'000'001, to_bf16(1000.0f));
  x.front() = to_bf16(1e-9f);
  x.back() = to_bf16(std::numeric_limits<float>::quiet_NaN());
  std::vector<bf16> y(x.size());
  cpu::QuantizeCounts counts = cpu::quantize(2, x, Format::kE4m3, 1.0f, y);
  EXPECT_EQ(counts.saturated, 2'999'999);
  EXPECT_EQ(counts.underflowed, 1);
  EXPECT_TRUE(std::isnan(to_float(y.back())));
}

TEST(Quantize, WorksInPlaceAndOnNothing) {
  std::vector<bf16> x = random_bf16(1, 777, 600.0f);
  std::vector<bf16> y(x.size());
  cpu::quantize(2, x, Format::kE4m3, 1.0f, y);
  cpu::quantize(2, x, Format::kE4m3, 1.0f, x);
  EXPECT_EQ(bits_of(x), bits_of(y));
  cpu::QuantizeCounts counts = cpu::quantize(2, {}, Format::kE4m3, 1.0f, {});
  EXPECT_EQ(counts.saturated + counts.underflowed, 0);
}

TEST(RoundSum, RoundsEveryElementLikeTheScalarFunction) {
  std::vector<float> x(20001);
  for (uint32_t i = 0; i < x.size(); ++i) x[i] = std::bit_cast<float>(philox(21, 0, i)[0]);
  std::vector<bf16> y(x.size());
  cpu::round_sum<bf16>(2, x, y);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i].bits, to_bf16(x[i]).bits) << i;
}

TEST(Amax, IsTheLargestMagnitudeWhereverItStands) {
  for (int64_t size : {1, 5, 31, 64, 4097, 20011}) {
    for (int64_t at : {int64_t{0}, size / 2, size - 1}) {
      std::vector<bf16> x = random_bf16(4, size, 1.0f);
      x[at] = to_bf16(-3.5f);
      EXPECT_EQ(cpu::amax(2, x), 3.5f) << size << " " << at;
    }
  }
  EXPECT_EQ(cpu::amax(2, {}), 0.0f);
}

TEST(Amax, NonFiniteValuesGivePositiveInfinity) {
  for (float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<bf16> x = random_bf16(4, 10000, 1.0f);
    x[9999] = to_bf16(bad);
    EXPECT_EQ(cpu::amax(2, x), std::numeric_limits<float>::infinity());
  }
}

// ---- tiles ----

struct TileCase {
  TileShape tile;
  int64_t rows, columns;
};

// Magnitudes over many powers of two, with a zero tile, NaN and Inf here and there.
std::vector<bf16> lively_matrix(uint64_t key, int64_t count) {
  std::vector<bf16> x = random_bf16(key, count);
  for (size_t i = 0; i < x.size(); ++i) {
    const uint32_t word = philox(key, 5, i)[0];
    x[i] = to_bf16(std::ldexp(to_float(x[i]), static_cast<int>(word % 60) - 40));
    if (word >> 20 == 1) x[i] = to_bf16(std::numeric_limits<float>::quiet_NaN());
    if (word >> 20 == 2) x[i] = to_bf16(-std::numeric_limits<float>::infinity());
    if (i % 1024 < 300) x[i].bits &= 0x8000u;
    if (word >> 20 == 3) x[i].bits = 1;  // the smallest subnormal
  }
  return x;
}

const std::vector<TileCase> kTileCases = {
    {{1, 128}, 7, 300}, {{1, 32}, 5, 100},  {{1, 0}, 9, 777},       {{128, 1}, 300, 70},
    {{32, 1}, 70, 600}, {{0, 1}, 333, 20},  {{128, 128}, 300, 517}, {{128, 128}, 40, 50},
    {{0, 0}, 20, 30},   {{16, 4}, 33, 515}, {{1, 128}, 1, 1},       {{128, 1}, 1, 1}};

TEST(QuantizeTiles, EqualsQuantizeMatrixBitForBit) {
  for (const TileCase& it : kTileCases) {
    std::vector<bf16> x = lively_matrix(3, it.rows * it.columns);
    for (Format format : {Format::kE4m3, Format::kE5m2, Format::kE2m1, Format::kE8m5}) {
      for (ScaleRule rule :
           {ScaleRule::kNone, ScaleRule::kFp32, ScaleRule::kPowerOfTwo, ScaleRule::kOcpFloor}) {
        const Quantizer quantizer{format, it.tile, rule};
        const auto tiles = static_cast<size_t>(tile_grid(quantizer, it.rows, it.columns).count());
        std::vector<bf16> expected(x.size()), y(x.size());
        std::vector<float> expected_scales(tiles), scales(tiles);
        quantize_matrix(quantizer, x, it.rows, it.columns, 0, expected, expected_scales);
        cpu::quantize_tiles(2, quantizer, {}, x, it.rows, it.columns, y, scales);
        ASSERT_EQ(scales, expected_scales) << format_name(format);
        for (size_t i = 0; i < x.size(); ++i) {
          ASSERT_EQ(y[i].bits, expected[i].bits) << format_name(format) << " at " << i;
        }
      }
    }
  }
}

TEST(QuantizeTiles, DequantisedValuesAreTheQuotientsExactly) {
  for (const TileCase& it : kTileCases) {
    std::vector<bf16> x = lively_matrix(4, it.rows * it.columns);
    const Quantizer quantizer{Format::kE4m3, it.tile, ScaleRule::kPowerOfTwo};
    const TileGrid grid = tile_grid(quantizer, it.rows, it.columns);
    std::vector<bf16> quantised(x.size()), y(x.size());
    std::vector<float> scales(static_cast<size_t>(grid.count()));
    quantize_matrix(quantizer, x, it.rows, it.columns, 0, quantised, scales);
    cpu::quantize_tiles(2, quantizer, {.dequantise = true}, x, it.rows, it.columns, y, {});
    for (int64_t row = 0; row < it.rows; ++row) {
      for (int64_t column = 0; column < it.columns; ++column) {
        const auto at = static_cast<size_t>(row * it.columns + column);
        const double scale = static_cast<double>(scales[static_cast<size_t>(
            row / grid.tile.rows * grid.columns + column / grid.tile.columns)]);
        const double expected = static_cast<double>(to_float(quantised[at])) / scale;
        const auto found = static_cast<double>(to_float(y[at]));
        ASSERT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected))) << at;
      }
    }
  }
}

TEST(QuantizeTiles, AShiftMovesEveryScale) {
  std::vector<bf16> x = random_bf16(6, 4 * 128);
  std::vector<bf16> y(x.size());
  std::vector<float> plain(4), shifted(4);
  const Quantizer quantizer{Format::kE4m3, {1, 128}, ScaleRule::kPowerOfTwo};
  cpu::quantize_tiles(2, quantizer, {}, x, 4, 128, y, plain);
  cpu::quantize_tiles(2, quantizer, {.log2_shift = 4}, x, 4, 128, y, shifted);
  int saturated = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(to_float(y[i]), round_to(Format::kE4m3, to_float(x[i]) * plain[i / 128] * 16.0f));
    saturated += std::abs(to_float(y[i])) == 448.0f;
  }
  EXPECT_GT(saturated, 100);
  for (size_t tile = 0; tile < 4; ++tile) EXPECT_EQ(shifted[tile], 16.0f * plain[tile]);
}

}  // namespace
}  // namespace gnomon

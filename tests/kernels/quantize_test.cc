#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/cpu/operands.h"
#include "kernels/cpu/ops.h"
#include "numerics/recipes.h"
#include "numerics/scales.h"
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
  CastCounts counts;
};

// Where rounding to a format's precision goes beyond its largest value.
class Limit {
 public:
  explicit Limit(Format format) {
    const FormatInfo& info = format_info(format);
    spacing_ = std::ldexp(1.0, std::ilogb(info.largest) - info.mantissa_bits);
    largest_ = info.largest / spacing_;
  }
  bool cuts(float scaled) const {
    return std::nearbyint(std::fabs(static_cast<double>(scaled)) / spacing_) > largest_;
  }

 private:
  double spacing_, largest_;
};

Expected quantize_by_codec(std::span<const bf16> x, Format format, float scale) {
  Expected expected;
  const Limit limit(format);
  for (bf16 value : x) {
    float scaled = to_float(value) * scale;
    float rounded = round_to(format, scaled);
    expected.y.push_back(to_bf16(rounded));
    if (limit.cuts(scaled)) ++expected.counts.saturated;
    if (rounded == 0.0f && to_float(value) != 0.0f) ++expected.counts.flushed;
  }
  expected.counts.values = std::ssize(x);
  return expected;
}

void expect_same_as_codec(std::span<const bf16> x, Format format, float scale) {
  std::vector<bf16> y(x.size());
  CastCounts counts = cpu::quantize(2, x, format, scale, y);
  Expected expected = quantize_by_codec(x, format, scale);
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(y[i].bits, expected.y[i].bits)
        << format_name(format) << " scale " << scale << " x bits " << std::hex << x[i].bits;
  }
  EXPECT_EQ(counts, expected.counts) << format_name(format) << " " << scale;
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
  CastCounts counts = cpu::quantize(2, x, Format::kE4m3, 1.0f, y);
  EXPECT_EQ(counts.saturated, 2'999'999);
  EXPECT_EQ(counts.flushed, 1);
  EXPECT_TRUE(std::isnan(to_float(y.back())));
}

TEST(Quantize, WorksInPlaceAndOnNothing) {
  std::vector<bf16> x = random_bf16(1, 777, 600.0f);
  std::vector<bf16> y(x.size());
  cpu::quantize(2, x, Format::kE4m3, 1.0f, y);
  cpu::quantize(2, x, Format::kE4m3, 1.0f, x);
  EXPECT_EQ(bits_of(x), bits_of(y));
  EXPECT_EQ(cpu::quantize(2, {}, Format::kE4m3, 1.0f, {}), CastCounts{});
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

// ---- counts ----

// Each once, though several recipes, tensors and GEMMs may have it.
std::vector<Quantizer> quantizers_of_recipes() {
  std::vector<Quantizer> all;
  const auto add = [&](const Quantizer& quantizer) {
    if (std::ranges::find(all, quantizer) == all.end()) all.push_back(quantizer);
  };
  for (const RecipeRow& row : recipe_rows()) {
    if (!is_ours(row)) continue;
    for (Gemm gemm : kGemms) {
      for (TensorRole role : kAllTensorRoles) {
        if (!reads(gemm, role)) continue;
        const Format format =
            role == TensorRole::kGradient ? row.gradient_format : row.forward_format;
        const TileShape tile = row.tile(role, gemm);
        add({format, tile, row.rule});
        if (row.power_of_two) add({format, tile, ScaleRule::kPowerOfTwo});
        if (row.has_mx_scale) add({format, tile, ScaleRule::kOcpFloor});
      }
    }
  }
  return all;
}

// Element by element, with these scales of the tiles.
CastCounts count_by_codec(const Quantizer& quantizer, std::span<const bf16> x, int64_t rows,
                          int64_t columns, const float* scales) {
  const TileGrid grid = tile_grid(quantizer, rows, columns);
  const Limit limit(quantizer.format);
  std::vector<float> amaxes(static_cast<size_t>(grid.count()));
  CastCounts counts{.values = rows * columns};
  for (int64_t i = 0; i < rows * columns; ++i) {
    const int64_t tile =
        i / columns / grid.tile.rows * grid.columns + i % columns / grid.tile.columns;
    const float value = to_float(x[static_cast<size_t>(i)]);
    const float scaled = value * scales[tile];
    counts.saturated += limit.cuts(scaled);
    counts.flushed += value != 0 && round_to(quantizer.format, scaled) == 0;
    float& amax = amaxes[static_cast<size_t>(tile)];
    amax = std::isfinite(value) ? std::max(amax, std::fabs(value))
                                : std::numeric_limits<float>::infinity();
  }
  for (size_t tile = 0; tile < amaxes.size(); ++tile) {
    if (!std::isfinite(amaxes[tile])) continue;
    counts.peak = std::max(counts.peak, amaxes[tile] * scales[tile] / format_max(quantizer.format));
  }
  return counts;
}

struct CastCase {
  Quantizer quantizer;
  int64_t rows, columns;
  bool finite;
  int log2_shift;
};

// Casts as the engine does.
std::vector<bf16> cast_by_backend(Backend& backend, const CastCase& it, std::span<const bf16> x,
                                  bool keeps_scales, OwnOperand<bf16>& own, CastCounts* counts) {
  GemmOperand<bf16>& operand = own.of(x);
  Rounding rounding;
  rounding.quantises = true;
  rounding.quantizer = it.quantizer;
  rounding.log2_shift = it.log2_shift;
  rounding.keeps_scales = keeps_scales;
  if (it.quantizer.rule == ScaleRule::kGiven) rounding.given = 40.0f;
  backend.amax(x, operand.scalars + kAmax);
  operand.amax_known = true;
  backend.quantize(operand, it.rows, it.columns, rounding, kAsStored, counts);
  const bf16* copy = cpu::copy_of(operand);
  return {copy, copy + x.size()};
}

using Backends = std::vector<std::unique_ptr<Backend>>;

void expect_counts_of_codec(const Backends& backends, const CastCase& it) {
  std::vector<bf16> x = lively_matrix(7, it.rows * it.columns);
  for (bf16& value : x) {
    if (it.finite && !std::isfinite(to_float(value))) value = bf16{};
  }
  OwnOperand<bf16> own(host_memory());
  const std::vector<bf16> uncounted = cast_by_backend(*backends[0], it, x, true, own, nullptr);
  const bool whole = it.quantizer.tile == TileShape{};
  const float* scales = whole ? own.operand().scalars + kScale : own.operand().tile_scales.data();
  if (whole) {
    EXPECT_EQ(bits_of(uncounted), bits_of(quantize_by_codec(x, it.quantizer.format, scales[0]).y));
  }
  const CastCounts expected = count_by_codec(it.quantizer, x, it.rows, it.columns, scales);
  for (const std::unique_ptr<Backend>& backend : backends) {
    OwnOperand<bf16> other(host_memory());
    CastCounts counts;
    EXPECT_EQ(bits_of(cast_by_backend(*backend, it, x, true, other, &counts)), bits_of(uncounted));
    EXPECT_EQ(counts, expected) << backend->threads();
    if (whole || it.quantizer.exact_in_bf16()) {
      cast_by_backend(*backend, it, x, false, other, &counts);
      CastCounts twice = expected;
      twice.add(expected);
      EXPECT_EQ(counts, twice) << "counts are added";
    }
  }
}

TEST(CastCounts, AreThoseOfTheCodecForEveryRecipe) {
  const std::vector<Quantizer> quantizers = quantizers_of_recipes();
  EXPECT_GT(quantizers.size(), 15u);
  Backends backends;
  for (int threads : {1, 2, 3}) backends.push_back(make_cpu_backend(threads));
  for (const Quantizer& quantizer : quantizers) {
    for (const auto& [rows, columns] : {std::pair{140, 70}, {19, 300}, {1, 1}}) {
      for (bool finite : {true, false}) {
        for (int log2_shift : {0, 6, -8}) {
          SCOPED_TRACE(testing::Message()
                       << format_name(quantizer.format) << " tiles " << quantizer.tile.rows << "x"
                       << quantizer.tile.columns << " of " << rows << "x" << columns << " rule "
                       << static_cast<int>(quantizer.rule) << " finite " << finite << " shift "
                       << log2_shift);
          expect_counts_of_codec(backends, {quantizer, rows, columns, finite, log2_shift});
        }
      }
    }
  }
}

TEST(CastCounts, SayHowAScaleFits) {
  const std::vector<bf16> x = random_bf16(8, 64 * 64);
  std::vector<bf16> y(x.size());
  const auto cast = [&](ScaleRule rule, int log2_shift) {
    const Quantizer quantizer{Format::kE4m3, {1, 32}, rule};
    return cpu::quantize_tiles(2, quantizer, {.log2_shift = log2_shift}, x, 64, 64, y, {});
  };
  EXPECT_NEAR(cast(ScaleRule::kFp32, 0).peak, 1, 1e-6);
  EXPECT_EQ(cast(ScaleRule::kFp32, 0).saturated, 0) << "a scale that is rounded up cuts nothing";
  EXPECT_NEAR(cast(ScaleRule::kFp32, 6).peak, 64, 1e-4);
  EXPECT_LE(cast(ScaleRule::kPowerOfTwo, 0).peak, 1);
  EXPECT_GT(cast(ScaleRule::kPowerOfTwo, 0).peak, 0.5);
  EXPECT_GT(cast(ScaleRule::kOcpFloor, 0).peak, 1);
  EXPECT_GT(cast(ScaleRule::kOcpFloor, 0).saturated, 0);
}

// More than 16 bits hold at one place of a row.
TEST(CastCounts, OfLongColumnsAndManyRowsAreExact) {
  constexpr int64_t kRows = 70'000;
  std::vector<bf16> x(kRows, to_bf16(1e-9f)), y(x.size());
  x.front() = to_bf16(1.0f);
  const Quantizer column{Format::kE4m3, {0, 1}, ScaleRule::kFp32};
  EXPECT_EQ(cpu::quantize_tiles(1, column, {}, x, kRows, 1, y, {}).flushed, kRows - 1);
  const Quantizer row{Format::kE4m3, {1, 0}, ScaleRule::kFp32};
  const TileQuantiseOptions too_large{.log2_shift = 3};
  EXPECT_EQ(cpu::quantize_tiles(1, row, too_large, x, kRows, 1, y, {}).saturated, kRows);
}

}  // namespace
}  // namespace gnomon

// The device's rounding, on a device or by emulation on the CPU, against the exact one.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/ops.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/quantize.h"
#include "tests/kernels/device_support.h"
#include "tests/kernels/reference.h"

namespace gnomon::cuda {
namespace {

// An operand's scalars, all but one of them zero.
std::vector<float> only(OperandScalar which, float value) {
  std::vector<float> scalars(kOperandScalars);
  scalars[which] = value;
  return scalars;
}

using test::changed, test::device_stream, test::given;

std::vector<bf16> matrix(uint64_t key, int64_t rows, int64_t columns, bool with_odd_values = true) {
  std::vector<bf16> x = random_bf16(key, rows * columns, 3.0f);
  for (size_t i = 0; i < x.size(); i += 97) x[i] = to_bf16(to_float(x[i]) * 1e-3f);
  if (with_odd_values) {
    x[5] = to_bf16(0.0f);
    x[x.size() / 2] = to_bf16(-40.0f);
  }
  return x;
}

// The machine is asked whether it has them: tests/engine/broken_fp8_kernel_test.cc.
TEST(CudaProductsOfCodes, AreForKindsOfScalesThatGoTogether) {
  const Quantizer one{Format::kE4m3, {}, ScaleRule::kFp32};
  const Quantizer row{Format::kE4m3, {1, 0}, ScaleRule::kFp32};
  const Quantizer block{Format::kE4m3, {1, 128}, ScaleRule::kFp32};
  const Quantizer square{Format::kE4m3, {128, 128}, ScaleRule::kFp32};
  EXPECT_TRUE(native({}, one, one));
  EXPECT_TRUE(native({}, row, one));
  EXPECT_TRUE(native({}, block, square));
  EXPECT_FALSE(native({}, block, one));
  EXPECT_FALSE(native({}, square, square));
}

TEST(CudaAmax, IsTheCpus) {
  for (int64_t size : {1, 7, 8, 4096, 100'003}) {
    std::vector<bf16> x = random_bf16(3, size, 2.0f);
    float found = -1;
    amax(given(x), size, changed(found), device_stream());
    EXPECT_EQ(found, cpu::amax(1, x)) << size;
    x[static_cast<size_t>(size / 2)] = to_bf16(NAN);
    amax(given(x), size, changed(found), device_stream());
    EXPECT_EQ(found, HUGE_VALF) << size;
  }
  float most = 2;
  for (float next : {1.0f, 0.0f, HUGE_VALF, NAN, 5.0f, 4.0f})
    raise(given(next), changed(most), device_stream());
  EXPECT_EQ(most, 5);
}

TEST(CudaScale, IsTheOneOfOperandH) {
  for (Format format : {Format::kE4m3, Format::kE5m2}) {
    for (ScaleRule rule : {ScaleRule::kNone, ScaleRule::kGiven, ScaleRule::kFp32,
                           ScaleRule::kPowerOfTwo, ScaleRule::kOcpFloor}) {
      for (float amax : {0.0f, 1e-38f, 1e-30f, 0.7f, 1.0f, 448.0f, 449.0f, 3e38f, HUGE_VALF, NAN}) {
        for (int shift : {0, 3, -5}) {
          Rounding rounding;
          rounding.quantizer = {format, {}, rule};
          rounding.margin = rule == ScaleRule::kGiven ? 2 : 0;
          rounding.log2_shift = shift;
          std::vector<float> scalars = only(kAmax, amax);
          choose_scale(rounding, changed(scalars), device_stream());
          EXPECT_EQ(scalars[kScale], tensor_scale(rounding, amax)) << amax << " " << shift;
          EXPECT_EQ(scalars[kInverseScale], 1.0f / tensor_scale(rounding, amax));
          rounding.given = 12.5f;
          choose_scale(rounding, changed(scalars), device_stream());
          EXPECT_EQ(scalars[kScale], tensor_scale(rounding, amax));
        }
      }
    }
  }
}

TEST(CudaScale, FactorsAreMultipliedWhereTheyLie) {
  const float first = 3, second = 0.25f;
  float found = 0;
  multiply_factors(2, given(first), given(second), changed(found), device_stream());
  EXPECT_EQ(found, 1.5f);
  multiply_factors(2, nullptr, given(second), changed(found), device_stream());
  EXPECT_EQ(found, 0.5f);
  multiply_factors(2, given(first), nullptr, changed(found), device_stream());
  EXPECT_EQ(found, 6.0f);
}

struct Shape {
  int64_t rows, columns;
};
// The last has rows of more than the emulated shared memory.
const Shape kShapes[] = {{16, 16}, {128, 128}, {144, 272}, {272, 144}, {16, 400}, {16, 4112}};

// The codes stand for the values that quantize_matrix() gives.
// Counts the first 16 of every 128 rows; `scales` are those of the grid's tiles.
CastCounts expected_counts(const Quantizer& quantizer, std::span<const bf16> x, const Shape& shape,
                           std::span<const float> scales) {
  const TileGrid grid = tile_grid(quantizer, shape.rows, shape.columns);
  const float cut = std::bit_cast<float>(rounding_ends(quantizer.format).to_largest);  // beyond it
  CastCounts counts;
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t column = 0; column < shape.columns; ++column) {
      const float value = to_float(x[static_cast<size_t>(row * shape.columns + column)]);
      const auto tile = row / grid.tile.rows * grid.columns + column / grid.tile.columns;
      const float scaled = value * scales[static_cast<size_t>(tile)];
      counts.peak =
          std::max(counts.peak,
                   std::fabs(scaled) / static_cast<float>(format_info(quantizer.format).largest));
      if (row % 128 >= 16) continue;
      counts.values += 1;
      counts.saturated += std::fabs(scaled) > cut;
      counts.flushed += value != 0 && round_to(quantizer.format, scaled) == 0;
    }
  }
  return counts;
}

void expect_codes(const Quantizer& quantizer, int log2_shift, float scale, const Shape& shape) {
  const std::vector<bf16> x = matrix(11, shape.rows, shape.columns);
  const TileGrid grid = tile_grid(quantizer, shape.rows, shape.columns);
  std::vector<bf16> y(x.size());
  std::vector<float> scales(static_cast<size_t>(grid.count()));
  quantize_matrix(quantizer, x, shape.rows, shape.columns, std::ldexp(scale, log2_shift), y,
                  scales);
  if (quantizer.rule != ScaleRule::kGiven && log2_shift != 0) {
    cpu::quantize_tiles(1, quantizer, {.log2_shift = log2_shift}, x, shape.rows, shape.columns, y,
                        scales);
  }
  std::vector<uint8_t> stored(x.size(), 0xEE), transposed(x.size(), 0xEE);
  std::vector<float> inverse(scales.size(), -1);
  Rounding rounding;
  rounding.quantizer = quantizer;
  rounding.log2_shift = log2_shift;
  CastCounts counts;
  if (quantizer.tile == TileShape{}) {
    std::vector<float> scalars = only(kScale, std::ldexp(scale, log2_shift));
    scalars[kAmax] = cpu::amax(1, x);
    cast(quantizer.format, given(x), shape.rows, shape.columns, given(scalars), changed(stored),
         changed(transposed), {changed(counts), true}, device_stream());
    inverse[0] = 1.0f / scales[0];
  } else {
    std::vector<uint32_t> scratch(static_cast<size_t>(std::max(shape.rows, shape.columns)), 77);
    cast_tiles(rounding, given(x), shape.rows, shape.columns, changed(stored), changed(transposed),
               changed(inverse), {grid.columns, 1}, changed(scratch), {changed(counts)},
               device_stream());
    // As stored alone is a kernel of its own for a scale of each row.
    std::vector<uint8_t> alone(x.size(), 0xEE);
    std::vector<float> its_inverse(scales.size(), -1);
    CastCounts its_counts;
    cast_tiles(rounding, given(x), shape.rows, shape.columns, changed(alone), nullptr,
               changed(its_inverse), {grid.columns, 1}, changed(scratch), {changed(its_counts)},
               device_stream());
    EXPECT_EQ(its_counts, counts);
    EXPECT_EQ(its_inverse, inverse);
    EXPECT_EQ(alone, stored);
  }
  for (size_t i = 0; i < scales.size(); ++i) EXPECT_EQ(inverse[i], 1.0f / scales[i]) << i;
  EXPECT_EQ(counts, expected_counts(quantizer, x, shape, scales));
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t column = 0; column < shape.columns; ++column) {
      const auto at = static_cast<size_t>(row * shape.columns + column);
      ASSERT_EQ(decode(quantizer.format, stored[at]), to_float(y[at])) << row << "," << column;
      ASSERT_EQ(transposed[static_cast<size_t>(column * shape.rows + row)], stored[at])
          << row << "," << column;
    }
  }
}

TEST(CudaCast, WholeTensorsHaveTheCodecsCodesBothWaysRound) {
  for (const Shape& shape : kShapes) {
    for (Format format : {Format::kE4m3, Format::kE5m2}) {
      expect_codes({format, {}, ScaleRule::kGiven}, 0, 37.5f, shape);
    }
  }
}

TEST(CudaCast, EveryTileHasTheScaleThatTheRuleGives) {
  for (const Shape& shape : kShapes) {
    for (const TileShape tile : {TileShape{1, 128}, {128, 1}, {128, 128}, {1, 0}, {0, 1}}) {
      for (ScaleRule rule : {ScaleRule::kFp32, ScaleRule::kPowerOfTwo}) {
        SCOPED_TRACE(testing::Message() << shape.rows << "x" << shape.columns << " tile "
                                        << tile.rows << "x" << tile.columns);
        expect_codes({Format::kE4m3, tile, rule}, 0, 1, shape);
        expect_codes({Format::kE4m3, tile, rule}, 4, 1, shape);
      }
    }
  }
}

TEST(CudaCast, EveryBf16ValueHasTheCodecsCode) {
  std::vector<bf16> x(0x10000);
  for (uint32_t i = 0; i < x.size(); ++i) x[i].bits = static_cast<uint16_t>(i);
  for (Format format : {Format::kE4m3, Format::kE5m2}) {
    for (float scale : {1.0f, 300.0f, 1e-3f}) {
      std::vector<uint8_t> codes(x.size());
      const std::vector<float> scalars = only(kScale, scale);
      // An amax that is known and nobody to count for: the second copy of a kept weight.
      cast(format, given(x), 256, 256, given(scalars), changed(codes), nullptr, {nullptr, true},
           device_stream());
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(codes[i], encode(format, to_float(x[i]) * scale)) << i;
      }
    }
  }
}

// Pieces that are whole and such as are not, rows of gate and up side by side.
TEST(CudaSwigluCast, IsSwigluAndThenTheCast) {
  for (const Shape& shape : {Shape{16, 16}, Shape{128, 256}, Shape{144, 80}, Shape{272, 144}}) {
    for (Format format : {Format::kE4m3, Format::kE5m2}) {
      const int64_t count = shape.rows * shape.columns, stride = 2 * shape.columns;
      const std::vector<bf16> both = random_bf16(3, 2 * count, 4.0f);
      const std::vector<float> scalars = only(kScale, 11.0f);
      std::vector<bf16> y(static_cast<size_t>(count)), made = y;
      std::vector<uint8_t> stored(y.size()), transposed = stored, alone = stored, now = stored,
                                             now_transposed = stored;
      float amax = 1e9f, its_amax = 1e9f;
      test::OnDevice<bf16> from(both);
      const Gated gated{from.data(), from.data() + shape.columns, stride};
      swiglu(gated.gate, gated.up, shape.rows, shape.columns, stride, changed(y), changed(amax),
             device_stream());
      cast(format, given(y), shape.rows, shape.columns, given(scalars), changed(stored),
           changed(transposed), {}, device_stream());
      CastCounts counts;
      swiglu_cast(format, gated, shape.rows, shape.columns, changed(made), changed(its_amax),
                  given(scalars), changed(now), changed(now_transposed), {changed(counts), true},
                  device_stream());
      EXPECT_EQ(counts, expected_counts({format, {}, ScaleRule::kGiven}, y, shape,
                                        std::span(scalars).subspan(kScale, 1)));
      EXPECT_EQ(now, stored);
      EXPECT_EQ(now_transposed, transposed);
      EXPECT_EQ(its_amax, amax);
      EXPECT_EQ(std::memcmp(made.data(), y.data(), y.size() * sizeof(bf16)), 0);
      swiglu_cast(format, gated, shape.rows, shape.columns, changed(made), nullptr, given(scalars),
                  nullptr, changed(alone), {}, device_stream());
      EXPECT_EQ(alone, transposed);
    }
  }
}

TEST(CudaRoundCopy, EveryFormatHasTheCodecsValues) {
  std::vector<bf16> x(0x10000), y(x.size());
  for (uint32_t i = 0; i < x.size(); ++i) x[i].bits = static_cast<uint16_t>(i);
  for (Format format : all_formats()) {
    if (format == Format::kFp32 || format == Format::kBf16) continue;
    Rounding rounding;
    rounding.quantizer.format = format;
    for (float scale : {1.0f, 37.0f}) {
      const std::vector<float> scalars = only(kScale, scale);
      round_copy(rounding, given(x), 256, 256, given(scalars), changed(y), nullptr, {},
                 device_stream());
      for (size_t i = 0; i < x.size(); ++i) {
        const float expected = round_to(format, to_float(x[i]) * scale);
        const float found = to_float(y[i]);
        ASSERT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected)))
            << format_name(format) << " of " << to_float(x[i]) * scale << ": " << found << " for "
            << expected;
      }
    }
  }
}

TEST(CudaRoundCopy, TilesAreDividedByTheirScalesAgain) {
  const Shape shape{48, 96};
  const std::vector<bf16> x = matrix(4, shape.rows, shape.columns);
  for (const Quantizer& quantizer : {Quantizer{Format::kE4m3, {1, 32}, ScaleRule::kPowerOfTwo},
                                     Quantizer{Format::kE2m1, {32, 1}, ScaleRule::kOcpFloor},
                                     Quantizer{Format::kE3m2, {1, 0}, ScaleRule::kPowerOfTwo},
                                     Quantizer{Format::kE8m3, {}, ScaleRule::kNone}}) {
    std::vector<bf16> y(x.size()), expected(x.size());
    Rounding rounding;
    rounding.quantizer = quantizer;
    rounding.log2_shift = rounding.whole_tensor() ? 0 : 2;
    const std::vector<float> scalars = only(kScale, 1);
    std::vector<uint32_t> scratch(x.size());
    CastCounts counts;
    std::vector<float> scales(
        static_cast<size_t>(tile_grid(quantizer, shape.rows, shape.columns).count()), 1.0f);
    round_copy(rounding, given(x), shape.rows, shape.columns, given(scalars), changed(y),
               changed(scratch), {changed(counts)}, device_stream());
    if (rounding.whole_tensor()) {
      cpu::quantize(1, x, quantizer.format, 1.0f, expected);
    } else {
      cpu::quantize_tiles(1, quantizer, {.log2_shift = 2, .dequantise = true}, x, shape.rows,
                          shape.columns, expected, scales);
    }
    CastCounts wanted = expected_counts(quantizer, x, shape, scales);
    if (rounding.whole_tensor()) wanted.peak = 0;  // its amax is not known
    EXPECT_EQ(counts, wanted);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i].bits, expected[i].bits) << i;
  }
}

TEST(CudaLostTerms, AreZeroAndNoOthersAre) {
  for (bool along_rows : {true, false}) {
    std::vector<uint8_t> codes(6 * 8, 7);
    lose_terms<uint8_t>(changed(codes), 6, 8, along_rows, 2, 3, device_stream());
    for (int64_t row = 0; row < 6; ++row) {
      for (int64_t column = 0; column < 8; ++column) {
        const int64_t term = along_rows ? row : column;
        EXPECT_EQ(codes[static_cast<size_t>(row * 8 + column)], term >= 2 && term < 5 ? 0 : 7);
      }
    }
  }
}

}  // namespace
}  // namespace gnomon::cuda

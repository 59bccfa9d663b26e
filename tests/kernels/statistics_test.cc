// Tensor statistics against closed forms and against a slow reference in long double that takes
// every element by itself and rounds it with the scalar codec.
#include "kernels/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "numerics/scales.h"
#include "tests/support/special_numbers.h"

namespace gnomon {
namespace {

std::vector<bf16> matrix(const std::vector<float>& values) {
  std::vector<bf16> x;
  for (float value : values) x.push_back(to_bf16(value));
  return x;
}

// Log-normal magnitudes over many binades, some zeros.
std::vector<bf16> wild(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<bf16> x;
  for (int64_t i = 0; i < count; ++i) {
    float value = normal(random) * std::exp2(4.0f * normal(random));
    x.push_back(to_bf16(random() % 50 == 0 ? 0.0f : value));
  }
  return x;
}

void expect_close(double actual, long double expected, const char* what) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(actual)) << what << " " << actual;
  } else {
    EXPECT_NEAR(actual, static_cast<double>(expected),
                1e-12 * std::abs(static_cast<double>(expected)) + 1e-300)
        << what;
  }
}

struct SampleMoments {
  long double mean, deviation, kurtosis;
};

SampleMoments moments(const std::vector<long double>& values) {
  long double n = static_cast<long double>(values.size()), sum = 0, second = 0, fourth = 0;
  for (long double v : values) sum += v;
  for (long double v : values) {
    long double square = (v - sum / n) * (v - sum / n);
    second += square;
    fourth += square * square;
  }
  return {sum / n, std::sqrt(second / n), fourth * n / (second * second)};
}

void expect_statistics(const MatrixView& x, int threads) {
  TensorStatistics actual = TensorProbe(x, threads).measure();
  std::vector<long double> finite;
  long double l1 = 0, l2 = 0, amax = 0, amin = INFINITY, row_sum = 0, row_max = 0;
  int64_t nans = 0, infinities = 0, zeros = 0, rows = 0;
  for (int64_t r = 0; r < x.rows; ++r) {
    std::vector<long double> row;
    for (int64_t c = 0; c < x.columns; ++c) {
      long double v = to_float(x.row(r)[c]);
      nans += std::isnan(v);
      infinities += std::isinf(v);
      if (!std::isfinite(v)) continue;
      zeros += v == 0;
      row.push_back(v);
      l1 += std::abs(v);
      l2 += v * v;
      amax = std::max(amax, std::abs(v));
      if (v != 0) amin = std::min(amin, std::abs(v));
    }
    finite.insert(finite.end(), row.begin(), row.end());
    if (std::ssize(row) < x.columns) continue;
    long double kurtosis = moments(row).kurtosis;
    if (std::isnan(kurtosis)) continue;
    ++rows;
    row_sum += kurtosis;
    row_max = std::max(row_max, kurtosis);
  }
  SampleMoments all = moments(finite);
  EXPECT_EQ(actual.elements, x.size());
  EXPECT_EQ(actual.nans, nans);
  EXPECT_EQ(actual.infinities, infinities);
  EXPECT_EQ(actual.zeros, zeros);
  expect_close(actual.min, *std::ranges::min_element(finite), "min");
  expect_close(actual.max, *std::ranges::max_element(finite), "max");
  expect_close(actual.amax, amax, "amax");
  expect_close(actual.amin, amin, "amin");
  EXPECT_NEAR(actual.mean, static_cast<double>(all.mean),
              1e-13 * static_cast<double>(all.deviation));
  expect_close(actual.std, all.deviation, "std");
  expect_close(actual.l1, l1, "l1");
  expect_close(actual.l2, std::sqrt(l2), "l2");
  expect_close(actual.dynamic_range, std::log2(amax / amin), "dynamic range");
  expect_close(actual.kurtosis, all.kurtosis, "kurtosis");
  expect_close(actual.token_kurtosis_mean, row_sum / static_cast<long double>(rows), "rows' mean");
  expect_close(actual.token_kurtosis_max, row_max, "rows' max");
}

TEST(TensorStatistics, OfWildTensorsAreThoseOfTheReference) {
  for (int threads : {1, 2, 3}) {
    std::vector<bf16> x = wild(37 * 129, 1);
    expect_statistics({x.data(), 37, 129}, threads);
    expect_statistics({x.data() + 5, 37, 100, 129}, threads);  // a part of wider rows
    x[7] = to_bf16(kNanF);
    x[1000] = to_bf16(kInfinityF);
    x[1001] = to_bf16(-kInfinityF);
    expect_statistics({x.data(), 37, 129}, threads);
  }
}

TEST(TensorStatistics, ClosedForms) {
  // 2^0 … 2^-9 with both signs: mean 0, Σx² = 2·(4/3)(1 − 4^-10).
  std::vector<float> values;
  for (int i = 0; i < 10; ++i) {
    values.push_back(std::ldexp(1.0f, -i));
    values.push_back(-std::ldexp(1.0f, -i));
  }
  std::vector<bf16> x = matrix(values);
  TensorStatistics s = TensorProbe({x.data(), 1, 20}, 1).measure();
  EXPECT_EQ(s.mean, 0.0);
  EXPECT_EQ(s.dynamic_range, 9.0);
  EXPECT_DOUBLE_EQ(s.l1, 4.0 * (1 - std::ldexp(1.0, -10)));
  EXPECT_DOUBLE_EQ(s.l2 * s.l2, 8.0 / 3 * (1 - std::pow(4.0, -10)));
  EXPECT_EQ(s.histogram.lowest, -9);
  EXPECT_EQ(s.histogram.bins, std::vector<int64_t>(10, 2));
  EXPECT_EQ(s.histogram.below, 0);
  // One of k elements is 1, the others 0: kurtosis (k² − 3k + 3)/(k − 1).
  std::vector<bf16> spike(100);
  spike[17] = to_bf16(1.0f);
  EXPECT_NEAR(TensorProbe({spike.data(), 1, 100}, 1).measure().kurtosis, 9703.0 / 99, 1e-10);
}

TEST(TensorStatistics, KurtosisPerTokenIsNotThatOfTheTensor) {
  // Rows of ±a and ±b: every row has kurtosis 1, the tensor has more.
  std::vector<bf16> x = matrix({1, -1, 1, -1, 100, -100, 100, -100});
  TensorStatistics s = TensorProbe({x.data(), 2, 4}, 2).measure();
  EXPECT_DOUBLE_EQ(s.token_kurtosis_mean, 1.0);
  EXPECT_DOUBLE_EQ(s.token_kurtosis_max, 1.0);
  EXPECT_GT(s.kurtosis, 1.9);
}

TEST(TensorStatistics, NothingToSayIsNan) {
  TensorStatistics empty = TensorProbe({nullptr, 0, 8}, 2).measure();
  EXPECT_EQ(empty.elements, 0);
  for (double it : {empty.min, empty.max, empty.amax, empty.amin, empty.mean, empty.std,
                    empty.dynamic_range, empty.kurtosis, empty.token_kurtosis_max}) {
    EXPECT_TRUE(std::isnan(it)) << it;
  }
  std::vector<bf16> zeros(12);
  TensorStatistics zero = TensorProbe({zeros.data(), 3, 4}, 1).measure();
  EXPECT_EQ(zero.zeros, 12);
  EXPECT_EQ(zero.amax, 0.0);
  EXPECT_EQ(zero.std, 0.0);
  EXPECT_TRUE(std::isnan(zero.amin) && std::isnan(zero.kurtosis) && std::isnan(zero.dynamic_range));
  EXPECT_TRUE(zero.histogram.bins.empty());
  std::vector<bf16> none = matrix({kNanF, kInfinityF});
  TensorStatistics nothing = TensorProbe({none.data(), 1, 2}, 1).measure();
  EXPECT_EQ(nothing.nans + nothing.infinities, 2);
  EXPECT_TRUE(std::isnan(nothing.amax) && std::isnan(nothing.mean));
}

TEST(TensorStatistics, HistogramIsBoundedAndReachesDownToDenormals) {
  // The smallest BF16, 2^-133, and the largest.
  std::vector<bf16> x = {{0x0001}, {0x8001}, {0x7F7F}};
  TensorStatistics s = TensorProbe({x.data(), 1, 3}, 1).measure();
  EXPECT_EQ(s.amin, std::ldexp(1.0, -133));
  EXPECT_EQ(s.histogram.below, 2);
  EXPECT_EQ(std::ssize(s.histogram.bins), ExponentHistogram::kBinsMax);
  EXPECT_EQ(s.histogram.lowest, 64);
  EXPECT_EQ(s.histogram.bins.back(), 1);
}

TEST(RowCosines, AreThoseOfTheReferenceAndDoNotDependOnThreads) {
  constexpr int64_t kRows = 37, kColumns = 53, kStride = 60;
  std::vector<bf16> x = wild(kRows * kStride, 6), y = wild(kRows * kColumns, 7);
  x[2 * kStride + 5] = to_bf16(kNanF);
  y[9 * kColumns] = to_bf16(kInfinityF);
  for (int64_t c = 0; c < kColumns; ++c) y[static_cast<size_t>(4 * kColumns + c)] = bf16{};
  for (int64_t c = 0; c < kColumns; ++c) {  // one row against its negative
    float value = to_float(x[static_cast<size_t>(30 * kStride + c)]);
    y[static_cast<size_t>(30 * kColumns + c)] = to_bf16(-2 * value);
  }
  long double sum = 0, largest_but_one = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    if (r == 2 || r == 4 || r == 9) continue;
    long double xs = 0, ys = 0, products = 0;
    for (int64_t c = 0; c < kColumns; ++c) {
      long double a = to_float(x[static_cast<size_t>(r * kStride + c)]);
      long double b = to_float(y[static_cast<size_t>(r * kColumns + c)]);
      xs += a * a, ys += b * b, products += a * b;
    }
    long double cosine = std::abs(products) / std::sqrt(xs * ys);
    sum += cosine;
    if (r != 30) largest_but_one = std::max(largest_but_one, cosine);
  }
  const MatrixView a{x.data(), kRows, kColumns, kStride}, b{y.data(), kRows, kColumns};
  for (int threads : {1, 3}) {
    RowCosines cosines = row_cosines(a, b, threads);
    expect_close(cosines.mean, sum / (kRows - 3), "mean");
    EXPECT_NEAR(cosines.max, 1.0, 1e-15);
  }
  EXPECT_LT(largest_but_one, 0.999);
  EXPECT_TRUE(std::isnan(row_cosines({x.data(), 0, 5}, {y.data(), 0, 5}, 1).max));
}

// ---- against a quantizer ----

void expect_comparison(const MatrixView& x, const Quantizer& quantizer, float given, int threads) {
  SCOPED_TRACE(std::string(format_name(quantizer.format)) + " " +
               std::to_string(quantizer.tile.rows) + "x" + std::to_string(quantizer.tile.columns) +
               " rule " + std::to_string(static_cast<int>(quantizer.rule)));
  std::vector<bf16> dense;
  for (int64_t r = 0; r < x.rows; ++r) dense.insert(dense.end(), x.row(r), x.row(r) + x.columns);
  TileGrid grid = tile_grid(quantizer, x.rows, x.columns);
  std::vector<bf16> y(dense.size());
  std::vector<float> scales(static_cast<size_t>(grid.count()));
  quantize_matrix(quantizer, dense, x.rows, x.columns, given, y, scales);
  const FormatInfo& info = format_info(quantizer.format);
  int64_t under = 0, saturated = 0, overflowed = 0, subnormal = 0, top = 0, nonzero = 0, finite = 0;
  long double errors = 0, xs = 0, qs = 0, products = 0;
  std::vector<int64_t> tile_top(scales.size()), tile_size(scales.size());
  std::vector<long double> low(scales.size(), INFINITY), high(scales.size(), 0);
  for (size_t i = 0; i < dense.size(); ++i) {
    int64_t r = static_cast<int64_t>(i) / x.columns, c = static_cast<int64_t>(i) % x.columns;
    auto tile = static_cast<size_t>(r / grid.tile.rows * grid.columns + c / grid.tile.columns);
    float v = to_float(dense[i]), q = to_float(y[i]), scaled = v * scales[tile];
    ++tile_size[tile];
    if (!std::isfinite(v)) high[tile] = INFINITY;
    if (std::isnan(v)) continue;
    nonzero += v != 0;
    under += v != 0 && q == 0;
    saturated += std::abs(static_cast<double>(scaled)) > info.largest;
    if (info.has_nan) overflowed += !std::isfinite(round_to(quantizer.format, scaled, false));
    subnormal += q != 0 && std::abs(static_cast<double>(q)) < info.smallest_normal;
    top += std::abs(static_cast<double>(q)) == info.largest;
    tile_top[tile] += std::abs(static_cast<double>(q)) == info.largest;
    if (!std::isfinite(v)) continue;
    ++finite;
    long double back = static_cast<long double>(q) / scales[tile];
    errors += (back - v) * (back - v);
    xs += static_cast<long double>(v) * v;
    qs += back * back;
    products += back * v;
    high[tile] = std::max(high[tile], std::abs(static_cast<long double>(v)));
    if (v != 0) low[tile] = std::min(low[tile], std::abs(static_cast<long double>(v)));
  }
  long double range_sum = 0, range_max = 0, top_max = 0;
  int64_t ranges = 0, in_top = 0;
  for (size_t t = 0; t < scales.size(); ++t) {
    in_top += 2 * tile_top[t] > tile_size[t];
    top_max = std::max(
        top_max, static_cast<long double>(tile_top[t]) / static_cast<long double>(tile_size[t]));
    if (high[t] == 0 || std::isinf(high[t])) continue;
    ++ranges;
    range_sum += std::log2(high[t] / low[t]);
    range_max = std::max(range_max, std::log2(high[t] / low[t]));
  }
  long double n = static_cast<long double>(dense.size());
  QuantizationStatistics s = TensorProbe(x, threads).compare(quantizer, given);
  EXPECT_EQ(s.tiles, grid.count());
  expect_close(s.underflow, static_cast<long double>(under) / nonzero, "underflow");
  expect_close(s.underflow_percent, 100 * under / n, "underflow_percent");
  expect_close(s.saturation, saturated / n, "saturation");
  if (info.has_nan) expect_close(s.overflow, overflowed / n, "overflow");
  expect_close(s.subnormal, subnormal / n, "subnormal");
  expect_close(s.top_code, top / n, "top_code");
  expect_close(s.top_code_tile_max, top_max, "top_code_tile_max");
  expect_close(s.tiles_in_top_code, in_top / static_cast<long double>(grid.count()), "in top");
  expect_close(s.mse, errors / finite, "mse");
  expect_close(s.relative_error, std::sqrt(errors / xs), "relative_error");
  expect_close(s.cosine, products / std::sqrt(xs * qs), "cosine");
  EXPECT_NEAR(s.sqnr_db, static_cast<double>(10 * std::log10(xs / errors)), 1e-9);
  expect_close(s.scale_min, *std::ranges::min_element(scales), "scale_min");
  expect_close(s.scale_max, *std::ranges::max_element(scales), "scale_max");
  expect_close(s.tile_range_mean, range_sum / ranges, "tile_range_mean");
  expect_close(s.tile_range_max, ranges > 0 ? range_max : NAN, "tile_range_max");
}

const std::vector<TileShape> kTiles = {{0, 0},     {1, 0},  {0, 1},  {1, 128},
                                       {128, 128}, {1, 32}, {32, 1}, {128, 1}};

TEST(QuantizationStatistics, AreThoseOfTheReferenceForEveryTileAndRule) {
  std::vector<bf16> x = wild(200 * 300, 2);
  for (TileShape tile : kTiles) {
    for (ScaleRule rule :
         {ScaleRule::kNone, ScaleRule::kFp32, ScaleRule::kPowerOfTwo, ScaleRule::kOcpFloor}) {
      for (Format format : {Format::kE4m3, Format::kE5m2}) {
        expect_comparison({x.data(), 200, 300}, {format, tile, rule}, 1.0f, 2);
      }
    }
  }
}

TEST(QuantizationStatistics, AreThoseOfTheReferenceForEveryFormat) {
  std::vector<bf16> x = wild(64 * 96, 3);
  for (Format format : all_formats()) {
    if (format == Format::kFp32 || format == Format::kBf16) continue;
    for (TileShape tile : {TileShape{0, 0}, TileShape{1, 32}}) {
      expect_comparison({x.data(), 64, 96}, {format, tile, ScaleRule::kPowerOfTwo}, 1.0f, 1);
    }
  }
}

TEST(QuantizationStatistics, PartOfWiderRowsNotFiniteValuesAndSilentTiles) {
  std::vector<bf16> x = wild(70 * 200, 4);
  x[3] = to_bf16(kNanF);
  x[5000] = to_bf16(kInfinityF);
  x[5200] = to_bf16(-kInfinityF);
  for (int64_t c = 0; c < 200; ++c) x[static_cast<size_t>(20 * 200 + c)] = bf16{};
  for (TileShape tile : kTiles) {
    for (int threads : {1, 3}) {
      expect_comparison({x.data(), 70, 150, 200}, {Format::kE4m3, tile, ScaleRule::kFp32}, 1.0f,
                        threads);
    }
  }
}

TEST(QuantizationStatistics, DenormalsAndHugeValues) {
  std::vector<bf16> x;
  for (uint16_t bits = 1; bits < 0x7F80; bits = static_cast<uint16_t>(bits + 1))
    x.push_back({bits});
  const auto n = std::ssize(x);
  for (float given : {1.0f, 0x1p60f, 0x1p-60f}) {
    expect_comparison({x.data(), 1, n}, {Format::kE5m2, {}, ScaleRule::kGiven}, given, 1);
  }
  expect_comparison({x.data(), 1, n}, {Format::kE4m3, {1, 32}, ScaleRule::kPowerOfTwo}, 1.0f, 2);
}

TEST(QuantizationStatistics, AGivenScaleIsHeldAgainstThatOfTheTensor) {
  std::vector<bf16> x = matrix({1.0f, 2.0f, 448.0f, 464.0f, 466.0f, 0x1p-10f, 0x1p-9f, 0.0f});
  Quantizer quantizer{Format::kE4m3, {}, ScaleRule::kGiven};
  QuantizationStatistics s = TensorProbe({x.data(), 2, 4}, 1).compare(quantizer, 1.0f);
  EXPECT_EQ(s.saturation, 2.0 / 8);
  EXPECT_EQ(s.overflow, 1.0 / 8);   // 464 is a tie, which goes to 448
  EXPECT_EQ(s.underflow, 1.0 / 7);  // of the elements that are not 0
  EXPECT_EQ(s.underflow_percent, 12.5);
  EXPECT_EQ(s.subnormal, 1.0 / 8);
  EXPECT_EQ(s.top_code, 3.0 / 8);
  EXPECT_EQ(s.scale_min, 1.0);
  EXPECT_EQ(s.scale_max, 1.0);
  // 466 is 466 in BF16; its own scale would be 448/466.
  EXPECT_NEAR(s.scale_error, 466.0 / 448 - 1, 1e-7);
  EXPECT_TRUE(std::isnan(
      TensorProbe({x.data(), 2, 4}, 1).compare({Format::kE4m3, {}, ScaleRule::kFp32}).scale_error));
}

TEST(QuantizationStatistics, ExactCopiesHaveInfiniteSqnrAndZerosNone) {
  std::vector<bf16> x = matrix({1.0f, -2.0f, 0.5f, 0.0f});
  QuantizationStatistics s =
      TensorProbe({x.data(), 1, 4}, 1).compare({Format::kE4m3, {}, ScaleRule::kPowerOfTwo});
  EXPECT_EQ(s.mse, 0.0);
  EXPECT_EQ(s.relative_error, 0.0);
  EXPECT_DOUBLE_EQ(s.cosine, 1.0);
  EXPECT_EQ(s.sqnr_db, kInfinityF);
  std::vector<bf16> zeros(4);
  s = TensorProbe({zeros.data(), 1, 4}, 1).compare({Format::kE4m3, {}, ScaleRule::kPowerOfTwo});
  EXPECT_TRUE(std::isnan(s.sqnr_db) && std::isnan(s.cosine) && std::isnan(s.underflow));
  EXPECT_EQ(s.mse, 0.0);
  s = TensorProbe({nullptr, 0, 4}, 1).compare({Format::kE4m3, {1, 32}, ScaleRule::kPowerOfTwo});
  EXPECT_EQ(s.tiles, 0);
  EXPECT_TRUE(std::isnan(s.mse) && std::isnan(s.scale_min));
}

TEST(QuantizationStatistics, BlocksInTheTopCodeAreSeen) {
  // A clustered block, as layer-norm gains are: all just below the maximum.
  std::vector<float> values(64, 1.0f);
  for (size_t i = 0; i < 32; ++i) values[i] = i % 2 == 0 ? 0.99609375f : 1.0f;
  for (size_t i = 33; i < 64; ++i) values[i] = 0.01f;
  std::vector<bf16> x = matrix(values);
  QuantizationStatistics s =
      TensorProbe({x.data(), 1, 64}, 1).compare({Format::kE4m3, {1, 32}, ScaleRule::kFp32});
  EXPECT_EQ(s.tiles_in_top_code, 0.5);
  EXPECT_EQ(s.top_code_tile_max, 1.0);
  EXPECT_EQ(s.top_code, 33.0 / 64);
}

TEST(QuantizationStatistics, DoNotDependOnTheNumberOfThreads) {
  std::vector<bf16> x = wild(333 * 257, 5);
  const MatrixView view{x.data(), 333, 257};
  for (TileShape tile : kTiles) {
    Quantizer quantizer{Format::kE4m3, tile, ScaleRule::kPowerOfTwo};
    QuantizationStatistics one = TensorProbe(view, 1).compare(quantizer);
    TensorStatistics measured = TensorProbe(view, 1).measure();
    for (int threads : {2, 5}) {
      TensorProbe probe(view, threads);
      QuantizationStatistics many = probe.compare(quantizer);
      EXPECT_EQ(one.mse, many.mse);
      EXPECT_EQ(one.cosine, many.cosine);
      EXPECT_EQ(one.tile_range_mean, many.tile_range_mean);
      EXPECT_EQ(measured.kurtosis, probe.measure().kurtosis);
      EXPECT_EQ(measured.token_kurtosis_mean, probe.measure().token_kurtosis_mean);
    }
  }
}

}  // namespace
}  // namespace gnomon

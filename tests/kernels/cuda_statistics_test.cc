// Statistics by the device's kernels, run by emulation on the CPU or on a GPU, against the host's
// own.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/cuda/device_statistics.h"
#include "kernels/statistics_tally.h"
#include "tests/kernels/device_support.h"
#include "tests/kernels/reference.h"

namespace gnomon::cuda::test {
namespace {

// Allows for sums of FP64 in another order, and for logarithms by another library.
constexpr double kRelative = 1e-12;

void expect_close(double found, double expected, const char* what) {
  if (std::isnan(expected) || std::isinf(expected)) {
    EXPECT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected)))
        << what << ": " << found << " and " << expected;
    return;
  }
  EXPECT_NEAR(found, expected, kRelative * std::abs(expected)) << what;
}

struct StatisticsCase {
  std::string name;
  std::vector<bf16> values;
  int64_t rows = 0, columns = 0, stride = 0, first = 0;
  MatrixView view() const { return {values.data() + first, rows, columns, stride}; }
};

// The same matrix where the kernels read it.
class There {
 public:
  explicit There(const StatisticsCase& it) : values_(it.values), view_(it.view()) {
    view_.data = values_.data() + it.first;
  }
  const MatrixView& view() const { return view_; }

 private:
  OnDevice<bf16> values_;
  MatrixView view_;
};

std::vector<bf16> wild(uint64_t key, int64_t size) {
  std::vector<bf16> x = random_bf16(key, size, 3.0f);
  for (size_t i = 0; i < x.size(); i += 7) x[i] = to_bf16(to_float(x[i]) * 0x1p-20f);
  for (size_t i = 3; i < x.size(); i += 501) x[i] = {};
  return x;
}

std::vector<bf16> all_of(int64_t size, float value) {
  return std::vector<bf16>(static_cast<size_t>(size), to_bf16(value));
}

std::vector<StatisticsCase> cases() {
  std::vector<StatisticsCase> all = {
      {"random", wild(1, 200 * 304), 200, 304},
      {"side by side", wild(2, 140 * 400), 140, 136, 400, 128},
      {"odd", wild(3, 70 * 201), 70, 149, 201, 3},
      {"one row", wild(4, 1000), 1, 1000},
      {"one column", wild(5, 300), 300, 1},
      {"one element", wild(6, 1), 1, 1},
      {"zeros", all_of(130 * 40, 0), 130, 40},
      {"constant", all_of(130 * 40, -1.7f), 130, 40},
      {"outlier", wild(7, 136 * 64), 136, 64},
      {"not finite", wild(8, 136 * 144), 136, 144},
      {"every pattern", {}, 256, 256},
  };
  all[8].values[5000] = to_bf16(1e30f);
  for (const auto& [at, bits] :
       {std::pair(5, 0x7FC0), {3000, 0x7F80}, {3001, 0xFF80}, {3002, 0xFFFF}, {9000, 0x7F80}}) {
    all[9].values[static_cast<size_t>(at)] = {static_cast<uint16_t>(bits)};
  }
  for (int bits = 0; bits < 1 << 16; ++bits) {
    all[10].values.push_back({static_cast<uint16_t>(bits * 40503)});
  }
  return all;
}

class CudaStatistics : public testing::Test {
 protected:
  HostStatistics host{2};
  DeviceStatistics device{device_memory(), device_stream()};
};

TEST_F(CudaStatistics, CountsAreTheHosts) {
  for (const StatisticsCase& it : cases()) {
    EXPECT_EQ(device.count_patterns(There(it).view()), host.count_patterns(it.view())) << it.name;
  }
}

// More of a pattern than 16 bits hold, by every block, in turns that leave no neighbours alike.
TEST_F(CudaStatistics, CountsGoBeyondSixteenBits) {
  const int64_t size = int64_t{132} * 8 * 1024 * 3 * 3;
  std::vector<bf16> x(static_cast<size_t>(size));
  for (size_t i = 0; i < x.size(); ++i) x[i] = {static_cast<uint16_t>(i % 2 == 0 ? 0x8001 : 1)};
  const auto count = [&](const std::vector<bf16>& values, int64_t rows) {
    return device.count_patterns(There({"", values, rows, size / rows}).view());
  };
  const std::vector<uint32_t> counts = count(x, size / 64);
  EXPECT_EQ(counts[1], size / 2);
  EXPECT_EQ(counts[0x8001], size / 2);
  EXPECT_EQ(count(all_of(size, 1.0f), 1)[0x3F80], size);
}

TEST_F(CudaStatistics, TheNumbersOfATensorAreTheHosts) {
  for (const StatisticsCase& it : cases()) {
    SCOPED_TRACE(it.name);
    const There there(it);
    const TensorStatistics found = TensorProbe(there.view(), device).measure();
    const TensorStatistics expected = TensorProbe(it.view(), host).measure();
    EXPECT_EQ(found.elements, expected.elements);
    EXPECT_EQ(found.nans, expected.nans);
    EXPECT_EQ(found.zeros, expected.zeros);
    EXPECT_EQ(found.histogram, expected.histogram);
    expect_close(found.kurtosis, expected.kurtosis, "kurtosis");
    expect_close(found.l2, expected.l2, "l2");
    expect_close(found.token_kurtosis_mean, expected.token_kurtosis_mean, "token_kurtosis_mean");
    expect_close(found.token_kurtosis_max, expected.token_kurtosis_max, "token_kurtosis_max");
    const std::vector<RowMoments> of_device = device.row_moments(there.view());
    const std::vector<RowMoments> of_host = host.row_moments(it.view());
    ASSERT_EQ(of_device.size(), of_host.size());
    for (size_t i = 0; i < of_host.size(); ++i) {
      EXPECT_EQ(std::isfinite(of_device[i].squares), std::isfinite(of_host[i].squares));
      if (!std::isfinite(of_host[i].squares)) continue;
      expect_close(of_device[i].squares, of_host[i].squares, "squares");
      expect_close(of_device[i].fourths, of_host[i].fourths, "fourths");
    }
  }
}

TEST_F(CudaStatistics, CosinesOfRowsAreTheHosts) {
  for (const StatisticsCase& it : cases()) {
    SCOPED_TRACE(it.name);
    const StatisticsCase other{"other", wild(11, it.rows * it.columns), it.rows, it.columns};
    const RowCosines found = row_cosines(There(it).view(), There(other).view(), device);
    const RowCosines expected = row_cosines(it.view(), other.view(), host);
    // Products of both signs cancel.
    if (std::isnan(expected.mean)) {
      EXPECT_TRUE(std::isnan(found.mean) && std::isnan(found.max));
      continue;
    }
    EXPECT_NEAR(found.mean, expected.mean, kRelative);
    EXPECT_NEAR(found.max, expected.max, kRelative);
  }
}

void expect_same(const QuantizationTally& found, const QuantizationTally& expected) {
  EXPECT_EQ(found.nonzero, expected.nonzero);
  EXPECT_EQ(found.underflowed, expected.underflowed);
  EXPECT_EQ(found.saturated, expected.saturated);
  EXPECT_EQ(found.overflowed, expected.overflowed);
  EXPECT_EQ(found.subnormal, expected.subnormal);
  EXPECT_EQ(found.top, expected.top);
  EXPECT_EQ(found.finite, expected.finite);
  EXPECT_EQ(found.tiles, expected.tiles);
  EXPECT_EQ(found.tiles_in_top, expected.tiles_in_top);
  EXPECT_EQ(found.ranges, expected.ranges);
  EXPECT_EQ(found.top_tile_max, expected.top_tile_max);
  EXPECT_EQ(found.scale_min, expected.scale_min);
  EXPECT_EQ(found.scale_max, expected.scale_max);
  expect_close(found.error_squares, expected.error_squares, "error_squares");
  expect_close(found.x_squares, expected.x_squares, "x_squares");
  expect_close(found.q_squares, expected.q_squares, "q_squares");
  expect_close(found.products, expected.products, "products");
  expect_close(found.range_sum, expected.range_sum, "range_sum");
  expect_close(found.range_max, expected.range_max, "range_max");
}

std::string named(const Quantizer& q) {
  return std::string(format_name(q.format)) + " " + std::to_string(q.tile.rows) + "x" +
         std::to_string(q.tile.columns) + " rule " + std::to_string(static_cast<int>(q.rule));
}

// The tiles of every recipe, and such that no piece of a block holds whole.
const std::vector<TileShape> kTiles = {{1, 0},  {0, 1},   {1, 128}, {128, 1}, {128, 128}, {1, 32},
                                       {32, 1}, {1, 256}, {48, 20}, {3, 5},   {72, 0}};

TEST_F(CudaStatistics, TalliesOfTilesAreTheHosts) {
  for (const StatisticsCase& it : cases()) {
    const There there(it);
    for (const TileShape& tile : kTiles) {
      const Quantizer quantizer{Format::kE4m3, tile, ScaleRule::kFp32};
      if (tile_grid(quantizer, it.rows, it.columns).count() == 1) continue;
      SCOPED_TRACE(it.name + ", " + named(quantizer));
      expect_same(device.tally_tiles(quantizer, there.view()),
                  host.tally_tiles(quantizer, it.view()));
    }
  }
}

TEST_F(CudaStatistics, TalliesOfEveryFormatAndRuleAreTheHosts) {
  StatisticsCase part = cases()[9];
  part.rows = 50;
  for (const StatisticsCase& it : {part, cases()[4]}) {
    const There there(it);
    for (Format format : all_formats()) {
      if (format == Format::kFp32 || format == Format::kBf16) continue;
      for (ScaleRule rule :
           {ScaleRule::kNone, ScaleRule::kFp32, ScaleRule::kPowerOfTwo, ScaleRule::kOcpFloor}) {
        for (const TileShape& tile : {TileShape{1, 32}, {0, 1}}) {
          const Quantizer quantizer{format, tile, rule};
          SCOPED_TRACE(it.name + ", " + named(quantizer));
          expect_same(device.tally_tiles(quantizer, there.view()),
                      host.tally_tiles(quantizer, it.view()));
        }
      }
    }
  }
}

TEST_F(CudaStatistics, RoundingIsTheHosts) {
  std::vector<float> x(1003);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(1.0f + static_cast<float>(i), -9);
  x[8] = NAN;
  std::vector<bf16> found(x.size()), expected(x.size());
  {
    OnDevice<float> from(x);
    OnDevice<bf16> to(found.size());
    device.round(from.span(), to.span());
    to.read(found);
  }
  host.round(x, expected);
  for (size_t i = 0; i < x.size(); ++i) {
    if (i == 8) {  // each processor has its own NaN
      EXPECT_TRUE(std::isnan(to_float(found[i])));
    } else {
      EXPECT_EQ(found[i].bits, expected[i].bits) << i;
    }
  }
}

}  // namespace
}  // namespace gnomon::cuda::test

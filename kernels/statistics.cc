// A BF16 tensor has at most 65536 different elements. Counting them once gives every sum of it, and
// every sum over its rounded copy while one scale holds for all: exact, and the same for any number
// of threads.
#include "kernels/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "kernels/statistics_tally.h"
#include "numerics/scales.h"

namespace gnomon {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

double ratio(double part, double whole) { return whole > 0 ? part / whole : kNothing; }

// NaN unless the row has a variance and is finite.
double kurtosis_of(const RowMoments& row, int64_t columns) {
  return ratio(row.fourths * static_cast<double>(columns), row.squares * row.squares);
}

// NaN unless both rows are finite and have a direction.
double cosine_of(const RowProducts& row) {
  const double xs = row.x_squares;
  const double ys = row.y_squares;
  if (!std::isfinite(xs) || !std::isfinite(ys) || !(xs > 0) || !(ys > 0)) return kNothing;
  return row.products / (std::sqrt(xs) * std::sqrt(ys));
}

struct MeanAndMax {
  double mean = kNothing;
  double max = kNothing;
};

// Takes only rows whose number `of_row(row)` ≥ 0 is not NaN.
template <typename Row, typename OfRow>
MeanAndMax over_rows(const std::vector<Row>& rows, OfRow of_row) {
  double sum = 0;
  double largest = 0;
  int64_t known = 0;
  for (const Row& row : rows) {
    const double number = of_row(row);
    if (std::isnan(number)) continue;
    sum += number;
    largest = std::max(largest, number);
    ++known;
  }
  if (known == 0) return {};
  return {sum / static_cast<double>(known), largest};
}

// Exponent of the smallest BF16; that of the largest is 127.
constexpr int kSmallestExponent = -133;

// `counts` is by exponent - kSmallestExponent.
ExponentHistogram histogram_of(const std::array<int64_t, 261>& counts) {
  ExponentHistogram histogram;
  int highest = 260;
  while (highest >= 0 && counts[static_cast<size_t>(highest)] == 0) --highest;
  if (highest < 0) return histogram;
  int first = std::max(0, highest + 1 - ExponentHistogram::kBinsMax);
  for (int i = 0; i < first; ++i) histogram.below += counts[static_cast<size_t>(i)];
  if (histogram.below == 0) {
    while (counts[static_cast<size_t>(first)] == 0) ++first;
  }
  histogram.lowest = first + kSmallestExponent;
  histogram.bins.assign(counts.begin() + first, counts.begin() + highest + 1);
  return histogram;
}

}  // namespace

RowCosines row_cosines(const MatrixView& x, const MatrixView& y, StatisticsSource& source) {
  GNOMON_ASSERT(x.rows == y.rows && x.columns == y.columns);
  if (x.size() == 0) return {kNothing, kNothing};
  const MeanAndMax found = over_rows(
      source.row_products(x, y), [](const RowProducts& row) { return std::abs(cosine_of(row)); });
  return {found.mean, found.max};
}

RowCosines row_cosines(const MatrixView& x, const MatrixView& y, int threads) {
  HostStatistics source(threads);
  return row_cosines(x, y, source);
}

TensorProbe::TensorProbe(const MatrixView& x, int threads)
    : TensorProbe(x, std::make_shared<HostStatistics>(threads)) {}

TensorProbe::TensorProbe(const MatrixView& x, std::shared_ptr<StatisticsSource> source)
    : TensorProbe(x, *source) {
  own_ = std::move(source);
}

TensorProbe::TensorProbe(const MatrixView& x, StatisticsSource& source) : x_(x), source_(&source) {
  GNOMON_ASSERT(x.rows >= 0 && x.columns >= 0);
  GNOMON_ASSERT(x.size() <= int64_t{std::numeric_limits<uint32_t>::max()});
  if (x.size() == 0) return;
  const std::vector<uint32_t> counts = source.count_patterns(x);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) values_.push_back({{static_cast<uint16_t>(i)}, counts[i]});
  }
}

float TensorProbe::amax() const {
  uint16_t largest = 0;
  for (const Value& it : values_) {
    largest = std::max(largest, static_cast<uint16_t>(it.value.bits & 0x7FFFu));
  }
  return largest >= 0x7F80u ? std::numeric_limits<float>::infinity() : to_float(bf16{largest});
}

double TensorProbe::range() const {
  float largest = amax();
  uint16_t smallest = 0x7FFFu;
  for (const Value& it : values_) {
    auto magnitude = static_cast<uint16_t>(it.value.bits & 0x7FFFu);
    if (magnitude > 0) smallest = std::min(smallest, magnitude);
  }
  if (!(largest > 0) || std::isinf(largest)) return kNothing;
  return std::log2(static_cast<double>(largest) / static_cast<double>(to_float(bf16{smallest})));
}

TensorStatistics TensorProbe::measure() const {
  TensorStatistics out;
  out.elements = x_.size();
  out.min = out.max = out.amax = out.amin = kNothing;
  std::array<int64_t, 261> exponents{};
  double sum = 0;
  double squares = 0;
  int64_t finite = 0;
  for (const auto& [value, count] : values_) {
    const double v = static_cast<double>(to_float(value));
    if (std::isnan(v)) out.nans += count;
    if (std::isinf(v)) out.infinities += count;
    if (!std::isfinite(v)) continue;
    const double n = static_cast<double>(count);
    finite += count;
    sum += n * v;
    out.l1 += n * std::abs(v);
    squares += n * v * v;
    out.min = std::fmin(out.min, v);
    out.max = std::fmax(out.max, v);
    out.amax = std::fmax(out.amax, std::abs(v));
    if (v == 0) {
      out.zeros += count;
      continue;
    }
    out.amin = std::fmin(out.amin, std::abs(v));
    const int exponent = std::ilogb(v) - kSmallestExponent;
    exponents[static_cast<size_t>(exponent)] += count;
  }
  const double n = static_cast<double>(finite);
  out.mean = ratio(sum, n);
  out.l2 = std::sqrt(squares);
  out.dynamic_range = std::log2(out.amax / out.amin);
  double second = 0;
  double fourth = 0;
  for (const auto& [value, count] : values_) {
    const double v = static_cast<double>(to_float(value));
    if (!std::isfinite(v)) continue;
    const double square = (v - out.mean) * (v - out.mean);
    second += static_cast<double>(count) * square;
    fourth += static_cast<double>(count) * square * square;
  }
  out.std = std::sqrt(ratio(second, n));
  out.kurtosis = ratio(fourth * n, second * second);
  MeanAndMax tokens;
  if (x_.size() > 0) {
    tokens = over_rows(source_->row_moments(x_),
                       [&](const RowMoments& row) { return kurtosis_of(row, x_.columns); });
  }
  out.token_kurtosis_mean = tokens.mean;
  out.token_kurtosis_max = tokens.max;
  out.histogram = histogram_of(exponents);
  return out;
}

QuantizationTally TensorProbe::tally_whole(const Quantizer& quantizer, float scale) const {
  const FormatInfo& info = format_info(quantizer.format);
  const float largest = static_cast<float>(info.largest);
  const double inverse = 1.0 / static_cast<double>(scale);
  QuantizationTally tally;
  for (const auto& [value, count] : values_) {
    const float x = to_float(value);
    if (std::isnan(x)) continue;
    const float scaled = x * scale;
    const float q = round_to(quantizer.format, scaled);
    tally.nonzero += x != 0 ? count : 0;
    tally.underflowed += x != 0 && q == 0 ? count : 0;
    tally.saturated += std::abs(scaled) > largest ? count : 0;
    tally.overflowed += rounds_beyond(info, scaled) ? count : 0;
    tally.subnormal += q != 0 && std::abs(q) < info.smallest_normal ? count : 0;
    tally.top += std::abs(q) == largest ? count : 0;
    if (!std::isfinite(x)) continue;
    tally.add(static_cast<double>(x), static_cast<double>(q) * inverse, static_cast<double>(count));
  }
  return tally;
}

QuantizationStatistics TensorProbe::compare(const Quantizer& quantizer, float given_scale) const {
  GNOMON_ASSERT(quantizer.format != Format::kFp32);
  QuantizationStatistics out;
  out.elements = x_.size();
  out.scale_min = out.scale_max = out.scale_error = kNothing;
  out.top_code_tile_max = out.tiles_in_top_code = kNothing;
  out.tile_range_mean = out.tile_range_max = kNothing;
  QuantizationTally tally;
  if (x_.size() > 0) {
    TileGrid grid = tile_grid(quantizer, x_.rows, x_.columns);
    GNOMON_ASSERT(quantizer.rule != ScaleRule::kGiven || grid.count() == 1);
    if (grid.count() == 1) {
      float scale = quantizer.rule == ScaleRule::kGiven
                        ? given_scale
                        : tile_scale(quantizer.rule, quantizer.format, amax());
      tally = tally_whole(quantizer, scale);
      tally.add_tile(scale, x_.size(), tally.top, range());
    } else {
      tally = source_->tally_tiles(quantizer, x_);
    }
  }
  const double n = static_cast<double>(out.elements);
  const double tiles = static_cast<double>(tally.tiles);
  out.tiles = tally.tiles;
  out.underflow = ratio(static_cast<double>(tally.underflowed), static_cast<double>(tally.nonzero));
  out.underflow_percent = 100.0 * ratio(static_cast<double>(tally.underflowed), n);
  out.saturation = ratio(static_cast<double>(tally.saturated), n);
  out.overflow = ratio(static_cast<double>(tally.overflowed), n);
  out.subnormal = ratio(static_cast<double>(tally.subnormal), n);
  out.top_code = ratio(static_cast<double>(tally.top), n);
  out.mse = ratio(tally.error_squares, static_cast<double>(tally.finite));
  out.relative_error = std::sqrt(ratio(tally.error_squares, tally.x_squares));
  out.cosine = ratio(tally.products, std::sqrt(tally.x_squares) * std::sqrt(tally.q_squares));
  out.sqnr_db =
      tally.x_squares > 0 ? 10.0 * std::log10(tally.x_squares / tally.error_squares) : kNothing;
  if (tally.tiles == 0) return out;
  out.scale_min = static_cast<double>(tally.scale_min);
  out.scale_max = static_cast<double>(tally.scale_max);
  out.top_code_tile_max = tally.top_tile_max;
  out.tiles_in_top_code = static_cast<double>(tally.tiles_in_top) / tiles;
  out.tile_range_mean = ratio(tally.range_sum, static_cast<double>(tally.ranges));
  if (tally.ranges > 0) out.tile_range_max = tally.range_max;
  if (quantizer.rule == ScaleRule::kGiven) {
    out.scale_error = static_cast<double>(given_scale) /
                          static_cast<double>(current_scale(amax(), quantizer.format)) -
                      1.0;
  }
  return out;
}

}  // namespace gnomon

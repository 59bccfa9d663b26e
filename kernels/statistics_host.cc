#include <cmath>
#include <limits>

#include "base/errors.h"
#include "kernels/statistics_tally.h"

namespace gnomon {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kPatterns = 1 << 16;

RowMoments moments_of(const bf16* row, int64_t columns) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < columns; ++c) sum += static_cast<double>(to_float(row[c]));
  if (!std::isfinite(sum)) return {kNotANumber, kNotANumber};
  const double mean = sum / static_cast<double>(columns);
  double squares = 0;
  double fourths = 0;
#pragma omp simd reduction(+ : squares, fourths)
  for (int64_t c = 0; c < columns; ++c) {
    double deviation = static_cast<double>(to_float(row[c])) - mean;
    squares += deviation * deviation;
    fourths += deviation * deviation * deviation * deviation;
  }
  return {squares, fourths};
}

RowProducts products_of(const bf16* x, const bf16* y, int64_t columns) {
  double xs = 0;
  double ys = 0;
  double products = 0;
#pragma omp simd reduction(+ : xs, ys, products)
  for (int64_t c = 0; c < columns; ++c) {
    const double a = static_cast<double>(to_float(x[c]));
    const double b = static_cast<double>(to_float(y[c]));
    xs += a * a;
    ys += b * b;
    products += a * b;
  }
  return {xs, ys, products};
}

// of_row(r) of each row.
template <typename Numbers, typename OfRow>
std::vector<Numbers> of_rows(int64_t count, int threads, OfRow of_row) {
  std::vector<Numbers> rows(static_cast<size_t>(count));
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t r = 0; r < count; ++r) rows[static_cast<size_t>(r)] = of_row(r);
  return rows;
}

}  // namespace

HostStatistics::HostStatistics(int threads) : threads_(threads) { GNOMON_ASSERT(threads >= 1); }

std::vector<uint32_t> HostStatistics::count_patterns(const MatrixView& x) {
  std::vector<uint32_t> counts(kPatterns * static_cast<size_t>(threads_));
#pragma omp parallel for num_threads(threads_) schedule(static)
  for (int thread = 0; thread < threads_; ++thread) {
    uint32_t* mine = counts.data() + kPatterns * static_cast<size_t>(thread);
    int64_t end = x.rows * (thread + 1) / threads_;
    for (int64_t r = x.rows * thread / threads_; r < end; ++r) {
      const bf16* row = x.row(r);
      for (int64_t c = 0; c < x.columns; ++c) ++mine[row[c].bits];
    }
  }
  for (size_t i = kPatterns; i < counts.size(); ++i) counts[i % kPatterns] += counts[i];
  counts.resize(kPatterns);
  return counts;
}

std::vector<RowMoments> HostStatistics::row_moments(const MatrixView& x) {
  return of_rows<RowMoments>(x.rows, threads_,
                             [&](int64_t r) { return moments_of(x.row(r), x.columns); });
}

std::vector<RowProducts> HostStatistics::row_products(const MatrixView& x, const MatrixView& y) {
  return of_rows<RowProducts>(
      x.rows, threads_, [&](int64_t r) { return products_of(x.row(r), y.row(r), x.columns); });
}

void HostStatistics::round(std::span<const float> x, std::span<bf16> y) {
  GNOMON_ASSERT(x.size() == y.size());
#pragma omp parallel for num_threads(threads_) schedule(static)
  for (size_t i = 0; i < x.size(); ++i) y[i] = to_bf16(x[i]);
}

}  // namespace gnomon

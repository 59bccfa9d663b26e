// What a tensor looks like and what rounding it to a narrow format does to it: everything that
// tells a healthy tensor from one that FP8 hurts. Pure: nothing is changed. Sums are FP64 in an
// order that neither timing nor the number of threads changes. What each number means, and which
// tool has it under which name: docs/statistics.md. Where a matrix lies on a device, the backend's
// source (statistics_source.h) reads it there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/statistics_source.h"
#include "numerics/quantizer.h"

namespace gnomon {

// A row-major matrix of BF16; `stride` is the distance between rows in elements, 0 = columns. At
// most 2^32 - 1 elements.
struct MatrixView {
  const bf16* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;

  bool operator==(const MatrixView&) const = default;
  int64_t size() const { return rows * columns; }
  const bf16* row(int64_t r) const { return data + r * (stride == 0 ? columns : stride); }
};

// How many nonzero finite elements have each binary exponent ⌊log2|x|⌋. Bounded: exponents more
// than kBinsMax − 1 under the highest are counted together in `below`.
struct ExponentHistogram {
  static constexpr int kBinsMax = 64;
  int lowest = 0;             // exponent of bins[0]
  std::vector<int64_t> bins;  // up to the highest exponent there is; empty for a tensor of zeros
  int64_t below = 0;
  bool operator==(const ExponentHistogram&) const = default;
};

// Figures of the finite elements, but for the first three counts. NaN where there is none to give:
// no finite element, for ranges no nonzero one, for kurtosis no variance.
struct TensorStatistics {
  int64_t elements = 0;
  int64_t nans = 0;
  int64_t infinities = 0;
  int64_t zeros = 0;
  double min = 0;
  double max = 0;
  double amax = 0;  // largest magnitude
  double amin = 0;  // smallest magnitude that is not zero
  double mean = 0;
  double std = 0;  // of the population: divided by n
  double l1 = 0;
  double l2 = 0;
  double dynamic_range = 0;  // log2(amax/amin)
  double kurtosis = 0;       // E(x − mean)⁴/std⁴; 3 for a normal distribution
  // The same of each row (of activations and gradients: of each token) that has a variance and
  // nothing but finite elements.
  double token_kurtosis_mean = 0;
  double token_kurtosis_max = 0;
  ExponentHistogram histogram;
};

// x against q/s, where q are the rounded values and s the scales of their tiles. Shares are of all
// elements unless said; errors are of the finite elements; NaN where there is nothing to say.
struct QuantizationStatistics {
  int64_t elements = 0;
  int64_t tiles = 0;
  double underflow = 0;          // of the nonzero elements, those that became zero
  double underflow_percent = 0;  // 100·(nonzero(x) − nonzero(q))/n, as TransformerEngine has it
  double saturation = 0;         // |x·s| beyond the largest finite value
  double overflow = 0;           // would be NaN or Inf if the format did not saturate
  double subnormal = 0;          // became a subnormal number of the format
  double top_code = 0;           // has the largest magnitude of the format after rounding
  double top_code_tile_max = 0;  // the largest such share within a tile
  double tiles_in_top_code = 0;  // tiles of whose elements more than half have it, of all tiles
  double mse = 0;
  double relative_error = 0;  // ‖q/s − x‖/‖x‖
  double cosine = 0;
  double sqnr_db = 0;  // 10·log10(Σx²/Σ(q/s − x)²); +Inf when nothing was lost
  double scale_min = 0;
  double scale_max = 0;
  double tile_range_mean = 0;  // log2(amax/amin) within a tile, over the tiles that have one
  double tile_range_max = 0;
  double scale_error = 0;  // given scale/(format_max/amax) − 1; NaN unless the scale was given
};

// |cos| between row i of one matrix and row i of another of the same shape, over the rows where
// both have a direction: neither zero nor with NaN or Inf. NaN where there is none.
struct RowCosines {
  double mean = 0;
  double max = 0;
};
RowCosines row_cosines(const MatrixView& x, const MatrixView& y, StatisticsSource& source);
RowCosines row_cosines(const MatrixView& x, const MatrixView& y, int threads);  // on the host

struct QuantizationTally;

// A tensor that was counted once, for any number of questions. The matrix must stay as it is while
// this object is used.
class TensorProbe {
 public:
  // `source` is that of the memory that the matrix lies in, and must outlive this. A matrix may be
  // empty.
  TensorProbe(const MatrixView& x, StatisticsSource& source);
  // A matrix on the host. `threads` ≥ 1.
  TensorProbe(const MatrixView& x, int threads);

  TensorStatistics measure() const;
  // As quantize_matrix would do it; `given_scale` is for ScaleRule::kGiven alone. Any format but
  // kFp32. Costs next to nothing where one scale is for the whole matrix, otherwise a pass over the
  // matrix.
  QuantizationStatistics compare(const Quantizer& quantizer, float given_scale = 1.0f) const;
  // Largest magnitude, +Inf where there is NaN or Inf: what scales are chosen by.
  float amax() const;

 private:
  struct Value {
    bf16 value;
    int64_t count;
  };
  TensorProbe(const MatrixView& x, std::shared_ptr<StatisticsSource> source);
  double range() const;  // log2(amax/amin); NaN where there is NaN or Inf, or nothing but zeros
  QuantizationTally tally_whole(const Quantizer& quantizer, float scale) const;

  MatrixView x_;
  std::shared_ptr<StatisticsSource> own_;
  StatisticsSource* source_;
  std::vector<Value> values_;  // each bit pattern that occurs, in their order
};

}  // namespace gnomon

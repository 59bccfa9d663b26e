// Reads tensors where they lie and counts what the numbers of statistics.h follow from. Each
// backend has one for its own memory; what is made of the counts is made on the host, once for all
// of them. Integers are the same whoever counts; sums of FP64 differ in the order in which they are
// added, which is one and the same each time for each source.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "numerics/quantizer.h"

namespace gnomon {

struct MatrixView;
struct QuantizationTally;

// Σ(x − mean)² and Σ(x − mean)⁴ of a row, or NaN where an element is not finite.
struct RowMoments {
  double squares = 0;
  double fourths = 0;
};

// Σx², Σy², Σx·y of a row of two matrices.
struct RowProducts {
  double x_squares = 0;
  double y_squares = 0;
  double products = 0;
};

// Matrices lie in the source's memory, the results on the host.
class StatisticsSource {
 public:
  virtual ~StatisticsSource() = default;

  // How often each of the 65,536 bit patterns occurs.
  virtual std::vector<uint32_t> count_patterns(const MatrixView& x) = 0;
  // One result for each row. The matrix has columns.
  virtual std::vector<RowMoments> row_moments(const MatrixView& x) = 0;
  // The two have the same shape.
  virtual std::vector<RowProducts> row_products(const MatrixView& x, const MatrixView& y) = 0;
  // What rounding does to a matrix that is not empty, with a scale for each tile: more than one
  // tile, and no rule that is given the scale.
  virtual QuantizationTally tally_tiles(const Quantizer& quantizer, const MatrixView& x) = 0;
  // y = x rounded, both in the source's memory.
  virtual void round(std::span<const float> x, std::span<bf16> y) = 0;
};

// Reads matrices in the host's memory. `threads` ≥ 1; no number depends on it.
class HostStatistics final : public StatisticsSource {
 public:
  explicit HostStatistics(int threads);

  std::vector<uint32_t> count_patterns(const MatrixView& x) override;
  std::vector<RowMoments> row_moments(const MatrixView& x) override;
  std::vector<RowProducts> row_products(const MatrixView& x, const MatrixView& y) override;
  QuantizationTally tally_tiles(const Quantizer& quantizer, const MatrixView& x) override;
  void round(std::span<const float> x, std::span<bf16> y) override;

 private:
  int threads_;
};

}  // namespace gnomon

// What the numbers of tensor statistics follow from, counted and summed up on the device (the
// meanings are those of kernels/statistics_source.h). Matrices, scratch and results lie in the
// device's memory; results do not depend on timing. Every function returns when the work is on the
// stream.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/statistics.h"
#include "kernels/statistics_source.h"
#include "kernels/statistics_tally.h"

namespace gnomon::cuda {

inline constexpr int64_t kPatterns = 1 << 16;

// counts[kPatterns]. The matrix is not empty, as everywhere here.
void count_patterns(const MatrixView& x, uint32_t* counts, Stream stream);

// moments[rows] and products[rows]. A matrix has fewer than 2^31 rows and columns, here and below.
void row_moments(const MatrixView& x, RowMoments* moments, Stream stream);
void row_products(const MatrixView& x, const MatrixView& y, RowProducts* products, Stream stream);

// How many tallies tally_tiles() makes, which its caller adds up in their order, and how many
// numbers of scratch it needs.
struct TallyNeeds {
  int64_t tallies = 0;
  int64_t scratch = 0;
};
TallyNeeds tally_needs(const Quantizer& quantizer, int64_t rows, int64_t columns);
// The quantizer's rule is not kGiven. Tiles of one element are for matrices of few elements.
void tally_tiles(const Quantizer& quantizer, const MatrixView& x, QuantizationTally* tallies,
                 uint32_t* scratch, Stream stream);

}  // namespace gnomon::cuda

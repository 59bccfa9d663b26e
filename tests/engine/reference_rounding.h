// Rounding and scales of the reference model, in double, by the words of docs/recipes.md.
#pragma once

#include <cstdint>
#include <string>

#include "numerics/quantizer.h"
#include "protocol/precision_plan.h"
#include "tests/engine/reference_model.h"

namespace gnomon::test {

// Index of an element of a row-major matrix.
inline size_t at(int64_t row, int64_t width, int64_t column) {
  return static_cast<size_t>(row * width + column);
}

double largest_of(Format format);
// How a GEMM of this precision quantises "input", "weight" or "gradient".
Quantizer description(const GemmPrecision& precision, Gemm gemm, const std::string& tensor,
                      Format format);
double own_scale(ScaleRule rule, double largest, double amax);

}  // namespace gnomon::test

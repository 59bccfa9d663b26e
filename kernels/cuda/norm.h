// RMSNorm on the device (the meanings are those of BackendOf). Rows are dense, their width a
// multiple of 8 and at most kNormWidthMax. Every function returns when the work is on the stream.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "numerics/formats.h"

namespace gnomon::cuda {

inline constexpr int64_t kNormWidthMax = 16'384;
inline constexpr int kHeadWidthMax = 256;

// `x` may be null, `sum` may be residual.
void add_rms_norm(const bf16* residual, const bf16* x, const bf16* w, float eps, int64_t rows,
                  int64_t width, bf16* sum, bf16* y, float* rstd, float* amax, Stream stream);

// Floats of scratch that rms_norm_backward needs.
int64_t rms_norm_scratch(int64_t rows, int64_t width);
void rms_norm_backward(const bf16* residual, const bf16* w, const float* rstd, const bf16* dy,
                       int64_t rows, int64_t width, bf16* d_residual, float* dw, float* scratch,
                       float* amax, Stream stream);

// The norm of each head of `width` elements, a multiple of 8 up to kHeadWidthMax; rows of heads are
// `stride` apart, a multiple of 8 as well, and dense in `before`.
void norm_heads(bf16* x, int64_t rows, int heads, const bf16* w, int64_t width, float eps,
                int64_t stride, bf16* before, float* rstd, Stream stream);
int64_t norm_heads_scratch(int64_t count, int64_t width);  // floats, for `count` heads
void norm_heads_backward(const bf16* before, const bf16* w, const float* rstd, bf16* dy,
                         int64_t rows, int heads, int64_t width, int64_t stride, float* dw,
                         float* scratch, Stream stream);

// sums[column] += Σ over `parts` rows of partials[parts, width], in the order of the rows.
void add_partials(const float* partials, int64_t parts, int64_t width, float* sums, Stream stream);

}  // namespace gnomon::cuda

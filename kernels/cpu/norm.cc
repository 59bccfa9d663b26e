// RMSNorm (Zhang & Sennrich 2019) with the residual addition before it: y = x/√(mean x² + ε) · w.
#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "kernels/cpu/ops.h"

namespace gnomon::cpu {
namespace {

template <class E>
void add_row(const E* residual, const E* __restrict x, E* sum, int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i)
    sum[i] = from_float<E>(to_float(residual[i]) + to_float(x[i]));
}

template <class E>
float normalise_row(const E* __restrict residual, const E* __restrict w, float eps, E* __restrict y,
                    int64_t width) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) sum += to_float(residual[i]) * to_float(residual[i]);
  float rstd = 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i)
    y[i] = from_float<E>(to_float(residual[i]) * rstd * to_float(w[i]));
  return rstd;
}

// With x̂ = x·rstd and g = dy·w: dx = rstd·(g − x̂·mean(g·x̂)), dw += dy·x̂.
template <class E>
void backward_row(const E* __restrict residual, const E* __restrict w, float rstd,
                  const E* __restrict dy, E* __restrict d_residual, float* __restrict dw,
                  int64_t width) {
  float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < width; ++i) {
    float product = to_float(dy[i]) * (to_float(residual[i]) * rstd);
    dw[i] += product;
    dot += product * to_float(w[i]);
  }
  float mean = dot / static_cast<float>(width);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    float gradient =
        rstd * (to_float(dy[i]) * to_float(w[i]) - to_float(residual[i]) * rstd * mean);
    d_residual[i] = from_float<E>(to_float(d_residual[i]) + gradient);
  }
}

}  // namespace

template <class E>
void add_rms_norm(int threads, std::span<const E> residual, std::span<const E> x,
                  std::span<const E> w, float eps, std::span<E> sum, std::span<E> y,
                  std::span<float> rstd) {
  int64_t width = std::ssize(w);
  int64_t rows = std::ssize(rstd);
  GNOMON_ASSERT(std::ssize(residual) == rows * width && std::ssize(y) == rows * width);
  GNOMON_ASSERT(sum.size() == residual.size());
  GNOMON_ASSERT(x.empty() || x.size() == residual.size());
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    const E* before = residual.data() + row * width;
    E* values = sum.data() + row * width;
    if (!x.empty()) {
      add_row(before, x.data() + row * width, values, width);
    } else if (values != before) {
      std::copy_n(before, width, values);
    }
    rstd[row] = normalise_row(values, w.data(), eps, y.data() + row * width, width);
  }
}

template <class E>
void rms_norm_backward(int threads, std::span<const E> residual, std::span<const E> w,
                       std::span<const float> rstd, std::span<const E> dy, std::span<E> d_residual,
                       std::span<float> dw, std::span<float> partials) {
  int64_t width = std::ssize(w);
  int64_t rows = std::ssize(rstd);
  GNOMON_ASSERT(std::ssize(residual) == rows * width && dy.size() == residual.size());
  GNOMON_ASSERT(d_residual.size() == residual.size() && std::ssize(dw) == width);
  GNOMON_ASSERT(std::ssize(partials) >= threads * width);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    float* partial = partials.data() + thread * width;
    std::fill_n(partial, width, 0.0f);
    Range range = share_of(rows, thread, threads);
    for (int64_t row = range.begin; row < range.end; ++row) {
      int64_t at = row * width;
      backward_row(residual.data() + at, w.data(), rstd[row], dy.data() + at,
                   d_residual.data() + at, partial, width);
    }
  }
  for (int thread = 0; thread < threads; ++thread) {
    const float* partial = partials.data() + thread * width;
    for (int64_t i = 0; i < width; ++i) dw[i] += partial[i];
  }
}

#define GNOMON_INSTANTIATE(E)                                                                    \
  template void add_rms_norm<E>(int, std::span<const E>, std::span<const E>, std::span<const E>, \
                                float, std::span<E>, std::span<E>, std::span<float>);            \
  template void rms_norm_backward<E>(int, std::span<const E>, std::span<const E>,                \
                                     std::span<const float>, std::span<const E>, std::span<E>,   \
                                     std::span<float>, std::span<float>);
GNOMON_INSTANTIATE(bf16)
GNOMON_INSTANTIATE(float)

}  // namespace gnomon::cpu

// RMSNorm of each head on its own, in the rows where the products left them. The rows' code is
// apart from norm.cc's: shared, the compiler would order that one's FP32 sums anew.
#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "kernels/cpu/ops.h"

namespace gnomon::cpu {
namespace {

template <class E>
float norm_head(const E* __restrict before, const E* __restrict w, float eps, E* __restrict y,
                int64_t width) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) sum += to_float(before[i]) * to_float(before[i]);
  const float rstd = 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i)
    y[i] = from_float<E>(to_float(before[i]) * rstd * to_float(w[i]));
  return rstd;
}

// With x̂ = x·rstd and g = dy·w: dx = rstd·(g − x̂·mean(g·x̂)), in the place of dy, dw += dy·x̂.
template <class E>
void norm_head_backward(const E* __restrict x, const E* __restrict w, float rstd, E* __restrict dy,
                        float* __restrict dw, int64_t width) {
  float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < width; ++i) {
    const float product = to_float(dy[i]) * (to_float(x[i]) * rstd);
    dw[i] += product;
    dot += product * to_float(w[i]);
  }
  const float mean = dot / static_cast<float>(width);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i)
    dy[i] = from_float<E>(rstd * (to_float(dy[i]) * to_float(w[i]) - to_float(x[i]) * rstd * mean));
}

}  // namespace

template <class E>
void norm_heads(int threads, E* x, int64_t n, int heads, std::span<const E> w, float eps,
                int64_t stride, std::span<E> before, std::span<float> rstd) {
  const int64_t width = std::ssize(w), count = n * heads;
  const int64_t apart = row_stride(stride, heads * width);
  GNOMON_ASSERT(std::ssize(before) == count * width && std::ssize(rstd) == count);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t head = 0; head < count; ++head) {
    E* values = x + head / heads * apart + head % heads * width;
    E* kept = before.data() + head * width;
    std::copy_n(values, width, kept);
    rstd[head] = norm_head(kept, w.data(), eps, values, width);
  }
}

template <class E>
void norm_heads_backward(int threads, std::span<const E> before, std::span<const E> w,
                         std::span<const float> rstd, E* dy, int64_t n, int heads, int64_t stride,
                         std::span<float> dw, std::span<float> partials) {
  const int64_t width = std::ssize(w), count = n * heads;
  const int64_t apart = row_stride(stride, heads * width);
  GNOMON_ASSERT(std::ssize(before) == count * width && std::ssize(rstd) == count);
  GNOMON_ASSERT(std::ssize(dw) == width && std::ssize(partials) >= threads * width);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    float* partial = partials.data() + thread * width;
    std::fill_n(partial, width, 0.0f);
    const Range range = share_of(count, thread, threads);
    for (int64_t head = range.begin; head < range.end; ++head) {
      norm_head_backward(before.data() + head * width, w.data(), rstd[head],
                         dy + head / heads * apart + head % heads * width, partial, width);
    }
  }
  for (int thread = 0; thread < threads; ++thread) {
    const float* partial = partials.data() + thread * width;
    for (int64_t i = 0; i < width; ++i) dw[i] += partial[i];
  }
}

#define GNOMON_FOR_HEADS(E)                                                               \
  template void norm_heads<E>(int, E*, int64_t, int, std::span<const E>, float, int64_t,  \
                              std::span<E>, std::span<float>);                            \
  template void norm_heads_backward<E>(int, std::span<const E>, std::span<const E>,       \
                                       std::span<const float>, E*, int64_t, int, int64_t, \
                                       std::span<float>, std::span<float>);
GNOMON_FOR_HEADS(bf16)
GNOMON_FOR_HEADS(float)
#undef GNOMON_FOR_HEADS

}  // namespace gnomon::cpu

// Bias, rotary position embedding and SwiGLU, forward and backward.
#include <algorithm>

#include "base/errors.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/vector_math.h"

namespace gnomon::cpu {
namespace {

constexpr int64_t kBlock = 4096;

uint16_t& bits_of(bf16& value) { return value.bits; }
uint16_t bits_of(const bf16& value) { return value.bits; }
float& bits_of(float& value) { return value; }
float bits_of(const float& value) { return value; }

template <class E>
void swiglu_row(const E* __restrict gate, const E* __restrict up, E* __restrict y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    float g = to_float(gate[i]);
    y[i] = from_float<E>(g * fast_sigmoid(g) * to_float(up[i]));
  }
}

// d silu(g) = σ(g)·(1 + g·(1 − σ(g)))
template <class E>
void swiglu_backward_row(const E* gate, const E* up, const E* dy, E* dgate, E* dup, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    float g = to_float(gate[i]);
    float sigmoid = fast_sigmoid(g);
    float gradient = to_float(dy[i]);
    float d_silu = sigmoid * (1.0f + g * (1.0f - sigmoid));
    // Plain numbers, since these may be gate and up themselves: the compiler sees through no more.
    auto dg = bits_of(from_float<E>(gradient * to_float(up[i]) * d_silu));
    auto du = bits_of(from_float<E>(gradient * g * sigmoid));
    bits_of(dgate[i]) = dg;
    bits_of(dup[i]) = du;
  }
}

template <class E>
void rotate_head(E* __restrict first, E* __restrict second, const float* __restrict cosines,
                 const float* __restrict sines, float sign, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    float a = to_float(first[i]);
    float b = to_float(second[i]);
    float sine = sign * sines[i];
    first[i] = from_float<E>(a * cosines[i] - b * sine);
    second[i] = from_float<E>(b * cosines[i] + a * sine);
  }
}

}  // namespace

template <class E>
void round_sum(int threads, std::span<const float> x, std::span<E> y) {
  GNOMON_ASSERT(x.size() == y.size());
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    Range range = share_of(std::ssize(x), thread, threads, kBlock);
    const float* __restrict from = x.data();
    E* __restrict to = y.data();
#pragma omp simd
    for (int64_t i = range.begin; i < range.end; ++i) to[i] = from_float<E>(from[i]);
  }
}

template <class E>
void add_bias(int threads, E* y, int64_t n, std::span<const E> bias, int64_t stride) {
  int64_t width = std::ssize(bias);
  stride = row_stride(stride, width);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < n; ++row) {
    E* __restrict values = y + row * stride;
    const E* __restrict added = bias.data();
#pragma omp simd
    for (int64_t i = 0; i < width; ++i)
      values[i] = from_float<E>(to_float(values[i]) + to_float(added[i]));
  }
}

template <class E>
void bias_backward(int threads, const E* dy, int64_t n, std::span<float> db, int64_t stride,
                   std::span<float> partials) {
  int64_t width = std::ssize(db);
  stride = row_stride(stride, width);
  GNOMON_ASSERT(std::ssize(partials) >= threads * width);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    float* __restrict partial = partials.data() + thread * width;
    std::fill_n(partial, width, 0.0f);
    Range range = share_of(n, thread, threads);
    for (int64_t row = range.begin; row < range.end; ++row) {
      const E* __restrict values = dy + row * stride;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) partial[i] += to_float(values[i]);
    }
  }
  for (int thread = 0; thread < threads; ++thread) {
    const float* partial = partials.data() + thread * width;
    for (int64_t i = 0; i < width; ++i) db[i] += partial[i];
  }
}

template <class E>
void rope(int threads, E* x, int64_t n, int64_t tokens_per_sequence, int heads, int head_dim,
          std::span<const float> cosines, std::span<const float> sines, bool inverse,
          int64_t stride) {
  stride = row_stride(stride, int64_t{heads} * head_dim);
  int64_t half = head_dim / 2;
  GNOMON_ASSERT(head_dim % 2 == 0 && n % tokens_per_sequence == 0);
  float sign = inverse ? -1.0f : 1.0f;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < n; ++row) {
    int64_t at = row % tokens_per_sequence * half;
    for (int head = 0; head < heads; ++head) {
      E* values = x + row * stride + int64_t{head} * head_dim;
      rotate_head(values, values + half, cosines.data() + at, sines.data() + at, sign, half);
    }
  }
}

template <class E>
void swiglu(int threads, const E* gate, const E* up, int64_t n, int64_t width, int64_t stride,
            E* y) {
  stride = row_stride(stride, width);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < n; ++row) {
    swiglu_row(gate + row * stride, up + row * stride, y + row * width, width);
  }
}

template <class E>
void swiglu_backward(int threads, const E* gate, const E* up, const E* dy, int64_t n, int64_t width,
                     int64_t stride, E* dgate, E* dup, int64_t stride_d) {
  stride = row_stride(stride, width);
  stride_d = row_stride(stride_d, width);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < n; ++row) {
    swiglu_backward_row(gate + row * stride, up + row * stride, dy + row * width,
                        dgate + row * stride_d, dup + row * stride_d, width);
  }
}

// NOLINTBEGIN(bugprone-macro-parentheses): E is a type.
#define GNOMON_INSTANTIATE(E)                                                                    \
  template void round_sum<E>(int, std::span<const float>, std::span<E>);                         \
  template void add_bias<E>(int, E*, int64_t, std::span<const E>, int64_t);                      \
  template void bias_backward<E>(int, const E*, int64_t, std::span<float>, int64_t,              \
                                 std::span<float>);                                              \
  template void rope<E>(int, E*, int64_t, int64_t, int, int, std::span<const float>,             \
                        std::span<const float>, bool, int64_t);                                  \
  template void swiglu<E>(int, const E*, const E*, int64_t, int64_t, int64_t, E*);               \
  template void swiglu_backward<E>(int, const E*, const E*, const E*, int64_t, int64_t, int64_t, \
                                   E*, E*, int64_t);
// NOLINTEND(bugprone-macro-parentheses)
GNOMON_INSTANTIATE(bf16)
GNOMON_INSTANTIATE(float)

}  // namespace gnomon::cpu

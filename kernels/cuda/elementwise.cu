#include <algorithm>

#include "base/errors.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/vectors.h"

namespace gnomon::cuda {
namespace {

constexpr int64_t kRowsOfAPart = 256;  // that one thread sums up in bias_backward

__global__ void round_sum_kernel(const float* __restrict__ x, int64_t count, bf16* y) {
  const int64_t i = global_thread() * kVector;
  if (i + kVector <= count) {
    Eight eight;
    for (int k = 0; k < kVector; ++k) eight[k] = x[i + k];
    store_eight(y + i, eight);
  } else {
    for (int64_t k = i; k < count; ++k) y[k] = rounded(x[k]);
  }
}

__global__ void add_bias_kernel(bf16* y, int64_t rows, const bf16* __restrict__ bias, int64_t width,
                                int64_t stride) {
  const int64_t vectors = width / kVector;
  const int64_t i = global_thread();
  if (i >= rows * vectors) return;
  const int64_t column = i % vectors * kVector;
  bf16* at = y + i / vectors * stride + column;
  Eight values = load_eight(at);
  const Eight added = load_eight(bias + column);
  for (int k = 0; k < kVector; ++k) values[k] += added[k];
  store_eight(at, values);
}

// partials[part, width]: the sums of kRowsOfAPart rows each.
__global__ void bias_partials_kernel(const bf16* __restrict__ dy, int64_t rows, int64_t width,
                                     int64_t stride, float* partials) {
  const int64_t column = global_thread() * kVector;
  if (column >= width) return;
  const int64_t first = int64_t{blockIdx.y} * kRowsOfAPart;
  const int64_t end = first + kRowsOfAPart < rows ? first + kRowsOfAPart : rows;
  Eight sum;
  for (int64_t row = first; row < end; ++row) {
    const Eight values = load_eight(dy + row * stride + column);
    for (int k = 0; k < kVector; ++k) sum[k] += values[k];
  }
  for (int k = 0; k < kVector; ++k) partials[int64_t{blockIdx.y} * width + column + k] = sum[k];
}

// One pair of values, half a head apart, turned by an angle.
__device__ inline void turn(float& a, float& b, float cosine, float sine) {
  const float first = a;
  a = a * cosine - b * sine;
  b = b * cosine + first * sine;
}

// A block takes a row. With kVectors a thread turns eight neighbouring pairs.
template <bool kVectors>
__global__ void rope_kernel(bf16* x, int64_t tokens, int heads, int head_dim,
                            const float* __restrict__ cosines, const float* __restrict__ sines,
                            float sign, int64_t stride) {
  constexpr int kStep = kVectors ? kVector : 1;
  const int half = head_dim / 2, steps = half / kStep;
  const int64_t row = blockIdx.x, angles = row % tokens * half;
  const int count = heads * steps;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int at = i % steps * kStep;
    bf16* first = x + row * stride + i / steps * head_dim + at;
    bf16* second = first + half;
    if constexpr (kVectors) {
      Eight a = load_eight(first), b = load_eight(second);
      const Eight cosine = load_eight(cosines + angles + at),
                  sine = load_eight(sines + angles + at);
      for (int k = 0; k < kVector; ++k) turn(a[k], b[k], cosine[k], sign * sine[k]);
      store_eight(first, a);
      store_eight(second, b);
    } else {
      float a = value_of(*first), b = value_of(*second);
      turn(a, b, cosines[angles + at], sign * sines[angles + at]);
      *first = rounded(a);
      *second = rounded(b);
    }
  }
}

__global__ void swiglu_kernel(const bf16* __restrict__ gate, const bf16* __restrict__ up,
                              int64_t rows, int64_t width, int64_t stride, bf16* y, float* amax) {
  GNOMON_SHARED(uint32_t, room, [kWarp]);
  const int64_t vectors = width / kVector;
  const int64_t i = global_thread();
  uint32_t largest = 0;
  if (i < rows * vectors) {
    const int64_t column = i % vectors * kVector, at = i / vectors * stride + column;
    largest = store_eight(y + i * kVector, swiglu_of(load_eight(gate + at), load_eight(up + at)));
  }
  report_largest(largest, room, amax);
}

// d silu(g) = σ(g)·(1 + g·(1 − σ(g))). dgate and dup may be gate and up.
__global__ void swiglu_backward_kernel(const bf16* gate, const bf16* up,
                                       const bf16* __restrict__ dy, int64_t rows, int64_t width,
                                       int64_t stride, bf16* dgate, bf16* dup, int64_t stride_d,
                                       float* amax_gate, float* amax_up) {
  GNOMON_SHARED(uint32_t, room, [kWarp]);
  const int64_t vectors = width / kVector;
  const int64_t i = global_thread();
  uint32_t largest_gate = 0, largest_up = 0;
  if (i < rows * vectors) {
    const int64_t row = i / vectors, column = i % vectors * kVector;
    const Eight g = load_eight(gate + row * stride + column);
    const Eight u = load_eight(up + row * stride + column);
    const Eight d = load_eight(dy + i * kVector);
    Eight dg, du;
    for (int k = 0; k < kVector; ++k) {
      const float s = sigmoid(g[k]);
      dg[k] = d[k] * u[k] * (s * (1.0f + g[k] * (1.0f - s)));
      du[k] = d[k] * g[k] * s;
    }
    largest_gate = store_eight(dgate + row * stride_d + column, dg);
    largest_up = store_eight(dup + row * stride_d + column, du);
  }
  report_largest(largest_gate, room, amax_gate);
  report_largest(largest_up, room, amax_up);
}

Grid for_work(int64_t work) {
  return {.blocks_x = blocks_for(work, kThreads), .threads = kThreads};
}

}  // namespace

void clear_memory(void* memory, int64_t bytes, Stream stream) {
  if (bytes > 0) clear(memory, bytes, stream);
}

void forget_amax(float* amax, Stream stream) {
  if (amax != nullptr) clear(amax, sizeof(float), stream);
}

void round_sum(const float* x, int64_t count, bf16* y, Stream stream) {
  launch("round_sum", round_sum_kernel, for_work(blocks_for(count, kVector)), stream, x, count, y);
}

void add_bias(bf16* y, int64_t rows, const bf16* bias, int64_t width, int64_t stride,
              Stream stream) {
  GNOMON_ASSERT(width % kVector == 0 && stride % kVector == 0);
  launch("add_bias", add_bias_kernel, for_work(rows * width / kVector), stream, y, rows, bias,
         width, stride);
}

int64_t bias_scratch(int64_t rows, int64_t width) { return blocks_for(rows, kRowsOfAPart) * width; }

void bias_backward(const bf16* dy, int64_t rows, float* db, int64_t width, int64_t stride,
                   float* scratch, Stream stream) {
  GNOMON_ASSERT(width % kVector == 0 && stride % kVector == 0);
  const int64_t parts = blocks_for(rows, kRowsOfAPart);
  Grid grid = for_work(width / kVector);
  grid.blocks_y = parts;
  launch("bias_partials", bias_partials_kernel, grid, stream, dy, rows, width, stride, scratch);
  add_partials(scratch, parts, width, db, stream);
}

void rope(bf16* x, int64_t rows, int64_t tokens, int heads, int head_dim, const float* cosines,
          const float* sines, bool inverse, int64_t stride, Stream stream) {
  GNOMON_ASSERT(head_dim % 2 == 0 && rows % tokens == 0);
  const bool vectors = head_dim % (2 * kVector) == 0 && stride % kVector == 0 &&
                       reinterpret_cast<uintptr_t>(x) % sizeof(Bits128) == 0;
  const int64_t steps = int64_t{heads} * head_dim / 2 / (vectors ? kVector : 1);
  const auto whole_warps = static_cast<int>(blocks_for(steps, kWarp) * kWarp);
  launch("rope", vectors ? rope_kernel<true> : rope_kernel<false>,
         {.blocks_x = rows, .threads = std::min(kThreads, whole_warps)}, stream, x, tokens, heads,
         head_dim, cosines, sines, inverse ? -1.0f : 1.0f, stride);
}

void swiglu(const bf16* gate, const bf16* up, int64_t rows, int64_t width, int64_t stride, bf16* y,
            float* amax, Stream stream) {
  forget_amax(amax, stream);
  GNOMON_ASSERT(width % kVector == 0 && stride % kVector == 0);
  launch("swiglu", swiglu_kernel, for_work(rows * width / kVector), stream, gate, up, rows, width,
         stride, y, amax);
}

void swiglu_backward(const bf16* gate, const bf16* up, const bf16* dy, int64_t rows, int64_t width,
                     int64_t stride, bf16* dgate, bf16* dup, int64_t stride_d, float* amax_gate,
                     float* amax_up, Stream stream) {
  forget_amax(amax_gate, stream);
  forget_amax(amax_up, stream);
  GNOMON_ASSERT(width % kVector == 0 && stride % kVector == 0 && stride_d % kVector == 0);
  launch("swiglu_backward", swiglu_backward_kernel, for_work(rows * width / kVector), stream, gate,
         up, dy, rows, width, stride, dgate, dup, stride_d, amax_gate, amax_up);
}

}  // namespace gnomon::cuda

#include "base/errors.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/vectors.h"

namespace gnomon::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;

// A block takes a row; a thread has kPerThread vectors of it, kThreads apart, in its registers.
template <int kPerThread>
struct Row {
  Eight vectors[kPerThread];

  template <class Load>
  __device__ void load(int64_t width, Load load) {
    for (int k = 0; k < kPerThread; ++k) {
      const int64_t at = place(k);
      if (at < width) vectors[k] = load(at);
    }
  }
  __device__ static int64_t place(int k) {
    return (int64_t{threadIdx.x} + int64_t{k} * kThreads) * kVector;
  }
};

template <int kPerThread>
__global__ void add_rms_norm_kernel(const bf16* residual, const bf16* x, const bf16* __restrict__ w,
                                    float eps, int64_t width, bf16* sum, bf16* y, float* rstd,
                                    float* amax) {
  GNOMON_SHARED(float, room, [kWarp]);
  GNOMON_SHARED(uint32_t, amax_room, [kWarp]);
  const int64_t row = blockIdx.x, at = row * width;
  Row<kPerThread> values;
  float squares = 0;
  values.load(width, [&](int64_t i) {
    Eight v = load_eight(residual + at + i);
    if (x != nullptr) {
      const Eight added = load_eight(x + at + i);
      for (int k = 0; k < kVector; ++k) v[k] += added[k];
      v = rounded(v);
    }
    for (int k = 0; k < kVector; ++k) squares += v[k] * v[k];
    if (x != nullptr || sum != residual) store_eight(sum + at + i, v);
    return v;
  });
  squares = block_reduce(squares, 0.0f, room, Add());
  const float r = quotient(1.0f, sqrtf(squares / static_cast<float>(width) + eps));
  if (threadIdx.x == 0) rstd[row] = r;
  uint32_t largest = 0;
  for (int k = 0; k < kPerThread; ++k) {
    const int64_t i = Row<kPerThread>::place(k);
    if (i >= width) continue;
    const Eight weight = load_eight(w + i);
    Eight& v = values.vectors[k];
    for (int j = 0; j < kVector; ++j) v[j] = v[j] * r * weight[j];
    largest = Largest()(largest, store_eight(y + at + i, v));
  }
  report_largest(largest, amax_room, amax);
}

// With x̂ = x·rstd and g = dy·w: dx = rstd·(g − x̂·mean(g·x̂)), dw += dy·x̂. A block takes rows
// gridDim.x apart and leaves its sum of dw in partials[blockIdx.x, width].
template <int kPerThread>
__global__ void rms_norm_backward_kernel(const bf16* __restrict__ residual,
                                         const bf16* __restrict__ w, const float* __restrict__ rstd,
                                         const bf16* __restrict__ dy, int64_t rows, int64_t width,
                                         bf16* d_residual, float* partials, float* amax) {
  GNOMON_SHARED(float, room, [kWarp]);
  GNOMON_SHARED(uint32_t, amax_room, [kWarp]);
  uint32_t largest = 0;
  Row<kPerThread> dw;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t at = row * width;
    const float r = rstd[row];
    float dot = 0;
    // As they are stored, for both passes; the residual's gradient is on its way meanwhile.
    Bits128 x[kPerThread], d[kPerThread], before[kPerThread];
    for (int k = 0; k < kPerThread; ++k) {
      const int64_t i = Row<kPerThread>::place(k);
      if (i >= width) continue;
      x[k] = *reinterpret_cast<const Bits128*>(residual + at + i);
      d[k] = *reinterpret_cast<const Bits128*>(dy + at + i);
      before[k] = *reinterpret_cast<const Bits128*>(d_residual + at + i);
      const Eight value = eight_of(x[k]), gradient = eight_of(d[k]), weight = load_eight(w + i);
      for (int j = 0; j < kVector; ++j) {
        const float own = gradient[j] * (value[j] * r);
        dw.vectors[k][j] += own;
        dot += own * weight[j];
      }
    }
    const float mean = block_reduce(dot, 0.0f, room, Add()) / static_cast<float>(width);
    for (int k = 0; k < kPerThread; ++k) {
      const int64_t i = Row<kPerThread>::place(k);
      if (i >= width) continue;
      const Eight value = eight_of(x[k]), gradient = eight_of(d[k]), weight = load_eight(w + i);
      Eight sum = eight_of(before[k]);
      for (int j = 0; j < kVector; ++j) {
        sum[j] += r * (gradient[j] * weight[j] - value[j] * r * mean);
      }
      largest = Largest()(largest, store_eight(d_residual + at + i, sum));
    }
  }
  report_largest(largest, amax_room, amax);
  for (int k = 0; k < kPerThread; ++k) {
    const int64_t i = Row<kPerThread>::place(k);
    if (i >= width) continue;
    float* to = partials + int64_t{blockIdx.x} * width + i;
    for (int j = 0; j < kVector; ++j) to[j] = dw.vectors[k][j];
  }
}

// A block takes kWarp columns, each of its warps every kWarps-th part of them.
__global__ void add_partials_kernel(const float* __restrict__ partials, int64_t parts,
                                    int64_t width, float* sums) {
  GNOMON_SHARED(float, of_warps, [kWarps][kWarp]);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t column = int64_t{blockIdx.x} * kWarp + lane;
  float sum = 0;
  for (int64_t part = warp; part < parts && column < width; part += kWarps) {
    sum += partials[part * width + column];
  }
  of_warps[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= width) return;
  for (int other = 1; other < kWarps; ++other) sum += of_warps[other][lane];
  sums[column] += sum;
}

// A warp takes a head, a lane a vector of it.
static_assert(kHeadWidthMax <= kWarp * kVector);

__global__ void norm_heads_kernel(bf16* x, int64_t count, int heads, const bf16* __restrict__ w,
                                  int64_t width, float eps, int64_t stride, bf16* before,
                                  float* rstd) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t head = int64_t{blockIdx.x} * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (head >= count) return;
  const int64_t i = int64_t{lane} * kVector;
  bf16* values = x + head / heads * stride + head % heads * width + i;
  Eight v;
  float squares = 0;
  if (i < width) {
    v = load_eight(values);
    store_eight(before + head * width + i, v);
    for (int k = 0; k < kVector; ++k) squares += v[k] * v[k];
  }
  squares = warp_reduce(squares, Add());
  const float r = quotient(1.0f, sqrtf(squares / static_cast<float>(width) + eps));
  if (lane == 0) rstd[head] = r;
  if (i >= width) return;
  const Eight weight = load_eight(w + i);
  for (int k = 0; k < kVector; ++k) v[k] = v[k] * r * weight[k];
  store_eight(values, v);
}

// A warp takes heads gridDim.x·kWarps apart; the block leaves the sum of its warps' dw in
// partials[blockIdx.x, width].
__global__ void norm_heads_backward_kernel(const bf16* __restrict__ before,
                                           const bf16* __restrict__ w,
                                           const float* __restrict__ rstd, bf16* dy, int64_t count,
                                           int heads, int64_t width, int64_t stride,
                                           float* partials) {
  GNOMON_SHARED(float, of_warps, [kWarps][kHeadWidthMax]);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t i = int64_t{lane} * kVector;
  Eight dw, weight;
  if (i < width) weight = load_eight(w + i);
  for (int64_t head = int64_t{blockIdx.x} * kWarps + warp; head < count;
       head += int64_t{gridDim.x} * kWarps) {
    bf16* place = dy + head / heads * stride + head % heads * width + i;
    const float r = rstd[head];
    Eight value, gradient;
    float dot = 0;
    if (i < width) {
      value = load_eight(before + head * width + i);
      gradient = load_eight(place);
      for (int k = 0; k < kVector; ++k) {
        const float own = gradient[k] * (value[k] * r);
        dw[k] += own;
        dot += own * weight[k];
      }
    }
    const float mean = warp_reduce(dot, Add()) / static_cast<float>(width);
    if (i >= width) continue;
    for (int k = 0; k < kVector; ++k) {
      gradient[k] = r * (gradient[k] * weight[k] - value[k] * r * mean);
    }
    store_eight(place, gradient);
  }
  for (int k = 0; k < kVector && i < width; ++k) of_warps[warp][i + k] = dw[k];
  __syncthreads();
  for (int64_t column = threadIdx.x; column < width; column += kThreads) {
    float sum = of_warps[0][column];
    for (int other = 1; other < kWarps; ++other) sum += of_warps[other][column];
    partials[int64_t{blockIdx.x} * width + column] = sum;
  }
}

// Calls `go` with the vectors that a thread needs for this width, as a type.
template <int kPerThread>
struct PerThread {
  static constexpr int value = kPerThread;
};
template <class Go>
void by_width(int64_t width, Go go) {
  GNOMON_ASSERT(width > 0 && width % kVector == 0 && width <= kNormWidthMax);
  const int64_t vectors = blocks_for(width, int64_t{kThreads} * kVector);
  if (vectors <= 1) return go(PerThread<1>());
  if (vectors <= 2) return go(PerThread<2>());
  if (vectors <= 4) return go(PerThread<4>());
  go(PerThread<8>());
}

// Each keeps a partial sum of dw. As many as run at once: the registers of a multiprocessor are
// those of so many blocks.
int64_t backward_blocks(int64_t rows, int64_t width) {
  int64_t blocks = 0;
  by_width(width, [&](auto per_thread) {
    constexpr int kPerThread = decltype(per_thread)::value;
    blocks = kMultiprocessors * (kPerThread == 1   ? 5
                                 : kPerThread == 2 ? 3
                                 : kPerThread == 4 ? 2
                                                   : 1);
  });
  return rows < blocks ? rows : blocks;
}

int64_t head_blocks(int64_t count) {
  constexpr int64_t kMost = kMultiprocessors * 5;
  const int64_t blocks = blocks_for(count, kWarps);
  return blocks < kMost ? blocks : kMost;
}

}  // namespace

void add_rms_norm(const bf16* residual, const bf16* x, const bf16* w, float eps, int64_t rows,
                  int64_t width, bf16* sum, bf16* y, float* rstd, float* amax, Stream stream) {
  forget_amax(amax, stream);
  by_width(width, [&](auto per_thread) {
    launch("add_rms_norm", add_rms_norm_kernel<decltype(per_thread)::value>,
           {.blocks_x = rows, .threads = kThreads}, stream, residual, x, w, eps, width, sum, y,
           rstd, amax);
  });
}

int64_t rms_norm_scratch(int64_t rows, int64_t width) {
  return backward_blocks(rows, width) * width;
}

void rms_norm_backward(const bf16* residual, const bf16* w, const float* rstd, const bf16* dy,
                       int64_t rows, int64_t width, bf16* d_residual, float* dw, float* scratch,
                       float* amax, Stream stream) {
  forget_amax(amax, stream);
  const int64_t blocks = backward_blocks(rows, width);
  by_width(width, [&](auto per_thread) {
    launch("rms_norm_backward", rms_norm_backward_kernel<decltype(per_thread)::value>,
           {.blocks_x = blocks, .threads = kThreads}, stream, residual, w, rstd, dy, rows, width,
           d_residual, scratch, amax);
  });
  add_partials(scratch, blocks, width, dw, stream);
}

void norm_heads(bf16* x, int64_t rows, int heads, const bf16* w, int64_t width, float eps,
                int64_t stride, bf16* before, float* rstd, Stream stream) {
  GNOMON_ASSERT(width > 0 && width % kVector == 0 && width <= kHeadWidthMax);
  launch("norm_heads", norm_heads_kernel,
         {.blocks_x = blocks_for(rows * heads, kWarps), .threads = kThreads}, stream, x,
         rows * heads, heads, w, width, eps, stride, before, rstd);
}

int64_t norm_heads_scratch(int64_t count, int64_t width) { return head_blocks(count) * width; }

void norm_heads_backward(const bf16* before, const bf16* w, const float* rstd, bf16* dy,
                         int64_t rows, int heads, int64_t width, int64_t stride, float* dw,
                         float* scratch, Stream stream) {
  GNOMON_ASSERT(width > 0 && width % kVector == 0 && width <= kHeadWidthMax);
  const int64_t blocks = head_blocks(rows * heads);
  launch("norm_heads_backward", norm_heads_backward_kernel,
         {.blocks_x = blocks, .threads = kThreads}, stream, before, w, rstd, dy, rows * heads,
         heads, width, stride, scratch);
  add_partials(scratch, blocks, width, dw, stream);
}

void add_partials(const float* partials, int64_t parts, int64_t width, float* sums, Stream stream) {
  launch("add_partials", add_partials_kernel,
         {.blocks_x = blocks_for(width, kWarp), .threads = kThreads}, stream, partials, parts,
         width, sums);
}

}  // namespace gnomon::cuda

// Counts of bit patterns, and sums by row.
//
// All 65,536 counts fit into a block's shared memory with 16 bits each. A count that gets as far as
// kCarry hands that much over to the device's memory, so that it never overflows: a block meets at
// a barrier before kCarry more elements are counted. Neighbours that are alike are counted at once:
// a constant tensor would have every thread wait for the same address otherwise.
#include "base/errors.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/patterns.h"
#include "kernels/cuda/statistics.h"

namespace gnomon::cuda {
namespace {

constexpr int kHistogramThreads = 1024;
constexpr int kLoads = 3;  // of each thread between two barriers
constexpr uint32_t kCarry = 0x8000;
constexpr int64_t kWords = kPatterns / 2;
static_assert(kHistogramThreads * kLoads * 8 < kCarry);

struct HalfCounts {
  uint32_t* words;  // [kWords], of shared memory: x in the lower half, −x in the upper
  uint32_t* counts;

  __device__ void add(uint32_t pattern, uint32_t times) const {
    if (times == 0) return;
    uint32_t* word = words + (pattern & 0x7FFFu);
    const uint32_t shift = pattern >> 15 << 4;
    const uint32_t before = atomicAdd(word, times << shift) >> shift & 0xFFFFu;
    if (before < kCarry && before + times >= kCarry) {
      atomicAdd(word, 0u - (kCarry << shift));
      atomicAdd(counts + pattern, kCarry);
    }
  }
  // Every thread calls it when all have counted.
  __device__ void hand_over() const {
    for (auto i = threadIdx.x + 0u; i < kWords; i += blockDim.x) {
      const uint32_t word = words[i];
      if ((word & 0xFFFFu) != 0) atomicAdd(counts + i, word & 0xFFFFu);
      if (word >> 16 != 0) atomicAdd(counts + kWords + i, word >> 16);
    }
  }
};

// `in_row` are the loads of a row, `all` those of the matrix.
template <int kEach>
__global__ void __launch_bounds__(kHistogramThreads)
    count_patterns_kernel(const bf16* __restrict__ x, uint32_t in_row, int64_t stride, int64_t all,
                          uint32_t* counts) {
  const HalfCounts halves{dynamic_shared<uint32_t>(), counts};
  for (auto i = threadIdx.x + 0u; i < kWords; i += blockDim.x) halves.words[i] = 0;
  __syncthreads();
  const int64_t step = int64_t{kHistogramThreads} * kLoads;
  for (int64_t first = blockIdx.x * step; first < all; first += gridDim.x * step) {
    Patterns<kEach> loaded[kLoads];
    int loads = 0;
    for (int k = 0; k < kLoads; ++k) {
      const int64_t i = first + k * kHistogramThreads + threadIdx.x;
      if (i >= all) continue;
      const auto at = static_cast<uint32_t>(i);
      loaded[k] = load_patterns<kEach>(x + at / in_row * stride + int64_t{at % in_row} * kEach);
      ++loads;
    }
    uint32_t pattern = 0, run = 0;
    for (int k = 0; k < kLoads; ++k) {
      if (k >= loads) continue;
      for (int j = 0; j < kEach; ++j) {
        const uint32_t next = loaded[k][j];
        if (next != pattern) {
          halves.add(pattern, run);
          pattern = next;
          run = 0;
        }
        ++run;
      }
    }
    halves.add(pattern, run);
    __syncthreads();
  }
  halves.hand_over();
}

// A warp for each row, here and below.
template <int kEach>
__global__ void row_moments_kernel(const bf16* __restrict__ x, int64_t rows, int64_t columns,
                                   int64_t stride, RowMoments* moments) {
  const int64_t row = global_thread() / kWarp;
  if (row >= rows) return;
  const int64_t lane = threadIdx.x % kWarp;
  const bf16* begin = x + row * stride;
  double sum = 0;
  for (int64_t i = lane * kEach; i < columns; i += kWarp * kEach) {
    const Patterns<kEach> loaded = load_patterns<kEach>(begin + i);
    for (int k = 0; k < kEach; ++k) sum += exact_value(loaded[k]);
  }
  const double mean = warp_reduce(sum, Add()) / static_cast<double>(columns);
  // Where an element is not finite, its deviation is NaN.
  double squares = 0, fourths = 0;
  for (int64_t i = lane * kEach; i < columns; i += kWarp * kEach) {
    const Patterns<kEach> loaded = load_patterns<kEach>(begin + i);
    for (int k = 0; k < kEach; ++k) {
      const double deviation = exact_value(loaded[k]) - mean;
      const double square = deviation * deviation;
      squares += square;
      fourths += square * square;
    }
  }
  squares = warp_reduce(squares, Add());
  fourths = warp_reduce(fourths, Add());
  if (lane == 0) moments[row] = {squares, fourths};
}

template <int kEach>
__global__ void row_products_kernel(const bf16* __restrict__ x, const bf16* __restrict__ y,
                                    int64_t rows, int64_t columns, int64_t stride_x,
                                    int64_t stride_y, RowProducts* products) {
  const int64_t row = global_thread() / kWarp;
  if (row >= rows) return;
  const int64_t lane = threadIdx.x % kWarp;
  double xs = 0, ys = 0, both = 0;
  for (int64_t i = lane * kEach; i < columns; i += kWarp * kEach) {
    const Patterns<kEach> of_x = load_patterns<kEach>(x + row * stride_x + i);
    const Patterns<kEach> of_y = load_patterns<kEach>(y + row * stride_y + i);
    for (int k = 0; k < kEach; ++k) {
      const double a = exact_value(of_x[k]), b = exact_value(of_y[k]);
      xs += a * a;
      ys += b * b;
      both += a * b;
    }
  }
  xs = warp_reduce(xs, Add());
  ys = warp_reduce(ys, Add());
  both = warp_reduce(both, Add());
  if (lane == 0) products[row] = {xs, ys, both};
}

Grid warp_for_each(int64_t rows) {
  constexpr int kRowThreads = 256;
  return {.blocks_x = blocks_for(rows, kRowThreads / kWarp), .threads = kRowThreads};
}

}  // namespace

void count_patterns(const MatrixView& x, uint32_t* counts, Stream stream) {
  clear(counts, kPatterns * static_cast<int64_t>(sizeof(uint32_t)), stream);
  const int64_t each = in_eights(x) ? 8 : 1;
  const int64_t all = x.size() / each;
  const int64_t wanted = blocks_for(all, int64_t{kHistogramThreads} * kLoads);
  const Grid grid{.blocks_x = wanted < kMultiprocessors ? wanted : kMultiprocessors,
                  .threads = kHistogramThreads,
                  .shared_bytes = kWords * static_cast<int64_t>(sizeof(uint32_t))};
  const auto kernel = each == 8 ? count_patterns_kernel<8> : count_patterns_kernel<1>;
  launch_with_shared("count_patterns", kernel, grid, stream, x.data, x.columns / each, stride_of(x),
                     all, counts);
}

void row_moments(const MatrixView& x, RowMoments* moments, Stream stream) {
  const auto kernel = in_eights(x) ? row_moments_kernel<8> : row_moments_kernel<1>;
  launch("row_moments", kernel, warp_for_each(x.rows), stream, x.data, x.rows, x.columns,
         stride_of(x), moments);
}

void row_products(const MatrixView& x, const MatrixView& y, RowProducts* products, Stream stream) {
  GNOMON_ASSERT(x.rows == y.rows && x.columns == y.columns);
  const bool eights = in_eights(x) && in_eights(y);
  const auto kernel = eights ? row_products_kernel<8> : row_products_kernel<1>;
  launch("row_products", kernel, warp_for_each(x.rows), stream, x.data, y.data, x.rows, x.columns,
         stride_of(x), stride_of(y), products);
}

}  // namespace gnomon::cuda

#include "base/errors.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/vectors.h"

namespace gnomon::cuda {
namespace {

constexpr int kLossThreads = 1024;

__global__ void embed_kernel(const int32_t* __restrict__ tokens, int64_t count,
                             const bf16* __restrict__ table, int64_t width, bf16* y) {
  const int64_t vectors = width / kVector;
  const int64_t i = global_thread();
  if (i >= count * vectors) return;
  const int64_t row = i / vectors, column = i % vectors * kVector;
  const bf16* from = table + int64_t{tokens[row]} * width + column;
  *reinterpret_cast<Bits128*>(y + i * kVector) = *reinterpret_cast<const Bits128*>(from);
}

// The block of a token's first place takes all of them.
__global__ void embed_backward_kernel(const int32_t* __restrict__ sorted,
                                      const int32_t* __restrict__ order, int64_t count,
                                      const bf16* __restrict__ dy, int64_t width, float* dtable) {
  const int64_t first = blockIdx.x;
  const int32_t token = sorted[first];
  if (first > 0 && sorted[first - 1] == token) return;
  for (int64_t column = int64_t{threadIdx.x} * kVector; column < width;
       column += int64_t{blockDim.x} * kVector) {
    float* to = dtable + int64_t{token} * width + column;
    Eight sum;
    for (int k = 0; k < kVector; ++k) sum[k] = to[k];
    for (int64_t at = first; at < count && sorted[at] == token; ++at) {
      const Eight gradient = load_eight(dy + int64_t{order[at]} * width + column);
      for (int k = 0; k < kVector; ++k) sum[k] += gradient[k];
    }
    for (int k = 0; k < kVector; ++k) to[k] = sum[k];
  }
}

// The largest of some logits, and the sum of exp(logit − largest) over them.
struct SoftmaxPart {
  float largest, sum;
};

__device__ SoftmaxPart together(SoftmaxPart a, SoftmaxPart b) {
  const float largest = fmaxf(a.largest, b.largest);
  // Parts without any logit have −Inf, which must not meet itself in a difference.
  const float of_a = a.sum == 0 ? 0 : a.sum * exponential(a.largest - largest);
  const float of_b = b.sum == 0 ? 0 : b.sum * exponential(b.largest - largest);
  return {largest, of_a + of_b};
}

__device__ SoftmaxPart block_softmax(SoftmaxPart part, SoftmaxPart* room) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const auto reduce = [](SoftmaxPart own) {
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      const SoftmaxPart other{__shfl_xor_sync(kAllLanes, own.largest, distance),
                              __shfl_xor_sync(kAllLanes, own.sum, distance)};
      // The same two in the same order on either side: all lanes end with the same bits.
      const bool lower = (static_cast<int>(threadIdx.x) & distance) == 0;
      own = lower ? together(own, other) : together(other, own);
    }
    return own;
  };
  part = reduce(part);
  if (lane == 0) room[warp] = part;
  __syncthreads();
  part = lane < warps ? room[lane] : SoftmaxPart{-HUGE_VALF, 0};
  return reduce(part);
}

// Puts some logits more into a thread's part.
template <int kCount>
__device__ void add_logits(SoftmaxPart& part, const Eight& values) {
  float largest = values[0];
  for (int k = 1; k < kCount; ++k) largest = fmaxf(largest, values[k]);
  if (largest > part.largest) {
    part.sum = part.sum == 0 ? 0 : part.sum * exponential(part.largest - largest);
    part.largest = largest;
  }
  // NaN is larger than nothing and must be seen all the same: it reaches the sum here.
  for (int k = 0; k < kCount; ++k) part.sum += exponential(values[k] - part.largest);
}

// A thread's part of a row that is read 16 bytes at a time, some ahead of what is done with them.
// The first `kept` of the row stay in `copy`.
__device__ SoftmaxPart reduce_row(const bf16* row, int64_t vocabulary, int64_t kept, bf16* copy) {
  constexpr int kAhead = 4;
  const int64_t begin = int64_t{threadIdx.x} * kVector, step = int64_t{blockDim.x} * kVector;
  SoftmaxPart part{-HUGE_VALF, 0};
  for (int64_t i = begin; i < vocabulary; i += kAhead * step) {
    Bits128 ahead[kAhead];
    for (int a = 0; a < kAhead; ++a) {
      const int64_t at = i + a * step;
      if (at < vocabulary) ahead[a] = *reinterpret_cast<const Bits128*>(row + at);
    }
    for (int a = 0; a < kAhead; ++a) {
      const int64_t at = i + a * step;
      if (at >= vocabulary) continue;
      if (at < kept) *reinterpret_cast<Bits128*>(copy + at) = ahead[a];
      add_logits<kVector>(part, eight_of(ahead[a]));
    }
  }
  return part;
}

// A block takes a row. With kVectors the row is read and written 16 bytes at a time, and the first
// `kept` logits, a multiple of eight, are read once: a row is longer than what one multiprocessor
// keeps by itself, and those of all of them together than the second-level cache.
template <bool kVectors>
__global__ void __launch_bounds__(kLossThreads)
    cross_entropy_kernel(bf16* logits, const int32_t* __restrict__ targets, int64_t vocabulary,
                         int64_t kept, float scale, bool with_gradient, float* losses,
                         float* amax) {
  GNOMON_SHARED(SoftmaxPart, room, [kWarp]);
  GNOMON_SHARED(uint32_t, amax_room, [kWarp]);
  constexpr int64_t kStep = kVectors ? kVector : 1;
  bf16* const copy = dynamic_shared<bf16>();
  bf16* row = logits + int64_t{blockIdx.x} * vocabulary;
  const int32_t target = targets[blockIdx.x];
  const int64_t begin = int64_t{threadIdx.x} * kStep, step = int64_t{blockDim.x} * kStep;
  const auto load = [&](int64_t i) {
    if constexpr (kVectors) return load_eight((i < kept ? copy : row) + i);
    Eight one;
    one[0] = value_of(row[i]);
    return one;
  };
  const auto store = [&](int64_t i, const Eight& values) {
    if constexpr (kVectors) return store_eight(row + i, values);
    row[i] = rounded(values[0]);
    return magnitude_bits(row[i]);
  };
  if (target < 0) {
    for (int64_t i = begin; i < vocabulary && with_gradient; i += step) store(i, Eight());
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    return;
  }
  SoftmaxPart part{-HUGE_VALF, 0};
  if constexpr (kVectors) {
    part = reduce_row(row, vocabulary, kept, copy);
  } else {
    for (int64_t i = begin; i < vocabulary; i += step) add_logits<1>(part, load(i));
  }
  part = block_softmax(part, room);
  const float of_target = value_of(row[target]);
  if (threadIdx.x == 0) losses[blockIdx.x] = logf(part.sum) + part.largest - of_target;
  if (!with_gradient) return;
  __syncthreads();  // the target's logit has been read by all
  const float factor = quotient(scale, part.sum);
  uint32_t largest = 0;
  for (int64_t i = begin; i < vocabulary; i += step) {
    Eight values = load(i);
    for (int k = 0; k < kStep; ++k) {
      values[k] = exponential(values[k] - part.largest) * factor - (i + k == target ? scale : 0.0f);
    }
    largest = Largest()(largest, store(i, values));
  }
  report_largest(largest, amax_room, amax);
}

// How many logits of a row are kept: as many as a multiprocessor has room for.
int64_t logits_kept(int64_t vocabulary, bool with_gradient) {
  if (!with_gradient || vocabulary % kVector != 0) return 0;
  const int64_t fit = shared_bytes_max() / static_cast<int64_t>(sizeof(bf16));
  return vocabulary < fit ? vocabulary : fit / kVector * kVector;
}

}  // namespace

void embed(const int32_t* tokens, int64_t count, const bf16* table, int64_t width, bf16* y,
           Stream stream) {
  GNOMON_ASSERT(width % kVector == 0);
  launch("embed", embed_kernel, {.blocks_x = blocks_for(count * width / kVector, kThreads)}, stream,
         tokens, count, table, width, y);
}

void embed_backward(const int32_t* sorted, const int32_t* order, int64_t count, const bf16* dy,
                    int64_t width, float* dtable, Stream stream) {
  GNOMON_ASSERT(width % kVector == 0);
  launch("embed_backward", embed_backward_kernel, {.blocks_x = count, .threads = kThreads}, stream,
         sorted, order, count, dy, width, dtable);
}

void cross_entropy(bf16* logits, const int32_t* targets, int64_t rows, int64_t vocabulary,
                   float scale, bool with_gradient, float* losses, float* amax, Stream stream) {
  forget_amax(amax, stream);
  const auto kernel =
      vocabulary % kVector == 0 ? cross_entropy_kernel<true> : cross_entropy_kernel<false>;
  const int64_t kept = logits_kept(vocabulary, with_gradient);
  const Grid grid{.blocks_x = rows,
                  .threads = kLossThreads,
                  .shared_bytes = kept * static_cast<int64_t>(sizeof(bf16))};
  launch_with_shared("cross_entropy", kernel, grid, stream, logits, targets, vocabulary, kept,
                     scale, with_gradient, losses, amax);
}

}  // namespace gnomon::cuda

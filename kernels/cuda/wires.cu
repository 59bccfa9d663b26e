#include "base/errors.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/wires.h"
#include "kernels/moment_codes.h"

namespace gnomon::cuda {
namespace {

constexpr int kRounds = 16;  // elements of a thread
constexpr int64_t kPerBlock = int64_t{kThreads} * kRounds;
constexpr uint32_t kInfinite = 0x7F800000u;
constexpr uint32_t kNan = 0x7FC00000u;

__device__ float float_value(float x) { return x; }
__device__ float float_value(bf16 x) { return value_of(x); }
__device__ void put(float value, float* x) { *x = value; }
__device__ void put(float value, bf16* x) { *x = rounded(value); }

__device__ uint32_t magnitude(float x) {
  const uint32_t bits = bits_of(x) & 0x7FFFFFFFu;
  return bits > kInfinite ? kInfinite : bits;
}

// The last tensor that begins at `element` or before it.
__device__ int64_t tensor_of(const WireScales& by, int64_t element) {
  int64_t first = 0, last = by.tensors - 1;
  while (first < last) {
    const int64_t middle = (first + last + 1) / 2;
    if (by.tensor_starts[middle] <= element) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  return first;
}

// Finds the scale of an element; a thread asks for elements in ascending order.
class ScaleOf {
 public:
  __device__ explicit ScaleOf(const WireScales& by) : by_(by) {}
  __device__ int64_t operator()(int64_t element) {
    if (by_.tensor_starts == nullptr) return element / WireLayout::kBlock;
    if (tensor_ < 0) tensor_ = tensor_of(by_, element);
    while (tensor_ + 1 < by_.tensors && by_.tensor_starts[tensor_ + 1] <= element) ++tensor_;
    return tensor_;
  }

 private:
  WireScales by_;
  int64_t tensor_ = -1;
};

// Calls body(i) for the caller's share of [0, count): neighbours for neighbouring threads.
template <class Body>
__device__ void for_own_elements(int64_t count, Body body) {
  const int64_t begin = int64_t{blockIdx.x} * kPerBlock + threadIdx.x;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = begin + int64_t{round} * kThreads;
    if (i < count) body(i);
  }
}

Grid grid_for(int64_t count) {
  return {.blocks_x = blocks_for(count, kPerBlock), .threads = kThreads};
}

// ---- scales ----

// A warp takes a block of 128.
template <class E>
__global__ void block_amaxes_kernel(const E* __restrict__ x, int64_t begin, int64_t end,
                                    uint32_t* amaxes) {
  const int64_t first = begin + global_thread() / kWarp * WireLayout::kBlock;
  uint32_t amax = 0;
  for (int64_t i = first + threadIdx.x % kWarp; i < first + WireLayout::kBlock && i < end;
       i += kWarp) {
    amax = Largest()(amax, magnitude(float_value(x[i])));
  }
  amax = warp_reduce(amax, Largest());
  if (threadIdx.x % kWarp == 0 && first < end) amaxes[first / WireLayout::kBlock] = amax;
}

// A block of threads takes its elements tensor by tensor, mostly one.
template <class E>
__global__ void tensor_amaxes_kernel(WireScales by, const E* __restrict__ x, int64_t begin,
                                     int64_t end, uint32_t* amaxes) {
  GNOMON_SHARED(uint32_t, room, [kWarp]);
  int64_t at = begin + int64_t{blockIdx.x} * kPerBlock;
  if (at + kPerBlock < end) end = at + kPerBlock;
  int64_t tensor = tensor_of(by, at);
  while (at < end) {
    const bool is_last = tensor + 1 == by.tensors || by.tensor_starts[tensor + 1] >= end;
    const int64_t stop = is_last ? end : by.tensor_starts[tensor + 1];
    uint32_t amax = 0;
    for (int64_t i = at + threadIdx.x; i < stop; i += kThreads) {
      amax = Largest()(amax, magnitude(float_value(x[i])));
    }
    amax = block_reduce(amax, uint32_t{0}, room, Largest());
    if (threadIdx.x == 0) atomicMax(amaxes + tensor, amax);
    at = stop;
    ++tensor;
  }
}

__global__ void largest_kernel(const uint32_t* __restrict__ amaxes, int64_t stride, int ranks,
                               int64_t count, uint32_t* largest) {
  for_own_elements(count, [&](int64_t i) {
    uint32_t amax = 0;
    for (int rank = 0; rank < ranks; ++rank) amax = Largest()(amax, amaxes[rank * stride + i]);
    largest[i] = amax;
  });
}

template <class Codes>
__global__ void scales_kernel(const uint32_t* __restrict__ amaxes, int64_t count, float* scales) {
  for_own_elements(count, [&](int64_t i) {
    const bool finite = amaxes[i] < kInfinite;
    scales[i] = finite ? moment_scale<Codes>(float_of(amaxes[i])) : float_of(kNan);
  });
}

// ---- codes ----

template <class Codes>
struct FormatOf;
template <>
struct FormatOf<E4m3Codes> {
  static constexpr Format kFormat = Format::kE4m3;
};
template <>
struct FormatOf<E5m2Codes> {
  static constexpr Format kFormat = Format::kE5m2;
};

template <class Codes>
__device__ float decoded(uint8_t code, float scale) {
  constexpr uint32_t kNotFinite = FormatOf<Codes>::kFormat == Format::kE4m3 ? 0x7F : 0x7C;
  const uint32_t size = code & 0x7Fu;
  if (size < kNotFinite) return product(fp8_value<Codes>(code), scale);
  const bool infinite = FormatOf<Codes>::kFormat == Format::kE5m2 && size == kNotFinite;
  const uint32_t sign = uint32_t{code & 0x80u} << 24;
  return product(float_of(infinite ? kInfinite | sign : kNan), scale);
}

template <class Codes, class E>
__global__ void encode_kernel(WireScales by, const E* __restrict__ x, int64_t begin, int64_t count,
                              const float* __restrict__ scales, uint8_t* codes) {
  ScaleOf scale_of(by);
  for_own_elements(count, [&](int64_t i) {
    const float inverse = quotient(1.0f, scales[scale_of(begin + i)]);
    const float value = product(float_value(x[begin + i]), inverse);
    codes[i] = static_cast<uint8_t>(fp8_codes(FormatOf<Codes>::kFormat, value, 0.0f) & 0xFFu);
  });
}

template <class Codes, class E>
__global__ void decode_kernel(WireScales by, const uint8_t* __restrict__ codes, int64_t begin,
                              int64_t count, const float* __restrict__ scales, E* x) {
  ScaleOf scale_of(by);
  for_own_elements(count, [&](int64_t i) {
    put(decoded<Codes>(codes[i], scales[scale_of(begin + i)]), x + begin + i);
  });
}

template <class Codes>
__global__ void sum_kernel(WireScales by, WireTerms terms, int64_t begin, int64_t count,
                           float* sums) {
  ScaleOf scale_of(by);
  for_own_elements(count, [&](int64_t i) {
    const float* scale = terms.scales + scale_of(begin + i) - terms.first_scale;
    const uint8_t* code = terms.codes + i;
    float sum = decoded<Codes>(*code, *scale);
    for (int rank = 1; rank < terms.ranks; ++rank) {
      scale += terms.scales_stride;
      code += terms.codes_stride;
      sum = sum_of(sum, decoded<Codes>(*code, *scale));
    }
    sums[begin + i] = sum;
  });
}

__global__ void sum_values_kernel(const float* __restrict__ values, int64_t stride, int ranks,
                                  int64_t count, float* sums) {
  for_own_elements(count, [&](int64_t i) {
    float sum = values[i];
    for (int rank = 1; rank < ranks; ++rank) sum = sum_of(sum, values[rank * stride + i]);
    sums[i] = sum;
  });
}

}  // namespace

template <class E>
void wire_amaxes(const WireScales& by, const E* x, const WireRange& elements, uint32_t* amaxes,
                 Stream stream) {
  GNOMON_ASSERT(elements.begin % WireLayout::kBlock == 0 || elements.size() == 0);
  if (by.tensor_starts == nullptr) {
    if (elements.size() == 0) return;
    const int64_t blocks = blocks_for(elements.size(), WireLayout::kBlock);
    launch("wire_block_amaxes", block_amaxes_kernel<E>,
           {.blocks_x = blocks_for(blocks, kThreads / kWarp), .threads = kThreads}, stream, x,
           elements.begin, elements.end, amaxes);
    return;
  }
  clear(amaxes, by.tensors * static_cast<int64_t>(sizeof(uint32_t)), stream);
  if (elements.size() == 0) return;
  launch("wire_tensor_amaxes", tensor_amaxes_kernel<E>, grid_for(elements.size()), stream, by, x,
         elements.begin, elements.end, amaxes);
}

void wire_largest(const uint32_t* amaxes, int64_t stride, int ranks, int64_t count,
                  uint32_t* largest, Stream stream) {
  launch("wire_largest", largest_kernel, grid_for(count), stream, amaxes, stride, ranks, count,
         largest);
}

void wire_scales(Wire wire, const uint32_t* amaxes, int64_t count, float* scales, Stream stream) {
  if (count == 0) return;
  const auto kernel = wire == Wire::kE4m3 ? scales_kernel<E4m3Codes> : scales_kernel<E5m2Codes>;
  launch("wire_scales", kernel, grid_for(count), stream, amaxes, count, scales);
}

template <class E>
void wire_encode(Wire wire, const WireScales& by, const E* x, const WireRange& elements,
                 const float* scales, uint8_t* codes, Stream stream) {
  if (elements.size() == 0) return;
  const auto kernel =
      wire == Wire::kE4m3 ? encode_kernel<E4m3Codes, E> : encode_kernel<E5m2Codes, E>;
  launch("wire_encode", kernel, grid_for(elements.size()), stream, by, x, elements.begin,
         elements.size(), scales, codes);
}

template <class E>
void wire_decode(Wire wire, const WireScales& by, const uint8_t* codes, const WireRange& elements,
                 const float* scales, E* x, Stream stream) {
  if (elements.size() == 0) return;
  const auto kernel =
      wire == Wire::kE4m3 ? decode_kernel<E4m3Codes, E> : decode_kernel<E5m2Codes, E>;
  launch("wire_decode", kernel, grid_for(elements.size()), stream, by, codes, elements.begin,
         elements.size(), scales, x);
}

void wire_sum(Wire wire, const WireScales& by, const WireTerms& terms, const WireRange& elements,
              float* sums, Stream stream) {
  if (elements.size() == 0) return;
  const auto kernel = wire == Wire::kE4m3 ? sum_kernel<E4m3Codes> : sum_kernel<E5m2Codes>;
  launch("wire_sum", kernel, grid_for(elements.size()), stream, by, terms, elements.begin,
         elements.size(), sums);
}

void wire_sum_values(const float* values, int64_t stride, int ranks, int64_t count, float* sums,
                     Stream stream) {
  if (count == 0) return;
  launch("wire_sum_values", sum_values_kernel, grid_for(count), stream, values, stride, ranks,
         count, sums);
}

template void wire_amaxes(const WireScales&, const float*, const WireRange&, uint32_t*, Stream);
template void wire_amaxes(const WireScales&, const bf16*, const WireRange&, uint32_t*, Stream);
template void wire_encode(Wire, const WireScales&, const float*, const WireRange&, const float*,
                          uint8_t*, Stream);
template void wire_encode(Wire, const WireScales&, const bf16*, const WireRange&, const float*,
                          uint8_t*, Stream);
template void wire_decode(Wire, const WireScales&, const uint8_t*, const WireRange&, const float*,
                          float*, Stream);
template void wire_decode(Wire, const WireScales&, const uint8_t*, const WireRange&, const float*,
                          bf16*, Stream);

}  // namespace gnomon::cuda

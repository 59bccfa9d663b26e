// What the files with kernels are written with. The CUDA compiler makes device code of them; any
// other compiler makes functions of the host, which emulation.h runs block by block and thread by
// thread: that is how they are tested where there is no device.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "numerics/formats.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device.h"
#else
#include "kernels/cuda/emulation.h"
#endif

namespace gnomon::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// Memory that a block's threads share, and no block finds what another left in it:
// GNOMON_SHARED(float, room, [kWarp]); a type, a name, and the extents of an array.
#ifdef __CUDACC__
#define GNOMON_SHARED(type, name, ...) __shared__ type name __VA_ARGS__
#else
#define GNOMON_SHARED(type, name, ...)                                      \
  static ::gnomon::cuda::emulation::SharedMemory<type __VA_ARGS__> name##_; \
  auto& name = name##_.get()
#endif

#ifdef __CUDACC__
// 16 bytes, which a thread reads and writes at once.
using Bits128 = uint4;

template <class... P, class... A>
void launch(const char* name, void (*kernel)(P...), const Grid& grid, Stream stream, A... args) {
  const dim3 blocks(static_cast<unsigned>(grid.blocks_x), static_cast<unsigned>(grid.blocks_y),
                    static_cast<unsigned>(grid.blocks_z));
  kernel<<<blocks, static_cast<unsigned>(grid.threads), static_cast<size_t>(grid.shared_bytes),
           stream>>>(static_cast<P>(args)...);
  check(cudaGetLastError(), name);
}

// The same with more than 48 KiB of shared memory, which a kernel has to ask for. The limit belongs
// to the kernel and is only ever raised: a recorded launch with more may be repeated later.
template <class... P, class... A>
void launch_with_shared(const char* name, void (*kernel)(P...), const Grid& grid, Stream stream,
                        A... args) {
  const auto bytes = static_cast<int>(grid.shared_bytes);
  cudaFuncAttributes now{};
  check(cudaFuncGetAttributes(&now, kernel), name);
  if (now.maxDynamicSharedSizeBytes < bytes) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
  }
  launch(name, kernel, grid, stream, args...);
}

// The most that launch_with_shared() may be asked for, with room for what a kernel declares itself:
// the device counts both together.
inline int64_t shared_bytes_max() {
  constexpr int64_t kDeclaredMax = 2048;
  static const int64_t most = [] {
    int device = 0, bytes = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          "cudaDeviceGetAttribute");
    return int64_t{bytes} - kDeclaredMax;
  }();
  return most;
}

template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char gnomon_shared[];
  return reinterpret_cast<T*>(gnomon_shared);
}

inline void clear(void* memory, int64_t bytes, Stream stream) {
  check(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream), "cudaMemsetAsync");
}

__device__ inline float value_of(bf16 x) { return __uint_as_float(uint32_t{x.bits} << 16); }
__device__ inline bf16 rounded(float x) {
  const __nv_bfloat16 y = __float2bfloat16_rn(x);
  return {__bfloat16_as_ushort(y)};
}
// Two neighbours, the first in the lower half: one instruction, where two of rounded() are two of
// the slow unit's.
__device__ inline uint32_t rounded_pair(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return uint32_t{__bfloat16_as_ushort(pair.x)} | uint32_t{__bfloat16_as_ushort(pair.y)} << 16;
}
__device__ inline uint32_t bits_of(float x) { return __float_as_uint(x); }
__device__ inline float float_of(uint32_t bits) { return __uint_as_float(bits); }

// Codes of two neighbours, the first in the lower byte; saturating.
__device__ inline uint16_t fp8_codes(Format format, float first, float second) {
  const auto kind = format == Format::kE5m2 ? __NV_E5M2 : __NV_E4M3;
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, kind);
}
__device__ inline float quotient(float a, float b) { return __fdiv_rn(a, b); }
// Within 2 units of the last place, and 0 for divisors above 2^126: where the result is rounded to
// BF16 or is one term of an update.
__device__ inline float about(float a, float b) { return __fdividef(a, b); }
// As one access: nvcc takes an assignment apart where others are beside it.
__device__ inline void store_bits(Bits128* to, Bits128 v) { __stwb(to, v); }
// Bytes 0 to 3 of a word are the last digits of `order`, the low one first: 0 to 3 of a, 4 to 7 of
// b.
__device__ inline uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t order) {
  return __byte_perm(a, b, order);
}
// e^x within 2 + |x| units of the last place: likewise. One instruction of the slow unit.
__device__ inline float exponential(float x) { return __expf(x); }
__device__ inline float product(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float sum_of(float a, float b) { return __fadd_rn(a, b); }
#else
template <class... P, class... A>
void launch_with_shared(const char* name, void (*kernel)(P...), const Grid& grid, Stream stream,
                        A... args) {
  launch(name, kernel, grid, stream, args...);
}
// Little, so that what does not fit is tested too.
inline int64_t shared_bytes_max() { return 8192; }
struct alignas(16) Bits128 {
  uint32_t x = 0, y = 0, z = 0, w = 0;
};
inline void clear(void* memory, int64_t bytes, Stream) {
  emulation::now_or_later([=] { std::memset(memory, 0, static_cast<size_t>(bytes)); });
}
inline float value_of(bf16 x) { return to_float(x); }
inline bf16 rounded(float x) { return to_bf16(x); }
inline uint32_t rounded_pair(float first, float second) {
  return uint32_t{rounded(first).bits} | uint32_t{rounded(second).bits} << 16;
}
inline uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
inline float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint16_t fp8_codes(Format format, float first, float second) {
  return static_cast<uint16_t>(encode(format, first) | encode(format, second) << 8);
}
inline float quotient(float a, float b) { return a / b; }
inline float about(float a, float b) { return a / b; }
inline float exponential(float x) { return std::exp(x); }
inline void store_bits(Bits128* to, Bits128 v) { *to = v; }
inline uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t order) {
  const uint64_t both = uint64_t{b} << 32 | a;
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t from = order >> (4 * i) & 7;
    word |= static_cast<uint32_t>(both >> (8 * from) & 0xFF) << (8 * i);
  }
  return word;
}
inline float product(float a, float b) { return a * b; }
inline float sum_of(float a, float b) { return a + b; }
#endif

// |x|, with NaN as +Inf, as bits: their order as integers is that of the magnitudes.
__device__ inline uint32_t magnitude_bits(bf16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16 & 0x7FFFFFFFu;
  return bits > 0x7F800000u ? 0x7F800000u : bits;
}

// What all lanes of a warp have, put together in one order.
template <class T, class Combine>
__device__ T warp_reduce(T value, Combine combine) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// The same for a block of whole warps, at most 32; every thread gets it. `shared` has room for 32.
template <class T, class Combine>
__device__ T block_reduce(T value, T nothing, T* shared, Combine combine) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  value = warp_reduce(value, combine);
  __syncthreads();  // an earlier reduction may still be read
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  value = lane < warps ? shared[lane] : nothing;
  return warp_reduce(value, combine);
}

struct Add {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Largest {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

// NaN counts as +Inf.
__device__ inline uint32_t no_more_than_infinity(uint32_t magnitude) {
  return magnitude > 0x7F800000u ? 0x7F800000u : magnitude;
}

// *most = the largest of *most and what the threads of the block have: magnitudes as bits. Every
// thread calls it; `room` is as in block_reduce(). Does nothing where there is no `most`.
__device__ inline void report_largest(uint32_t own, uint32_t* room, float* most) {
  if (most == nullptr) return;
  own = no_more_than_infinity(block_reduce(own, uint32_t{0}, room, Largest()));
  auto* at = reinterpret_cast<uint32_t*>(most);
  // Most blocks find a larger one there, and a look costs less than an atomic operation.
  if (threadIdx.x == 0 && own > *static_cast<volatile uint32_t*>(at)) atomicMax(at, own);
}

__device__ inline int64_t global_thread() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline int64_t all_threads() { return int64_t{gridDim.x} * blockDim.x; }

constexpr int64_t blocks_for(int64_t work, int64_t per_block) {
  return (work + per_block - 1) / per_block;
}

}  // namespace gnomon::cuda

// Eight BF16 values that a thread reads and writes at once.
#pragma once

#include "kernels/cuda/kernel.h"

namespace gnomon::cuda {

inline constexpr int kVector = 8;

struct Eight {
  float values[kVector] = {};
  __device__ float& operator[](int i) { return values[i]; }
  __device__ float operator[](int i) const { return values[i]; }
};

__device__ inline Eight eight_of(Bits128 v) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
  Eight eight;
  for (int i = 0; i < 4; ++i) {
    eight[2 * i] = float_of(words[i] << 16);
    eight[2 * i + 1] = float_of(words[i] & 0xFFFF0000u);
  }
  return eight;
}

// `x` is 16-byte aligned.
__device__ inline Eight load_eight(const bf16* x) {
  return eight_of(*reinterpret_cast<const Bits128*>(x));
}

// `x` is 16-byte aligned.
__device__ inline Eight load_eight(const float* x) {
  const auto* halves = reinterpret_cast<const Bits128*>(x);
  const Bits128 low = halves[0], high = halves[1];
  const uint32_t words[kVector] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  Eight eight;
  for (int i = 0; i < kVector; ++i) eight[i] = float_of(words[i]);
  return eight;
}

// Returns the largest magnitude of what it stored, as report_largest() takes it.
__device__ inline uint32_t store_eight(bf16* y, const Eight& eight) {
  const uint32_t words[4] = {rounded_pair(eight[0], eight[1]), rounded_pair(eight[2], eight[3]),
                             rounded_pair(eight[4], eight[5]), rounded_pair(eight[6], eight[7])};
  store_bits(reinterpret_cast<Bits128*>(y), {words[0], words[1], words[2], words[3]});
  uint32_t largest = 0;
  for (uint32_t word : words) {
    largest = Largest()(largest, word & 0x7FFF0000u);
    largest = Largest()(largest, word << 16 & 0x7FFF0000u);
  }
  return largest;
}

__device__ inline float sigmoid(float x) { return about(1.0f, 1.0f + exponential(-x)); }

__device__ inline Eight swiglu_of(const Eight& gate, const Eight& up) {
  Eight result;
  for (int i = 0; i < kVector; ++i) result[i] = gate[i] * sigmoid(gate[i]) * up[i];
  return result;
}

// As bf16 has them.
__device__ inline Eight rounded(const Eight& eight) {
  Eight result;
  for (int i = 0; i < kVector; i += 2) {
    const uint32_t pair = rounded_pair(eight[i], eight[i + 1]);
    result[i] = float_of(pair << 16);
    result[i + 1] = float_of(pair & 0xFFFF0000u);
  }
  return result;
}

}  // namespace gnomon::cuda

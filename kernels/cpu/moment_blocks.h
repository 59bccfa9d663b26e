// Blocks of stored moments to FP32 and back, for the CPU's optimizers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/moment_codes.h"
#include "kernels/moments.h"

namespace gnomon::cpu {

// ---- load: a block of up to kMomentBlock values ----
template <class Codes>
void load_moments(std::span<const float> stored, int64_t begin, int64_t count, float* values) {
  std::copy_n(stored.data() + begin, count, values);
}
template <class Codes>
void load_moments(std::span<const bf16> stored, int64_t begin, int64_t count, float* values) {
  const bf16* from = stored.data() + begin;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) values[i] = to_float(from[i]);
}
template <class Codes>
void load_moments(const Fp8Moments& stored, int64_t begin, int64_t count, float* values) {
  const uint8_t* from = stored.codes.data() + begin;
  const float scale = stored.scales[static_cast<size_t>(begin / kMomentBlock)];
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) values[i] = fp8_value<Codes>(from[i]) * scale;
}

// ---- store: `floor[i]` not zero keeps value i, if it is not negative, from being stored as zero;
// null for none ----
template <class Codes>
void store_moments(std::span<float> stored, int64_t begin, int64_t count, const float* values,
                   const float* /*floor*/, uint32_t /*key*/) {
  std::copy_n(values, count, stored.data() + begin);
}
template <class Codes>
void store_moments(std::span<bf16> stored, int64_t begin, int64_t count, const float* values,
                   const float* floor, uint32_t key) {
  bf16* to = stored.data() + begin;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = bf16_code(values[i], random16(key, i));
  if (floor == nullptr) return;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    bool keep = (values[i] != 0.0f) | (floor[i] != 0.0f);
    to[i].bits = static_cast<uint16_t>(to[i].bits + (to[i].bits == 0 && keep ? 1 : 0));
  }
}
template <class Codes>
void store_moments(const Fp8Moments& stored, int64_t begin, int64_t count, const float* values,
                   const float* floor, uint32_t key) {
  uint8_t* to = stored.codes.data() + begin;
  float amax = 0.0f;
#pragma omp simd reduction(max : amax)
  for (int64_t i = 0; i < count; ++i) amax = std::max(amax, std::fabs(values[i]));
  const float scale = moment_scale<Codes>(amax);
  const float inverse = 1.0f / scale;
  stored.scales[static_cast<size_t>(begin / kMomentBlock)] = scale;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    to[i] = fp8_code<Codes>(values[i] * inverse, random16(key, i));
  }
  if (floor == nullptr) return;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    bool keep = (values[i] != 0.0f) | (floor[i] != 0.0f);
    to[i] = static_cast<uint8_t>(to[i] + (to[i] == 0 && keep ? 1 : 0));
  }
}

}  // namespace gnomon::cpu

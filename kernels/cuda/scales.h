// The arithmetic of scales (numerics/scales.h, quantizer.h) where a kernel needs it, bit for bit.
#pragma once

#include "kernels/cuda/kernel.h"
#include "numerics/quantizer.h"

namespace gnomon::cuda {

// What a kernel must know of a Quantizer's format and rule.
struct ScaleArithmetic {
  Format format = Format::kE4m3;
  ScaleRule rule = ScaleRule::kGiven;
  float format_max = 448;
  int max_exponent = 8;             // of format_max
  float given = 0;                  // of a whole tensor; 0: from the amax
  const float* given_at = nullptr;  // where it stands, in place of `given`
  int margin = 0;
  int log2_shift = 0;
};

inline constexpr float kLargestScale = 0x1p60f;  // numerics/scales.h

// x·2^n, for results that are normal numbers or overflow.
__device__ inline float times_power_of_two(float x, int n) { return ldexpf(x, n); }

__device__ inline int exponent_of(float x) { return ilogbf(x); }

// An amax of 0 or one that is not finite says nothing.
__device__ inline bool is_scalable(float amax) {
  return amax > 0.0f && bits_of(amax) < 0x7F800000u;
}

__device__ inline float fitting_scale(const ScaleArithmetic& how, float amax) {
  return fminf(quotient(how.format_max, amax), kLargestScale);
}

// Without the shift.
__device__ inline float scale_of(const ScaleArithmetic& how, float amax) {
  if (how.given_at != nullptr) return *how.given_at;
  if (how.given > 0) return how.given;
  if (how.rule == ScaleRule::kNone || !is_scalable(amax)) return 1.0f;
  if (how.rule == ScaleRule::kGiven) {
    return fminf(times_power_of_two(quotient(how.format_max, amax), -how.margin), kLargestScale);
  }
  const float fitting = fitting_scale(how, amax);
  if (how.rule == ScaleRule::kFp32) return fitting;
  if (how.rule == ScaleRule::kPowerOfTwo) return times_power_of_two(1.0f, exponent_of(fitting));
  return fminf(times_power_of_two(1.0f, how.max_exponent - exponent_of(amax)), kLargestScale);
}

// The scale of a tile with this amax, and 1/scale put where it belongs.
__device__ inline float tile_scale_of(const ScaleArithmetic& how, uint32_t amax, float* inverse) {
  const float scale =
      times_power_of_two(scale_of(how, float_of(no_more_than_infinity(amax))), how.log2_shift);
  if (inverse != nullptr) *inverse = quotient(1.0f, scale);
  return scale;
}

}  // namespace gnomon::cuda

// Functions of one float that the compiler turns into vector code inside a loop: no branches, no
// calls, no errno. NaN in gives NaN out.
#pragma once

#include <bit>
#include <cstdint>

namespace gnomon::cpu {

// e^x within 2 ulp for −87.3 ≤ x ≤ 88.3; clamped to the ends outside, so that −Inf gives about
// 1e-38. Cody & Waite reduction to |r| ≤ ln2/2, then the Taylor polynomial with minimax
// coefficients of Cephes expf.
inline float fast_exp(float x) {
  x = x < -87.3f ? -87.3f : x;
  x = x > 88.3f ? 88.3f : x;
  constexpr float kRoundToInteger = 0x1.8p23f;
  float shifted = __builtin_fmaf(x, 1.44269504088896341f, kRoundToInteger);
  float n = shifted - kRoundToInteger;
  float r = __builtin_fmaf(n, -0.693359375f, x);
  r = __builtin_fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = __builtin_fmaf(p, r, 1.3981999507e-3f);
  p = __builtin_fmaf(p, r, 8.3334519073e-3f);
  p = __builtin_fmaf(p, r, 4.1665795894e-2f);
  p = __builtin_fmaf(p, r, 1.6666665459e-1f);
  p = __builtin_fmaf(p, r, 5.0000001201e-1f);
  p = __builtin_fmaf(p, r * r, r) + 1.0f;
  uint32_t power = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;
  return p * std::bit_cast<float>(power);
}

// 1/(1+e^−x)
inline float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

}  // namespace gnomon::cpu

// FP8 and BF16 codes of moments, rounded by chance: what kernels/moments.h describes, value by
// value. All of it is branchless, so that loops over it become vector code.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/moments.h"
#include "numerics/formats.h"
#include "numerics/host_device.h"

namespace gnomon {

// Layout of an FP8 format: bits of the mantissa, the exponent of the smallest normal value, the
// largest value.
struct E4m3Codes {
  static constexpr int kMantissa = 3, kExponentMin = -6;
  static constexpr float kLargest = 448.0f;
};
struct E5m2Codes {
  static constexpr int kMantissa = 2, kExponentMin = -14;
  static constexpr float kLargest = 57344.0f;
};

GNOMON_HOST_DEVICE constexpr float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// Sixteen random bits for element `lane` under `key`: Wellons' lowbias32 over a Weyl sequence; the
// key comes from Philox.
GNOMON_HOST_DEVICE inline uint32_t random16(uint32_t key, int64_t lane) {
  uint32_t x = key + static_cast<uint32_t>(lane) * 0x9E3779B9u;
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  return x >> 16;
}

template <class Codes>
GNOMON_HOST_DEVICE float fp8_value(uint8_t code) {
  constexpr int kMantissa = Codes::kMantissa;
  uint32_t magnitude = code & 0x7Fu;
  uint32_t field = magnitude >> kMantissa;
  uint32_t fraction = magnitude & ((1u << kMantissa) - 1);
  float normal =
      std::bit_cast<float>(((field + static_cast<uint32_t>(126 + Codes::kExponentMin)) << 23) |
                           (fraction << (23 - kMantissa)));
  float subnormal = static_cast<float>(fraction) * power_of_two(Codes::kExponentMin - kMantissa);
  float value = field != 0 ? normal : subnormal;
  return (code & 0x80u) != 0 ? -value : value;
}

// |value| rounded down or up by chance, in proportion to its distance from both; saturating. Values
// that have a code are stored exactly.
template <class Codes>
GNOMON_HOST_DEVICE uint8_t fp8_code(float value, uint32_t random) {
  float magnitude = std::min(float{Codes::kLargest}, std::fabs(value));
  int exponent = static_cast<int>(std::bit_cast<uint32_t>(magnitude) >> 23) - 127;
  exponent = std::max(exponent, int{Codes::kExponentMin});
  float quanta = magnitude * power_of_two(Codes::kMantissa - exponent);
  int rounded = static_cast<int>(quanta + static_cast<float>(random) * 0x1p-16f);
  int code = ((exponent - Codes::kExponentMin) << Codes::kMantissa) + rounded;
  return static_cast<uint8_t>(code | (std::signbit(value) ? 0x80 : 0));
}

// The smallest power of two that brings `amax` into the format's range, within 2^±100.
template <class Codes>
GNOMON_HOST_DEVICE float moment_scale(float amax) {
  float ratio = std::clamp(amax / Codes::kLargest, 0x1p-100f, 0x1p100f);
  uint32_t bits = std::bit_cast<uint32_t>(ratio);
  return std::bit_cast<float>((bits + 0x7FFFFFu) & 0x7F800000u);
}

// Rounded by chance as above; the largest finite value and no further.
GNOMON_HOST_DEVICE inline bf16 bf16_code(float value, uint32_t random) {
  constexpr float kLargest = 0x1.FEp127f;
  float bounded = std::clamp(value, -kLargest, kLargest);
  return {static_cast<uint16_t>((std::bit_cast<uint32_t>(bounded) + random) >> 16)};
}

}  // namespace gnomon

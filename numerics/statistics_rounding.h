// What rounding does to one element, in bits: the same on the host and in a device's kernels, and
// without branches, so that a compiler makes vector code of it (GCC 12 does where the result is
// returned at once, and not where it is filled in member by member). Inside statistics*.cc and
// cuda/statistics_tiles.cu only.
#pragma once

#include <bit>
#include <cstdint>

#include "numerics/formats.h"
#include "numerics/host_device.h"

namespace gnomon {

// What rounding magnitudes to a format needs, as FP32 bit patterns and magic numbers.
struct MagnitudeRounding {
  explicit MagnitudeRounding(Format format) {
    const FormatInfo& info = format_info(format);
    smallest_normal = std::bit_cast<uint32_t>(static_cast<float>(info.smallest_normal));
    largest = std::bit_cast<uint32_t>(static_cast<float>(info.largest));
    magic = static_cast<float>(info.smallest_subnormal * 0x1p23);
    shift = 23 - info.mantissa_bits;
  }
  uint32_t smallest_normal;
  uint32_t largest;
  float magic;  // adding it leaves the multiples of the smallest subnormal, to nearest even
  int shift;    // bits of FP32 that a normal number of the format has not
};

struct RoundedElement {
  bool nonzero, underflowed, saturated, overflowed, subnormal, top, finite;
  uint32_t code;  // the rounded magnitude, as FP32 bits
};

// `bits` are those of |x| and `scaled` those of the FP32 product |x|·scale; `shift` is
// rounding.shift, where the compiler may know it.
GNOMON_HOST_DEVICE inline RoundedElement round_magnitude(const MagnitudeRounding& rounding,
                                                         int shift, uint32_t bits,
                                                         uint32_t scaled) {
  const uint32_t smallest_normal = rounding.smallest_normal;
  const uint32_t largest = rounding.largest;
  const bool number = bits <= 0x7F800000u;
  const uint32_t normal =
      (scaled + ((1u << (shift - 1)) - 1) + ((scaled >> shift) & 1u)) & ~((1u << shift) - 1);
  const float moved = std::bit_cast<float>(scaled) + rounding.magic;
  const uint32_t subnormal = std::bit_cast<uint32_t>(moved - rounding.magic);
  const uint32_t r = scaled < smallest_normal ? subnormal : normal;
  const uint32_t q = r > largest ? largest : r;
  const bool nonzero = number & (bits != 0);
  const bool underflowed = (q == 0) & (bits != 0);
  const bool saturated = (scaled > largest) & number;
  const bool overflowed = (r > largest) & number;
  const bool is_subnormal = (q != 0) & (q < smallest_normal);
  const bool top = (q == largest) & number;
  const bool finite = bits < 0x7F800000u;
  return {nonzero, underflowed, saturated, overflowed, is_subnormal, top, finite, q};
}

}  // namespace gnomon

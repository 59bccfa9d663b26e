// Number formats of eight bits or fewer, BF16, and reduced-mantissa BF16: one codec for all of
// them. Facts and conventions (NaN, overflow, ties): docs/formats.md. E4M3 is the FN variant
// without infinity, E5M2 is IEEE-like.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gnomon {

enum class Format {
  kFp32,
  kBf16,
  kE4m3,
  kE5m2,
  kE3m2,
  kE2m3,
  kE2m1,
  kE8m3,
  kE8m4,
  kE8m5,
  kE8m6,
};

std::string_view format_name(Format format);     // "e4m3"
Format format_from_name(std::string_view name);  // throws Error naming the accepted ones
std::span<const Format> all_formats();

// E4M3 and E5M2, which tensor cores multiply.
constexpr bool is_fp8(Format format) { return format == Format::kE4m3 || format == Format::kE5m2; }
// E8M3 to E8M6, which have the range of BF16 and therefore need no scale.
constexpr bool is_reduced_mantissa(Format format) { return format >= Format::kE8m3; }

struct FormatInfo {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  int bits;  // of a code, sign included
  bool has_infinity;
  bool has_nan;
  double largest;  // finite
  double smallest_normal;
  double smallest_subnormal;
};
const FormatInfo& format_info(Format format);

// Where rounding of FP32 magnitudes ends, as their bits: the last one that rounds to the format's
// largest, beyond which values are cut, and the last one that becomes zero.
struct RoundingEnds {
  uint32_t to_largest = 0, to_zero = 0;
};
RoundingEnds rounding_ends(Format format);

// Round to nearest even. Saturating: beyond the largest (and ±Inf) goes to ± the largest. Not
// saturating: overflow goes to ±Inf where the format has it, else to ±NaN, else (no NaN either) to
// ± the largest. NaN gives the positive NaN with all bits set; FP32 and BF16 keep its sign and
// payload and make it quiet; a format without NaN gives its positive largest, as PTX's cvt does.
// Codes are right-aligned.
uint32_t encode(Format format, float value, bool saturate = true);
float decode(Format format, uint32_t code);
float round_to(Format format, float value, bool saturate = true);  // decode(encode(value))

// BF16 as the upper half of an FP32, round to nearest even, NaN kept quiet.
struct bf16 {
  uint16_t bits = 0;
};
inline float to_float(bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
inline bf16 to_bf16(float value) {
  uint32_t u = std::bit_cast<uint32_t>(value);
  uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  uint32_t quiet = (u >> 16) | 0x40u;
  return {static_cast<uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded)};
}

// The same for either element type of a model.
template <std::same_as<float> T>
float to_float(T value) {
  return value;
}
template <class E>
E from_float(float value);
template <>
inline bf16 from_float<bf16>(float value) {
  return to_bf16(value);
}
template <>
inline float from_float<float>(float value) {
  return value;
}

}  // namespace gnomon

#include "numerics/formats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "fmt/format.h"

namespace gnomon {
namespace {

struct Row {
  Format format;
  std::string_view name;
  FormatInfo info;
};

constexpr double power_of_two(int exponent) {
  double value = 1.0;
  for (; exponent > 0; --exponent) value *= 2.0;
  for (; exponent < 0; ++exponent) value *= 0.5;
  return value;
}

// `largest_exponent` and `largest_fraction` (in units of 2^-mantissa_bits) describe the largest
// finite value.
constexpr Row row(Format format, std::string_view name, int exponent_bits, int mantissa_bits,
                  int bias, bool has_infinity, bool has_nan, int largest_exponent,
                  int largest_fraction) {
  double ulp = power_of_two(-mantissa_bits);
  return {format,
          name,
          {exponent_bits, mantissa_bits, bias, 1 + exponent_bits + mantissa_bits, has_infinity,
           has_nan, power_of_two(largest_exponent) * (1.0 + largest_fraction * ulp),
           power_of_two(1 - bias), power_of_two(1 - bias) * ulp}};
}

constexpr std::array kRows = {
    row(Format::kFp32, "fp32", 8, 23, 127, true, true, 127, (1 << 23) - 1),
    row(Format::kBf16, "bf16", 8, 7, 127, true, true, 127, 127),
    row(Format::kE4m3, "e4m3", 4, 3, 7, false, true, 8, 6),
    row(Format::kE5m2, "e5m2", 5, 2, 15, true, true, 15, 3),
    row(Format::kE3m2, "e3m2", 3, 2, 3, false, false, 4, 3),
    row(Format::kE2m3, "e2m3", 2, 3, 1, false, false, 2, 7),
    row(Format::kE2m1, "e2m1", 2, 1, 1, false, false, 2, 1),
    row(Format::kE8m3, "e8m3", 8, 3, 127, true, true, 127, 7),
    row(Format::kE8m4, "e8m4", 8, 4, 127, true, true, 127, 15),
    row(Format::kE8m5, "e8m5", 8, 5, 127, true, true, 127, 31),
    row(Format::kE8m6, "e8m6", 8, 6, 127, true, true, 127, 63),
};

constexpr auto kFormats = [] {
  std::array<Format, kRows.size()> formats{};
  for (size_t i = 0; i < kRows.size(); ++i) formats[i] = kRows[i].format;
  return formats;
}();

static_assert([] {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<size_t>(kRows[i].format) != i) return false;
  }
  return true;
}());

const Row& row_of(Format format) {
  auto index = static_cast<size_t>(format);
  GNOMON_ASSERT(index < kRows.size());
  return kRows[index];
}

// Field values of the codes around the top of a format, without the sign.
struct TopCodes {
  uint32_t largest;   // the largest finite value
  uint32_t overflow;  // what overflow gives without saturation
  uint32_t nan;       // what NaN gives
};

TopCodes top_codes(const FormatInfo& info) {
  uint32_t all_ones = (1u << (info.bits - 1)) - 1;
  if (!info.has_nan) return {all_ones, all_ones, all_ones};
  if (!info.has_infinity) return {all_ones - 1, all_ones, all_ones};
  uint32_t infinity = all_ones & ~((1u << info.mantissa_bits) - 1);
  return {infinity - 1, infinity, all_ones};
}

// Rounds the magnitude in `u` (sign cleared, not NaN or Inf) to the format as if its exponent had
// no upper end.
uint32_t round_magnitude(const FormatInfo& info, uint32_t u) {
  int field = static_cast<int>(u >> 23);
  uint32_t significand = (u & 0x7FFFFFu) | (field == 0 ? 0u : 0x800000u);
  int exponent = (field == 0 ? 1 : field) - 127;
  int smallest = 1 - info.bias;
  int lost_bits = 23 - info.mantissa_bits + (exponent < smallest ? smallest - exponent : 0);
  if (lost_bits > 25) return 0;
  if (lost_bits > 0) {
    uint32_t odd = (significand >> lost_bits) & 1u;
    significand = (significand + (1u << (lost_bits - 1)) - 1 + odd) >> lost_bits;
  }
  if (exponent < smallest) return significand;
  // The implicit bit, when there is one, adds 1 to the exponent field, and so does a carry out of
  // rounding.
  return (static_cast<uint32_t>(exponent - smallest) << info.mantissa_bits) + significand;
}

}  // namespace

std::string_view format_name(Format format) { return row_of(format).name; }

Format format_from_name(std::string_view name) {
  const auto found = std::ranges::find(kRows, name, &Row::name);
  if (found != kRows.end()) return found->format;
  std::string accepted;
  for (const Row& row : kRows) {
    accepted += accepted.empty() ? "" : ", ";
    accepted += row.name;
  }
  throw Error(fmt::format("unknown number format '{}'; accepted are {}", name, accepted));
}

std::span<const Format> all_formats() { return kFormats; }

const FormatInfo& format_info(Format format) { return row_of(format).info; }

RoundingEnds rounding_ends(Format format) {
  const FormatInfo& info = format_info(format);
  const int shift = 23 - info.mantissa_bits;
  const auto largest = std::bit_cast<uint32_t>(static_cast<float>(info.largest));
  // A tie goes to the even neighbour: beyond the largest it may be one that the format lacks.
  return {largest + (1u << (shift - 1)) - (largest >> shift & 1u),
          std::bit_cast<uint32_t>(static_cast<float>(info.smallest_subnormal / 2))};
}

uint32_t encode(Format format, float value, bool saturate) {
  const FormatInfo& info = format_info(format);
  uint32_t u = std::bit_cast<uint32_t>(value);
  uint32_t magnitude = u & 0x7FFFFFFFu;
  uint32_t sign = (u >> 31) << (info.bits - 1);
  TopCodes top = top_codes(info);
  if (magnitude > 0x7F800000u) {
    if (format == Format::kFp32) return u | 0x400000u;
    return format == Format::kBf16 ? to_bf16(value).bits : top.nan;
  }
  uint32_t code = magnitude == 0x7F800000u ? top.largest + 1 : round_magnitude(info, magnitude);
  if (code > top.largest) code = saturate ? top.largest : top.overflow;
  return sign | code;
}

float decode(Format format, uint32_t code) {
  const FormatInfo& info = format_info(format);
  GNOMON_ASSERT(info.bits == 32 || code < (1u << info.bits));
  if (format == Format::kFp32) return std::bit_cast<float>(code);
  if (format == Format::kBf16) return std::bit_cast<float>(code << 16);
  uint32_t sign = code >> (info.bits - 1);
  uint32_t magnitude = code & ((1u << (info.bits - 1)) - 1);
  TopCodes top = top_codes(info);
  float value = 0.0f;
  if (magnitude > top.largest) {
    bool infinite = info.has_infinity && magnitude == top.overflow;
    value =
        infinite ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  } else {
    int field = static_cast<int>(magnitude >> info.mantissa_bits);
    uint32_t fraction = magnitude & ((1u << info.mantissa_bits) - 1);
    uint32_t significand = fraction | (field == 0 ? 0u : 1u << info.mantissa_bits);
    int exponent = (field == 0 ? 1 : field) - info.bias;
    value = std::ldexp(static_cast<float>(significand), exponent - info.mantissa_bits);
  }
  return sign != 0 ? -value : value;
}

float round_to(Format format, float value, bool saturate) {
  return decode(format, encode(format, value, saturate));
}

}  // namespace gnomon

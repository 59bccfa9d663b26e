#include "kernels/scaled_product.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/errors.h"

namespace gnomon {
namespace {

constexpr int kFp32ExponentMin = -126;

int exponent_min(Format format) {
  return std::ilogb(static_cast<float>(format_info(format).smallest_normal));
}

// Below every exponent of a product that is not zero.
constexpr int kNoExponent = -1000;

int exponent_of(double value, int smallest) {
  return value == 0 ? kNoExponent : std::max(std::ilogb(value), smallest);
}

double cut_off(double value, int exponent, int bits) {
  return std::ldexp(std::trunc(std::ldexp(value, bits - exponent)), exponent - bits);
}

}  // namespace

float hopper_sum(float c, Format format_a, std::span<const float> a, Format format_b,
                 std::span<const float> b, const TensorCoreSum& rule) {
  GNOMON_ASSERT(a.size() == b.size() && std::ssize(a) <= rule.terms);
  const double start = static_cast<double>(c);
  double plain = start;
  int largest = exponent_of(start, kFp32ExponentMin);
  for (size_t i = 0; i < a.size(); ++i) {
    const double product = static_cast<double>(a[i]) * static_cast<double>(b[i]);
    plain += product;
    if (!std::isfinite(product) || product == 0) continue;
    largest = std::max(largest, exponent_of(static_cast<double>(a[i]), exponent_min(format_a)) +
                                    exponent_of(static_cast<double>(b[i]), exponent_min(format_b)));
  }
  if (std::isnan(plain)) return std::bit_cast<float>(0x7FFFFFFFu);
  if (std::isinf(plain)) return static_cast<float>(plain);
  if (largest == kNoExponent) return 0.0f;
  const int bits = rule.fraction_bits;
  double sum = cut_off(start, largest, bits);
  for (size_t i = 0; i < a.size(); ++i) {
    sum += cut_off(static_cast<double>(a[i]) * static_cast<double>(b[i]), largest, bits);
  }
  if (sum == 0) return 0.0f;
  return static_cast<float>(cut_off(sum, exponent_of(sum, kFp32ExponentMin), rule.result_bits));
}

}  // namespace gnomon

// Quantisation onto the values of a narrow format, kept in BF16. The bits are those of the scalar
// codec in formats.cc, which the tests compare with for every value.
#include <algorithm>
#include <bit>
#include <limits>

#include "base/errors.h"
#include "kernels/cpu/ops.h"

namespace gnomon::cpu {
namespace {

// A block is small enough for its counts to fit 32 bits in every vector lane.
constexpr int64_t kBlock = 4096;

// What rounding to a format needs, as FP32 bit patterns and magic numbers.
struct Rounding {
  explicit Rounding(Format format) {
    const FormatInfo& info = format_info(format);
    shift = 23 - info.mantissa_bits;
    smallest_normal = std::bit_cast<uint32_t>(static_cast<float>(info.smallest_normal));
    largest = std::bit_cast<uint32_t>(static_cast<float>(info.largest));
    // Adding it leaves exactly the multiples of the smallest subnormal, rounded to nearest even.
    magic = static_cast<float>(info.smallest_subnormal * 0x1p23);
    bool is_bf16 = format == Format::kBf16;
    nan_kept = is_bf16 ? 0x7FFFFFFFu : 0u;
    nan_set = is_bf16 ? 0x400000u : info.has_nan ? 0x7FC00000u : largest;
    nan_sign_kept = is_bf16 ? 0x80000000u : 0u;
  }
  int shift;
  uint32_t smallest_normal;
  uint32_t largest;
  float magic;
  // BF16 keeps the sign and payload of a NaN; the narrow formats have one NaN, or none and give the
  // largest.
  uint32_t nan_kept;
  uint32_t nan_set;
  uint32_t nan_sign_kept;
};

template <int kShift>
QuantizeCounts quantize_block(const Rounding& rounding, const bf16* __restrict x, int64_t count,
                              float scale, bf16* __restrict y) {
  const uint32_t smallest_normal = rounding.smallest_normal;
  const uint32_t largest = rounding.largest;
  const float magic = rounding.magic;
  const uint32_t nan_kept = rounding.nan_kept;
  const uint32_t nan_set = rounding.nan_set;
  const uint32_t nan_sign_kept = rounding.nan_sign_kept;
  int32_t saturated = 0;
  int32_t underflowed = 0;
#pragma omp simd reduction(+ : saturated, underflowed)
  for (int64_t i = 0; i < count; ++i) {
    uint32_t u = std::bit_cast<uint32_t>(to_float(x[i]) * scale);
    uint32_t sign = u & 0x80000000u;
    uint32_t a = u ^ sign;
    bool is_nan = a > 0x7F800000u;
    uint32_t normal =
        (a + ((1u << (kShift - 1)) - 1) + ((a >> kShift) & 1u)) & ~((1u << kShift) - 1);
    uint32_t subnormal = std::bit_cast<uint32_t>((std::bit_cast<float>(a) + magic) - magic);
    uint32_t r = a < smallest_normal ? subnormal : normal;
    r = r > largest ? largest : r;
    r = is_nan ? (a & nan_kept) | nan_set : r;
    sign = is_nan ? sign & nan_sign_kept : sign;
    saturated += (a > largest) & !is_nan ? 1 : 0;
    underflowed += (r == 0) & ((x[i].bits & 0x7FFFu) != 0) ? 1 : 0;
    y[i].bits = static_cast<uint16_t>((r | sign) >> 16);
  }
  return {saturated, underflowed};
}

using BlockFunction = QuantizeCounts (*)(const Rounding&, const bf16*, int64_t, float, bf16*);

BlockFunction block_function(int mantissa_bits) {
  switch (mantissa_bits) {
    case 1:
      return quantize_block<22>;
    case 2:
      return quantize_block<21>;
    case 3:
      return quantize_block<20>;
    case 4:
      return quantize_block<19>;
    case 5:
      return quantize_block<18>;
    case 6:
      return quantize_block<17>;
    default:
      GNOMON_ASSERT(mantissa_bits == 7);
      return quantize_block<16>;
  }
}

uint16_t largest_magnitude_bits(const bf16* x, int64_t count) {
  uint16_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) {
    auto magnitude = static_cast<uint16_t>(x[i].bits & 0x7FFFu);
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

}  // namespace

float amax(int threads, std::span<const bf16> x) {
  uint16_t largest = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(max : largest)
  for (int thread = 0; thread < threads; ++thread) {
    Range range = share_of(std::ssize(x), thread, threads, kBlock);
    largest =
        std::max(largest, largest_magnitude_bits(x.data() + range.begin, range.end - range.begin));
  }
  return largest >= 0x7F80u ? std::numeric_limits<float>::infinity() : to_float({largest});
}

QuantizeCounts quantize(int threads, std::span<const bf16> x, Format format, float scale,
                        std::span<bf16> y) {
  GNOMON_ASSERT(format != Format::kFp32 && x.size() == y.size());
  Rounding rounding(format);
  BlockFunction block = block_function(format_info(format).mantissa_bits);
  int64_t saturated = 0;
  int64_t underflowed = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : saturated, underflowed)
  for (int thread = 0; thread < threads; ++thread) {
    Range range = share_of(std::ssize(x), thread, threads, kBlock);
    for (int64_t begin = range.begin; begin < range.end; begin += kBlock) {
      int64_t count = std::min(kBlock, range.end - begin);
      QuantizeCounts counts = block(rounding, x.data() + begin, count, scale, y.data() + begin);
      saturated += counts.saturated;
      underflowed += counts.underflowed;
    }
  }
  return {saturated, underflowed};
}

}  // namespace gnomon::cpu

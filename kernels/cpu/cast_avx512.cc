#include "kernels/cpu/cast_avx512.h"

#include "base/errors.h"

#if defined(__AVX512VBMI__) && defined(__AVX512BW__)
// GCC 12 takes the header's deliberately undefined operands for mistakes.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

namespace gnomon::cpu {
namespace {

constexpr int64_t kCodesPerVector = 64;

// One plane of the table.
struct BytePlane {
  explicit BytePlane(const std::array<uint8_t, 256>& bytes) {
    for (int i = 0; i < 4; ++i) part[i] = _mm512_load_si512(bytes.data() + 64 * i);
  }

  __m512i look_up(__m512i codes, __mmask64 upper_half) const {
    __m512i lower = _mm512_permutex2var_epi8(part[0], codes, part[1]);
    __m512i upper = _mm512_permutex2var_epi8(part[2], codes, part[3]);
    return _mm512_mask_blend_epi8(upper_half, lower, upper);
  }

  __m512i part[4];
};

// Codes of 16 magnitudes, in the lowest bytes and too large by smallest_normal >> shift. Added to
// the power of two in whose binade a unit in the last place is the step that codes have at the
// magnitude, it leaves a whole number of steps; the exponent above the smallest, moved to its
// place, is what a code has besides. All are multiples in order, so that rounding up into the next
// binade comes out right, and the subnormals are those of the smallest exponent.
struct MagnitudeEncoder {
  MagnitudeEncoder(const MagnitudeCodes& format, float scale_by)
      : shift(static_cast<unsigned>(23 - format.mantissa_bits)),
        scale(_mm512_set1_ps(scale_by)),
        cap(_mm512_set1_ps(format.cap)),
        exponent(_mm512_set1_epi32(0x7F800000)),
        smallest(_mm512_set1_epi32(static_cast<int>(format.smallest_normal))),
        steps(_mm512_set1_epi32(static_cast<int>(shift << 23))) {}

  __m512i codes(__m512i magnitudes) const {
    // The second operand comes back where the first is NaN.
    __m512 a = _mm512_min_ps(_mm512_mul_ps(_mm512_castsi512_ps(magnitudes), scale), cap);
    __m512i binade = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(a), exponent), smallest);
    __m512i magic = _mm512_add_epi32(binade, steps);
    __m512 sum = _mm512_add_ps(a, _mm512_castsi512_ps(magic));
    __m512i count = _mm512_sub_epi32(_mm512_castps_si512(sum), magic);
    return _mm512_add_epi32(count, _mm512_srli_epi32(binade, shift));
  }

  unsigned shift;
  __m512 scale, cap;
  __m512i exponent, smallest, steps;
};

// For the lowest bytes of two vectors of FP32 lanes, unpacked from words within 128-bit lanes, in
// the words' order, twice.
__m512i packing() {
  alignas(64) std::array<uint8_t, 64> index{};
  for (size_t i = 0; i < index.size(); ++i) {
    const size_t lane = i % 32 / 8, word = i % 8;
    index[i] = static_cast<uint8_t>(4 * (4 * lane + word % 4) + (word < 4 ? 0 : 64));
  }
  return _mm512_load_si512(index.data());
}

}  // namespace

bool avx512_cast_runs() {
  return __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bw");
}

// (The masked permutations, all lanes set: GCC 12 believes that the plain ones use what is not
// initialised.) Unpacking interleaves within 128-bit lanes, so the codes are first spread over the
// lanes: what comes out is in order.
template <>
int64_t avx512_decode<bf16>(const CodeTable<bf16>& table, const uint8_t* codes, int64_t count,
                            bf16* y) {
  const BytePlane low(table.planes[0]), high(table.planes[1]);
  const __m512i spread = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  int64_t i = 0;
  for (; i + kCodesPerVector <= count; i += kCodesPerVector) {
    __m512i c = _mm512_maskz_permutexvar_epi64(0xFF, spread, _mm512_loadu_si512(codes + i));
    __mmask64 upper_half = _mm512_movepi8_mask(c);
    __m512i b0 = low.look_up(c, upper_half);
    __m512i b1 = high.look_up(c, upper_half);
    _mm512_storeu_si512(y + i, _mm512_unpacklo_epi8(b0, b1));
    _mm512_storeu_si512(y + i + 32, _mm512_unpackhi_epi8(b0, b1));
  }
  return i;
}

template <>
int64_t avx512_decode<float>(const CodeTable<float>& table, const uint8_t* codes, int64_t count,
                             float* y) {
  const BytePlane t0(table.planes[0]), t1(table.planes[1]);
  const BytePlane t2(table.planes[2]), t3(table.planes[3]);
  const __m512i spread = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  int64_t i = 0;
  for (; i + kCodesPerVector <= count; i += kCodesPerVector) {
    __m512i c = _mm512_maskz_permutexvar_epi32(0xFFFF, spread, _mm512_loadu_si512(codes + i));
    __mmask64 upper_half = _mm512_movepi8_mask(c);
    __m512i b0 = t0.look_up(c, upper_half), b1 = t1.look_up(c, upper_half);
    __m512i b2 = t2.look_up(c, upper_half), b3 = t3.look_up(c, upper_half);
    __m512i low01 = _mm512_unpacklo_epi8(b0, b1), low23 = _mm512_unpacklo_epi8(b2, b3);
    __m512i high01 = _mm512_unpackhi_epi8(b0, b1), high23 = _mm512_unpackhi_epi8(b2, b3);
    _mm512_storeu_si512(y + i, _mm512_unpacklo_epi16(low01, low23));
    _mm512_storeu_si512(y + i + 16, _mm512_unpackhi_epi16(low01, low23));
    _mm512_storeu_si512(y + i + 32, _mm512_unpacklo_epi16(high01, high23));
    _mm512_storeu_si512(y + i + 48, _mm512_unpackhi_epi16(high01, high23));
  }
  return i;
}

int64_t avx512_encode(const MagnitudeCodes& format, const bf16* x, int64_t count, float scale,
                      uint8_t* codes) {
  const MagnitudeEncoder encoder(format, scale);
  const __m512i order = packing();
  const __m512i zero = _mm512_setzero_si512();
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  const __m512i infinity = _mm512_set1_epi16(0x7F80);
  const __m512i excess =
      _mm512_set1_epi8(static_cast<char>(format.smallest_normal >> encoder.shift));
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(format.sign_bit));
  const __m512i nan = _mm512_set1_epi8(static_cast<char>(format.nan));
  int64_t i = 0;
  for (; i + kCodesPerVector <= count; i += kCodesPerVector) {
    __m512i bytes[2];
    __mmask32 negative[2], not_number[2];
    for (int half = 0; half < 2; ++half) {
      const __m512i values = _mm512_loadu_si512(x + i + 32 * half);
      const __m512i a = _mm512_and_si512(values, magnitude);
      negative[half] = _mm512_movepi16_mask(values);
      not_number[half] = _mm512_cmpgt_epi16_mask(a, infinity);
      bytes[half] = _mm512_permutex2var_epi8(encoder.codes(_mm512_unpacklo_epi16(zero, a)), order,
                                             encoder.codes(_mm512_unpackhi_epi16(zero, a)));
    }
    __m512i all = _mm512_sub_epi8(_mm512_shuffle_i64x2(bytes[0], bytes[1], 0x44), excess);
    all = _mm512_or_si512(all,
                          _mm512_maskz_mov_epi8(_mm512_kunpackd(negative[1], negative[0]), sign));
    all = _mm512_mask_mov_epi8(all, _mm512_kunpackd(not_number[1], not_number[0]), nan);
    _mm512_storeu_si512(codes + i, all);
  }
  return i;
}

}  // namespace gnomon::cpu

#else

namespace gnomon::cpu {

bool avx512_cast_runs() { return false; }

template <>
int64_t avx512_decode<bf16>(const CodeTable<bf16>&, const uint8_t*, int64_t, bf16*) {
  GNOMON_ASSERT(false);
  return 0;
}
template <>
int64_t avx512_decode<float>(const CodeTable<float>&, const uint8_t*, int64_t, float*) {
  GNOMON_ASSERT(false);
  return 0;
}
int64_t avx512_encode(const MagnitudeCodes&, const bf16*, int64_t, float, uint8_t*) {
  GNOMON_ASSERT(false);
  return 0;
}

}  // namespace gnomon::cpu

#endif

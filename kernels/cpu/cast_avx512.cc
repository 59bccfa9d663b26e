#include "kernels/cpu/cast_avx512.h"

#include "base/errors.h"

#if defined(__AVX512VBMI__) && defined(__AVX512BW__)
#include <immintrin.h>

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

}  // namespace gnomon::cpu

#endif

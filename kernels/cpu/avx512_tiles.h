// Small pieces of AVX512-BF16 work: products of register tiles, transpositions of 16 × 16 squares,
// e^x. Only for files that are compiled for such processors.
#pragma once

// GCC 12 takes the header's deliberately undefined operands for mistakes.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "numerics/formats.h"

namespace gnomon::cpu {

inline constexpr int64_t kLanes = 16;  // FP32 numbers, or BF16 pairs, in a vector

inline __m512i load(const void* from) { return _mm512_loadu_si512(from); }
inline void store(void* to, __m512i value) { _mm512_storeu_si512(to, value); }

// Sixteen BF16 numbers, rounded to nearest even; denormals become zero.
inline void store_bf16(bf16* to, __m512 value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      std::bit_cast<__m256i>(_mm512_cvtneps_pbh(value)));
}

// sum[i] += a[2i]·b[2i] + a[2i+1]·b[2i+1]
inline __m512 add_products(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, std::bit_cast<__m512bh>(a), std::bit_cast<__m512bh>(b));
}

inline __m512i interleaving(int first) {
  // Word 2i takes word `first` + i of the first operand, word 2i+1 the same of the second.
  alignas(64) uint16_t index[32];
  for (int i = 0; i < 16; ++i) {
    index[2 * i] = static_cast<uint16_t>(first + i);
    index[2 * i + 1] = static_cast<uint16_t>(32 + first + i);
  }
  return load(index);
}
inline __m512i interleave_low(__m512i even, __m512i odd) {
  return _mm512_permutex2var_epi16(even, interleaving(0), odd);
}
inline __m512i interleave_high(__m512i even, __m512i odd) {
  return _mm512_permutex2var_epi16(even, interleaving(16), odd);
}
// Pairs (even[i], odd[i]), rounded to BF16.
inline __m512i interleave_bf16(__m512 even, __m512 odd) {
  __m512i even_words = _mm512_zextsi256_si512(std::bit_cast<__m256i>(_mm512_cvtneps_pbh(even)));
  __m512i odd_words = _mm512_zextsi256_si512(std::bit_cast<__m256i>(_mm512_cvtneps_pbh(odd)));
  return interleave_low(even_words, odd_words);
}

// A square of 16 × 16 words of 32 bits in registers.
struct Square {
  __m512i rows[16];

  void transpose() {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
      t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
      rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
      rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
      rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int half = 0; half < 16; half += 8) {
      for (int i = 0; i < 4; ++i) {
        t[half + i] = _mm512_shuffle_i32x4(rows[half + i], rows[half + i + 4], 0x88);
        t[half + i + 4] = _mm512_shuffle_i32x4(rows[half + i], rows[half + i + 4], 0xDD);
      }
    }
    for (int i = 0; i < 4; ++i) {
      rows[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
      rows[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
      rows[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
      rows[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xDD);
    }
  }
};

// e^x within 2 ulp for −87.3 ≤ x ≤ 88.3, clamped outside, NaN kept: fast_exp of vector_math.h.
inline __m512 exponential(__m512 x) {
  // The second operand comes back where either is NaN.
  x = _mm512_max_ps(_mm512_set1_ps(-87.3f), x);
  x = _mm512_min_ps(_mm512_set1_ps(88.3f), x);
  __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)),
                                  _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375f), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

// c[rows,columns] = a[rows,2·pairs]·b (+ c when `accumulate`): a's rows lie a_stride apart, b is
// [pairs][b_columns][2], of which the first `columns`, a multiple of 16, are used.
struct TileProduct {
  int64_t rows, columns, pairs;
  const bf16* a;
  int64_t a_stride;
  const bf16* b;
  int64_t b_columns;
  float* c;
  int64_t c_stride;
  bool accumulate = false;
};

template <int kRows, int kVectors>
inline void register_tile(const TileProduct& x) {
  __m512 sums[kRows][kVectors];
  for (int row = 0; row < kRows; ++row) {
    for (int v = 0; v < kVectors; ++v) {
      sums[row][v] =
          x.accumulate ? _mm512_loadu_ps(x.c + row * x.c_stride + v * kLanes) : _mm512_setzero_ps();
    }
  }
  for (int64_t pair = 0; pair < x.pairs; ++pair) {
    __m512i b[kVectors];
    for (int v = 0; v < kVectors; ++v) b[v] = load(x.b + (pair * x.b_columns + v * kLanes) * 2);
    for (int row = 0; row < kRows; ++row) {
      int32_t two = 0;
      std::memcpy(&two, x.a + row * x.a_stride + pair * 2, sizeof(two));
      __m512i a = _mm512_set1_epi32(two);
      for (int v = 0; v < kVectors; ++v) sums[row][v] = add_products(sums[row][v], a, b[v]);
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(x.c + row * x.c_stride + v * kLanes, sums[row][v]);
    }
  }
}

template <int kRows>
inline void row_tile(TileProduct x) {
  for (; x.columns >= 4 * kLanes; x.columns -= 4 * kLanes) {
    register_tile<kRows, 4>(x);
    x.b += 4 * kLanes * 2;
    x.c += 4 * kLanes;
  }
  switch (x.columns / kLanes) {
    case 3:
      return register_tile<kRows, 3>(x);
    case 2:
      return register_tile<kRows, 2>(x);
    case 1:
      return register_tile<kRows, 1>(x);
    default:
      return;
  }
}

inline void product(TileProduct x) {
  auto next = [&x](int64_t rows) {
    x.rows -= rows;
    x.a += rows * x.a_stride;
    x.c += rows * x.c_stride;
  };
  for (; x.rows >= 6; next(6)) row_tile<6>(x);
  for (; x.rows >= 4; next(4)) row_tile<4>(x);
  switch (x.rows) {
    case 3:
      return row_tile<3>(x);
    case 2:
      return row_tile<2>(x);
    case 1:
      return row_tile<1>(x);
    default:
      return;
  }
}

}  // namespace gnomon::cpu

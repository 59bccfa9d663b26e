// Codes of one byte looked up in a table of 256 values with AVX512-VBMI's byte permutations, the
// table in registers. A file of its own, compiled for such processors: ask avx512_cast_runs()
// first.
#pragma once

#include <array>
#include <cstdint>

#include "numerics/formats.h"

namespace gnomon::cpu {

// The value of every code, whole and as planes of bytes: planes[b][code] is byte b of it.
template <class E>
struct CodeTable {
  explicit CodeTable(const std::array<E, 256>& all_values) : values(all_values) {
    for (size_t b = 0; b < sizeof(E); ++b) {
      for (size_t code = 0; code < values.size(); ++code) {
        planes[b][code] = reinterpret_cast<const uint8_t*>(&values[code])[b];
      }
    }
  }
  std::array<E, 256> values;
  alignas(64) std::array<std::array<uint8_t, 256>, sizeof(E)> planes;
};

// True when this build and this processor have it.
bool avx512_cast_runs();

// y[i] = table.values[codes[i]] for whole vectors of 64 codes; returns how many codes that were.
template <class E>
int64_t avx512_decode(const CodeTable<E>& table, const uint8_t* codes, int64_t count, E* y);

// How magnitudes become codes of at most 8 bits.
struct MagnitudeCodes {
  // From `cap` on the code is that of cap, whatever the magnitude, save NaN's.
  float cap;
  uint32_t smallest_normal;  // FP32 bits
  int mantissa_bits;
  uint8_t sign_bit;
  uint8_t nan;
};

// codes[i] = the code of x[i]·scale, the product rounded to FP32 first, for whole vectors of 64;
// returns how many that were. 0 < scale < ∞.
int64_t avx512_encode(const MagnitudeCodes& format, const bf16* x, int64_t count, float scale,
                      uint8_t* codes);

}  // namespace gnomon::cpu

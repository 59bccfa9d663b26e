// FP32 bit patterns for casts, by counter: a third is plainly random, the rest denormals, specials,
// ties of every narrow format and their neighbours. tests/golden/make_format_goldens.py is the same
// in Python.
#pragma once

#include <array>
#include <cstdint>

#include "base/philox.h"

namespace gnomon {

inline constexpr uint64_t kPatternChunk = 65536;
inline constexpr uint64_t kPatternChunks = 153;  // 10,027,008 patterns

inline uint32_t fp32_pattern(uint64_t index) {
  constexpr std::array<uint32_t, 16> kSpecials = {0x00000000, 0x00000001, 0x00000002, 0x00400000,
                                                  0x007FFFFF, 0x00800000, 0x00800001, 0x7F7FFFFF,
                                                  0x7F7FFFFE, 0x7F7F7FFF, 0x7F7F8000, 0x7F800000,
                                                  0x7F800001, 0x7FBFFFFF, 0x7FC00000, 0x7FFFFFFF};
  std::array<uint32_t, 4> word = philox(2026, 3, index);
  uint32_t sign = (word[0] & 1u) << 31;
  uint32_t kind = (word[0] >> 1) % 8;
  uint32_t fraction = word[1] & 0x7FFFFFu;
  uint32_t exponent = (100 + word[3] % 50) << 23;  // 2^-27 to 2^22: the ends of all narrow formats
  uint32_t dropped = 14 + word[2] % 9;
  uint32_t few_bits = exponent | (fraction >> dropped << dropped);
  uint32_t nudge = word[2] >> 31 != 0 ? 1u : 0xFFFFFFFFu;
  switch (kind) {
    case 0:
    case 1:
    case 2:
      return word[1];
    case 3:
      return sign | fraction;
    case 4:
      return sign | kSpecials[word[1] % kSpecials.size()];
    case 5:
      return sign | few_bits;
    case 6:
      return sign | (few_bits + nudge);
    default:
      return sign | exponent | fraction;
  }
}

}  // namespace gnomon

// Arrays of BF16 or FP32 to the codes of a format of eight bits or fewer and back, at the speed of
// memory: for checkpoint dumps, moments and collectives in low precision. A code is one byte,
// right-aligned, whatever the format's width. Every bit is that of the scalar codec (formats.h).
#pragma once

#include <cstdint>
#include <span>

#include "numerics/formats.h"

namespace gnomon::cpu {

// codes[i] = encode(format, x[i]·scale, saturate), the product in FP32. The format has at most
// eight bits, x and codes are equally long and do not overlap. `threads` is the number of OpenMP
// threads; the result does not depend on it. E is bf16 or float.
template <class E>
void cast_to_codes(int threads, Format format, std::span<const E> x, float scale,
                   std::span<uint8_t> codes, bool saturate = true);

// y[i] = from_float<E>(decode(format, codes[i])·scale), the product in FP32; `scale` is what undoes
// the scale of cast_to_codes, as 1/scale. Bits of a code above the format's width are refused as
// decode refuses them: the caller's mistake, checked once for each block.
template <class E>
void cast_from_codes(int threads, Format format, std::span<const uint8_t> codes, float scale,
                     std::span<E> y);

extern template void cast_to_codes<bf16>(int, Format, std::span<const bf16>, float,
                                         std::span<uint8_t>, bool);
extern template void cast_to_codes<float>(int, Format, std::span<const float>, float,
                                          std::span<uint8_t>, bool);
extern template void cast_from_codes<bf16>(int, Format, std::span<const uint8_t>, float,
                                           std::span<bf16>);
extern template void cast_from_codes<float>(int, Format, std::span<const uint8_t>, float,
                                            std::span<float>);

}  // namespace gnomon::cpu

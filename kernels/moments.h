// How an optimizer's moments are stored: FP32, BF16, or FP8 codes with one scale for each block of
// 128 elements, the first moment as E4M3 and the second as E5M2 (FP8-LM, arXiv 2310.18313; trillion
// tokens in FP8, arXiv 2409.12517). Arithmetic is FP32 in every case.
//
// A scale is a power of two: decoding is then exact, and so is storing a value again that did not
// change; an FP8 value's precision is relative, so that at most one binade of range is given up
// against amax/largest. Values are rounded stochastically: with nearest rounding a second moment in
// E5M2 (steps of 12 to 25%) under beta2 = 0.95 would never fall again, as 5% less rounds back up.
// A second moment that is not zero, or whose first moment is not, is never stored as zero: the
// update divides by its root. It is stored as the smallest code instead, which makes the update
// smaller and never larger.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "numerics/formats.h"

namespace gnomon {

enum class MomentFormat { kFp32, kBf16, kFp8 };  // each narrower than the one before
inline constexpr MomentFormat kMomentFormats[] = {MomentFormat::kFp32, MomentFormat::kBf16,
                                                  MomentFormat::kFp8};
std::string moment_format_name(MomentFormat format);  // "fp32", "bf16", "fp8"
// Throws Error naming the accepted ones.
MomentFormat moment_format_from_name(const std::string& name);

constexpr int64_t kMomentBlock = 128;
constexpr int64_t moment_blocks(int64_t elements) {
  return (elements + kMomentBlock - 1) / kMomentBlock;
}

// value[i] = decode(codes[i]) · scales[i / kMomentBlock]; all zero bits mean all zero values.
struct Fp8Moments {
  std::span<uint8_t> codes;
  std::span<float> scales;
};
using MomentSpan = std::variant<std::span<float>, std::span<bf16>, Fp8Moments>;

// Bytes that `count` moments need in one piece.
int64_t moment_bytes_needed(MomentFormat format, int64_t count);
// Moments in such a piece of memory, which begins at a multiple of 4 bytes.
MomentSpan moments_in(std::span<std::byte> room, MomentFormat format, int64_t count);

// Which moment it is decides the codes of FP8.
enum class Moment { kFirst, kSecond };
// By Moment; one that an optimizer does not have is empty.
using MomentSpans = std::array<MomentSpan, 2>;
// Sums modulo 2³² of the bits of masters and moments, in words as they are stored: as an update
// read them and as it wrote them. One changed word always changes a sum.
struct StateSums {
  uint32_t read = 0;
  uint32_t written = 0;
  bool operator==(const StateSums&) const = default;
};
// What moments in the host's memory stand for.
void decode_moments(const MomentSpan& stored, Moment moment, std::span<float> values);
// Stores values in the host's memory as an update does: a pure function of the values, `seed`,
// `step` and the number of their first element, `first`, a multiple of kMomentBlock.
void encode_moments(std::span<const float> values, Moment moment, uint64_t seed, int64_t step,
                    int64_t first, const MomentSpan& stored);

// Elements [offset, offset + count); `offset` is a multiple of kMomentBlock.
MomentSpan moment_subspan(const MomentSpan& moments, int64_t offset, int64_t count);
int64_t moment_elements(const MomentSpan& moments);
// What element `index` stands for; `format` is the codes' (E4M3 or E5M2).
float moment_value(const MomentSpan& moments, Format format, int64_t index);

}  // namespace gnomon

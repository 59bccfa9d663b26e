#include "kernels/moments.h"

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "base/philox.h"
#include "kernels/cpu/moment_blocks.h"

namespace gnomon {
namespace {

constexpr uint64_t kChangeStream = 0x6368616E;  // "chan"
constexpr int64_t kScalesAlignment = 64;        // bytes

// Where the scales of so many FP8 moments begin.
int64_t scales_offset(int64_t count) {
  return (count + kScalesAlignment - 1) / kScalesAlignment * kScalesAlignment;
}

template <class T>
std::span<T> typed(std::span<std::byte> room, int64_t offset, int64_t count) {
  GNOMON_ASSERT(offset + count * static_cast<int64_t>(sizeof(T)) <= std::ssize(room));
  return {reinterpret_cast<T*>(room.data() + offset), static_cast<size_t>(count)};
}

// Calls `work(begin, count)` for each block.
template <class Work>
void for_blocks(int64_t elements, const Work& work) {
  for (int64_t begin = 0; begin < elements; begin += kMomentBlock) {
    work(begin, std::min(kMomentBlock, elements - begin));
  }
}

}  // namespace

int64_t moment_bytes_needed(MomentFormat format, int64_t count) {
  if (format == MomentFormat::kFp32) return 4 * count;
  if (format == MomentFormat::kBf16) return 2 * count;
  return scales_offset(count) + 4 * moment_blocks(count);
}

MomentSpan moments_in(std::span<std::byte> room, MomentFormat format, int64_t count) {
  if (format == MomentFormat::kFp32) return typed<float>(room, 0, count);
  if (format == MomentFormat::kBf16) return typed<bf16>(room, 0, count);
  return Fp8Moments{typed<uint8_t>(room, 0, count),
                    typed<float>(room, scales_offset(count), moment_blocks(count))};
}

void decode_moments(const MomentSpan& stored, Moment moment, std::span<float> values) {
  std::visit(
      [&](const auto& from) {
        for_blocks(std::ssize(values), [&](int64_t begin, int64_t count) {
          float* to = values.data() + begin;
          if (moment == Moment::kFirst) {
            cpu::load_moments<E4m3Codes>(from, begin, count, to);
          } else {
            cpu::load_moments<E5m2Codes>(from, begin, count, to);
          }
        });
      },
      stored);
}

void encode_moments(std::span<const float> values, Moment moment, uint64_t seed, int64_t step,
                    int64_t first, const MomentSpan& stored) {
  std::visit(
      [&](const auto& to) {
        for_blocks(std::ssize(values), [&](int64_t begin, int64_t count) {
          const float* from = values.data() + begin;
          const std::array<uint32_t, 4> keys =
              philox(seed ^ (kChangeStream << 32), static_cast<uint64_t>(step),
                     static_cast<uint64_t>((first + begin) / kMomentBlock));
          if (moment == Moment::kFirst) {
            cpu::store_moments<E4m3Codes>(to, begin, count, from, nullptr, keys[0]);
          } else {
            cpu::store_moments<E5m2Codes>(to, begin, count, from, from, keys[1]);
          }
        });
      },
      stored);
}

std::string moment_format_name(MomentFormat format) {
  switch (format) {
    case MomentFormat::kFp32:
      return "fp32";
    case MomentFormat::kBf16:
      return "bf16";
    case MomentFormat::kFp8:
      return "fp8";
  }
  GNOMON_ASSERT(false);
  return {};
}

MomentFormat moment_format_from_name(const std::string& name) {
  for (MomentFormat format : kMomentFormats) {
    if (moment_format_name(format) == name) return format;
  }
  throw Error("moments stored as \"" + name + "\"; accepted: fp32, bf16, fp8");
}

MomentSpan moment_subspan(const MomentSpan& moments, int64_t offset, int64_t count) {
  GNOMON_ASSERT(offset % kMomentBlock == 0);
  if (const Fp8Moments* fp8 = std::get_if<Fp8Moments>(&moments)) {
    return Fp8Moments{fp8->codes.subspan(static_cast<size_t>(offset), static_cast<size_t>(count)),
                      fp8->scales.subspan(static_cast<size_t>(offset / kMomentBlock),
                                          static_cast<size_t>(moment_blocks(count)))};
  }
  if (const auto* values = std::get_if<std::span<bf16>>(&moments)) {
    return values->subspan(static_cast<size_t>(offset), static_cast<size_t>(count));
  }
  return std::get<std::span<float>>(moments).subspan(static_cast<size_t>(offset),
                                                     static_cast<size_t>(count));
}

int64_t moment_elements(const MomentSpan& moments) {
  if (const Fp8Moments* fp8 = std::get_if<Fp8Moments>(&moments)) return std::ssize(fp8->codes);
  if (const auto* values = std::get_if<std::span<bf16>>(&moments)) return std::ssize(*values);
  return std::ssize(std::get<std::span<float>>(moments));
}

float moment_value(const MomentSpan& moments, Format format, int64_t index) {
  size_t at = static_cast<size_t>(index);
  if (const Fp8Moments* fp8 = std::get_if<Fp8Moments>(&moments)) {
    return decode(format, fp8->codes[at]) * fp8->scales[static_cast<size_t>(index / kMomentBlock)];
  }
  if (const auto* values = std::get_if<std::span<bf16>>(&moments)) return to_float((*values)[at]);
  return std::get<std::span<float>>(moments)[at];
}

}  // namespace gnomon

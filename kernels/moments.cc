#include "kernels/moments.h"

#include <algorithm>

#include "base/errors.h"

namespace gnomon {

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
  for (MomentFormat format : {MomentFormat::kFp32, MomentFormat::kBf16, MomentFormat::kFp8}) {
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

std::vector<std::span<std::byte>> moment_bytes(const MomentSpan& moments) {
  if (const Fp8Moments* fp8 = std::get_if<Fp8Moments>(&moments)) {
    return {std::as_writable_bytes(fp8->codes), std::as_writable_bytes(fp8->scales)};
  }
  if (const auto* values = std::get_if<std::span<bf16>>(&moments)) {
    return {std::as_writable_bytes(*values)};
  }
  return {std::as_writable_bytes(std::get<std::span<float>>(moments))};
}

}  // namespace gnomon

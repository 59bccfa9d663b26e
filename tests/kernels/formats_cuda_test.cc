// Our codec against the host conversions of CUDA's own headers, where the toolkit is found: every
// BF16 value and ten million FP32 patterns, NaN included.
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>

#include "numerics/formats.h"
#include "tests/kernels/fp32_patterns.h"

namespace gnomon {
namespace {

uint32_t cuda_code(Format format, float value, bool saturate) {
  __nv_saturation_t mode = saturate ? __NV_SATFINITE : __NV_NOSAT;
  switch (format) {
    case Format::kE4m3:
      return __nv_cvt_float_to_fp8(value, mode, __NV_E4M3);
    case Format::kE5m2:
      return __nv_cvt_float_to_fp8(value, mode, __NV_E5M2);
    case Format::kE3m2:
      return __nv_cvt_float_to_fp6(value, __NV_E3M2, cudaRoundNearest);
    case Format::kE2m3:
      return __nv_cvt_float_to_fp6(value, __NV_E2M3, cudaRoundNearest);
    default:
      return __nv_cvt_float_to_fp4(value, __NV_E2M1, cudaRoundNearest);
  }
}

void compare(Format format, uint32_t input) {
  auto value = std::bit_cast<float>(input);
  ASSERT_EQ(encode(format, value, true), cuda_code(format, value, true))
      << fmt::format("{:08x}", input);
  bool has_other_mode = format == Format::kE4m3 || format == Format::kE5m2;
  if (!has_other_mode) return;
  ASSERT_EQ(encode(format, value, false), cuda_code(format, value, false))
      << fmt::format("{:08x}, not saturating", input);
}

class FormatsCuda : public testing::TestWithParam<Format> {};

TEST_P(FormatsCuda, EveryBf16ValueHasCudasCode) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) compare(GetParam(), bits << 16);
}

TEST_P(FormatsCuda, TenMillionFp32PatternsHaveCudasCodes) {
  for (uint64_t i = 0; i < kPatternChunks * kPatternChunk; ++i) {
    compare(GetParam(), fp32_pattern(i));
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(, FormatsCuda,
                         testing::Values(Format::kE4m3, Format::kE5m2, Format::kE3m2, Format::kE2m3,
                                         Format::kE2m1),
                         [](const auto& instance) {
                           return std::string(format_name(instance.param));
                         });

}  // namespace
}  // namespace gnomon

#include "kernels/cpu/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "base/philox.h"

namespace gnomon {
namespace {

const std::vector<Format> kByteFormats = {Format::kE4m3, Format::kE5m2, Format::kE3m2,
                                          Format::kE2m3, Format::kE2m1};
// 1 leaves every tie as it is; the others move values over all binades, into overflow and below.
const std::vector<float> kScales = {1.0f,  0x1p-120f, 0x1p100f, 3.7f,
                                    -3.7f, 0x1p-148f, 0.0f,     INFINITY};

std::vector<bf16> every_bf16() {
  std::vector<bf16> values(0x10000);
  for (uint32_t i = 0; i < 0x10000u; ++i) values[i].bits = static_cast<uint16_t>(i);
  return values;
}

std::vector<float> random_fp32(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::bit_cast<float>(philox(17, 0, i)[0]);
  }
  return values;
}

// Values whose exponent lies where the narrow formats have theirs, with few bits behind, so that
// ties and their neighbours are common.
std::vector<float> near_ties(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    auto words = philox(18, 0, i);
    uint32_t exponent = 105 + words[0] % 40;
    uint32_t fraction = words[1] & 0x7C0000u;
    uint32_t nudge = words[2] % 3 - 1;
    uint32_t magnitude = (exponent << 23 | fraction) + nudge;
    values[i] = std::bit_cast<float>(magnitude | (words[3] & 0x80000000u));
  }
  return values;
}

template <class E>
void expect_the_codec_s_codes(const std::vector<E>& x, int threads) {
  for (Format format : kByteFormats) {
    for (float scale : kScales) {
      for (bool saturate : {true, false}) {
        std::vector<uint8_t> codes(x.size(), 0xAA);
        cpu::cast_to_codes<E>(threads, format, x, scale, codes, saturate);
        for (size_t i = 0; i < x.size(); ++i) {
          ASSERT_EQ(codes[i], encode(format, to_float(x[i]) * scale, saturate))
              << format_name(format) << " " << to_float(x[i]) << " x " << scale;
        }
      }
    }
  }
}

template <class E>
auto bits_of_one(E value) {
  if constexpr (std::is_same_v<E, bf16>) {
    return value.bits;
  } else {
    return std::bit_cast<uint32_t>(value);
  }
}

template <class E>
void expect_the_codec_s_values(int64_t count, int threads) {
  for (Format format : kByteFormats) {
    const uint32_t codes_of_format = 1u << format_info(format).bits;
    std::vector<uint8_t> codes(static_cast<size_t>(count));
    for (size_t i = 0; i < codes.size(); ++i) {
      codes[i] = static_cast<uint8_t>((i * 7 + i / 256) % codes_of_format);
    }
    for (float scale : {1.0f, 0.3f, 0x1p-140f}) {
      std::vector<E> y(codes.size(), from_float<E>(-77.0f));
      cpu::cast_from_codes<E>(threads, format, codes, scale, y);
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_EQ(bits_of_one(y[i]), bits_of_one(from_float<E>(decode(format, codes[i]) * scale)))
            << format_name(format) << " code " << int{codes[i]} << " x " << scale;
      }
    }
  }
}

TEST(Cast, EveryBf16ValueHasTheCodecsCode) { expect_the_codec_s_codes(every_bf16(), 2); }

TEST(Cast, RandomFp32PatternsHaveTheCodecsCodes) {
  expect_the_codec_s_codes(random_fp32(200'003), 1);
}

TEST(Cast, TiesAndTheirNeighboursHaveTheCodecsCodes) {
  expect_the_codec_s_codes(near_ties(200'003), 2);
}

TEST(Cast, EveryCodeHasTheCodecsValueAtEveryPlaceOfAVector) {
  for (int64_t count : {0, 1, 63, 64, 65, 4095, 4097, 70'001}) {
    expect_the_codec_s_values<bf16>(count, 2);
    expect_the_codec_s_values<float>(count, 2);
  }
}

TEST(Cast, ShortArraysAreCastWhole) {
  std::vector<float> all = near_ties(130);
  for (size_t count = 0; count <= all.size(); ++count) {
    std::vector<float> x(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
    std::vector<uint8_t> codes(count);
    cpu::cast_to_codes<float>(3, Format::kE4m3, x, 1.0f, codes);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(codes[i], encode(Format::kE4m3, x[i]));
  }
}

TEST(Cast, ShortBf16ArraysAreCastWholeAndNoFurther) {
  std::vector<bf16> all;
  for (float value : near_ties(200)) all.push_back(to_bf16(value));
  for (size_t count = 0; count <= all.size(); ++count) {
    std::span<const bf16> x(all.data(), count);
    std::vector<uint8_t> codes(count + 1, 0xAA);
    cpu::cast_to_codes<bf16>(3, Format::kE3m2, x, 5.3f, std::span(codes).first(count));
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(codes[i], encode(Format::kE3m2, to_float(x[i]) * 5.3f)) << i << " of " << count;
    }
    ASSERT_EQ(codes[count], 0xAA) << count;
  }
}

// Large results bypass the caches, on a path of their own.
TEST(Cast, LargeArraysHaveTheSameBitsAsSmallOnes) {
  constexpr size_t kCount = (size_t{6} << 20) + 1237;
  std::vector<float> x = near_ties(kCount);
  std::vector<uint8_t> codes(kCount + 64), small(kCount);
  std::vector<float> y(kCount + 16);
  // From an aligned place, so that streaming is possible, whatever the allocator gave.
  auto aligned = [](auto& values, size_t count) {
    auto address = reinterpret_cast<uintptr_t>(values.data());
    return std::span(values).subspan((64 - address % 64) % 64 / sizeof(values[0]), count);
  };
  std::span<uint8_t> large = aligned(codes, kCount);
  cpu::cast_to_codes<float>(2, Format::kE5m2, x, 1.0f, large);
  std::span<float> values = aligned(y, kCount);
  cpu::cast_from_codes<float>(2, Format::kE5m2, large, 0.5f, values);
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(large[i], encode(Format::kE5m2, x[i])) << i;
    ASSERT_EQ(bits_of_one(values[i]), bits_of_one(decode(Format::kE5m2, large[i]) * 0.5f)) << i;
  }
  EXPECT_EQ(codes.back(), 0) << "written behind the end";
}

TEST(CastDeathTest, WrongArgumentsAreRefused) {
  std::vector<float> x(8), y(8);
  std::vector<uint8_t> codes(7), bad(8, 0x10);
  EXPECT_DEATH(cpu::cast_to_codes<float>(1, Format::kE4m3, x, 1.0f, codes), "x.size");
  std::vector<uint8_t> enough(8);
  EXPECT_DEATH(cpu::cast_to_codes<float>(1, Format::kE8m3, x, 1.0f, enough), "bits <= 8");
  EXPECT_DEATH(cpu::cast_from_codes<float>(1, Format::kE2m1, bad, 1.0f, y), "all_within");
}

}  // namespace
}  // namespace gnomon

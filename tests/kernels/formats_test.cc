#include "numerics/formats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/errors.h"
#include "base/philox.h"
#include "tests/support/special_numbers.h"

namespace gnomon {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const std::vector<Format> kEightBitsAndFewer = {Format::kE4m3, Format::kE5m2, Format::kE3m2,
                                                Format::kE2m3, Format::kE2m1};
const std::vector<Format> kReducedBf16 = {Format::kE8m3, Format::kE8m4, Format::kE8m5,
                                          Format::kE8m6};

std::vector<Format> narrow_formats() {
  std::vector<Format> formats = kEightBitsAndFewer;
  formats.insert(formats.end(), kReducedBf16.begin(), kReducedBf16.end());
  return formats;
}

uint32_t sign_bit(Format format) { return 1u << (format_info(format).bits - 1); }

// An independent codec: all finite magnitudes by code, from the definition of the format, and the
// nearest of them.
class TableCodec {
 public:
  explicit TableCodec(Format format) : format_(format) {
    const FormatInfo& info = format_info(format);
    for (uint32_t code = 0; code < sign_bit(format); ++code) {
      uint32_t field = code >> info.mantissa_bits;
      double fraction = static_cast<double>(code & ((1u << info.mantissa_bits) - 1)) /
                        static_cast<double>(1u << info.mantissa_bits);
      double value = field == 0 ? std::ldexp(fraction, 1 - info.bias)
                                : std::ldexp(1.0 + fraction, static_cast<int>(field) - info.bias);
      if (value <= info.largest) values_.push_back(value);
    }
  }
  const std::vector<double>& values() const { return values_; }

  // The code of the nearest magnitude, ties to the even code; saturating.
  uint32_t nearest(double magnitude) const {
    auto above = static_cast<size_t>(std::lower_bound(values_.begin(), values_.end(), magnitude) -
                                     values_.begin());
    if (above == values_.size()) return static_cast<uint32_t>(above) - 1;
    if (above == 0) return 0;
    double up = values_[above] - magnitude;
    double down = magnitude - values_[above - 1];
    if (up == down) return static_cast<uint32_t>(above % 2 == 0 ? above : above - 1);
    return static_cast<uint32_t>(up < down ? above : above - 1);
  }

 private:
  Format format_;
  std::vector<double> values_;
};

TEST(Formats, NamesAreReadBack) {
  EXPECT_EQ(all_formats().size(), 11u);
  for (Format format : all_formats()) EXPECT_EQ(format_from_name(format_name(format)), format);
  EXPECT_EQ(format_name(Format::kE4m3), "e4m3");
}

TEST(Formats, AnUnknownNameIsRefusedWithTheAcceptedOnes) {
  for (const char* name : {"fp8", "E4M3", "", "e4m3 "}) {
    EXPECT_THAT([&] { format_from_name(name); },
                ThrowsMessage<Error>(AllOf(HasSubstr("e4m3"), HasSubstr("bf16"))));
  }
}

TEST(Formats, KindsFollowFromTheBits) {
  for (Format format : all_formats()) {
    const FormatInfo& info = format_info(format);
    EXPECT_EQ(is_fp8(format), info.bits == 8) << format_name(format);
    EXPECT_EQ(is_reduced_mantissa(format), info.exponent_bits == 8 && info.mantissa_bits < 7)
        << format_name(format);
  }
}

TEST(Formats, E4m3HasTheAnchorsOfTheStandard) {
  const FormatInfo& info = format_info(Format::kE4m3);
  EXPECT_EQ(info.largest, 448.0);
  EXPECT_EQ(info.smallest_normal, 0x1p-6);
  EXPECT_EQ(info.smallest_subnormal, 0x1p-9);
  EXPECT_FALSE(info.has_infinity);
  EXPECT_EQ(encode(Format::kE4m3, 448.0f), 0x7Eu);
  EXPECT_EQ(encode(Format::kE4m3, 1.0f), 0x38u);
  EXPECT_EQ(encode(Format::kE4m3, 0x1p-6f), 0x08u);
  EXPECT_EQ(encode(Format::kE4m3, -0x1p-9f), 0x81u);
  EXPECT_EQ(encode(Format::kE4m3, 0x1p-10f), 0x00u);
  EXPECT_EQ(encode(Format::kE4m3, std::nextafter(0x1p-10f, 1.0f)), 0x01u);
  EXPECT_EQ(encode(Format::kE4m3, -0x1p-10f), 0x80u);
  EXPECT_EQ(encode(Format::kE4m3, 464.0f, false), 0x7Eu);
  EXPECT_EQ(encode(Format::kE4m3, std::nextafter(464.0f, 500.0f), false), 0x7Fu);
  EXPECT_EQ(encode(Format::kE4m3, -1000.0f, false), 0xFFu);
  EXPECT_EQ(encode(Format::kE4m3, kInfinityF, false), 0x7Fu);
  EXPECT_EQ(encode(Format::kE4m3, 1e30f), 0x7Eu);
  EXPECT_EQ(encode(Format::kE4m3, -kInfinityF), 0xFEu);
  EXPECT_TRUE(std::isnan(decode(Format::kE4m3, 0x7F)));
  EXPECT_TRUE(std::isnan(decode(Format::kE4m3, 0xFF)));
  EXPECT_EQ(decode(Format::kE4m3, 0x78), 256.0f);
}

TEST(Formats, E5m2HasTheAnchorsOfTheStandard) {
  const FormatInfo& info = format_info(Format::kE5m2);
  EXPECT_EQ(info.largest, 57344.0);
  EXPECT_EQ(info.smallest_normal, 0x1p-14);
  EXPECT_EQ(info.smallest_subnormal, 0x1p-16);
  EXPECT_TRUE(info.has_infinity);
  EXPECT_EQ(encode(Format::kE5m2, 57344.0f), 0x7Bu);
  EXPECT_EQ(encode(Format::kE5m2, 1.0f), 0x3Cu);
  EXPECT_EQ(encode(Format::kE5m2, 0x1p-17f), 0x00u);
  EXPECT_EQ(encode(Format::kE5m2, std::nextafter(0x1p-17f, 1.0f)), 0x01u);
  EXPECT_EQ(encode(Format::kE5m2, std::nextafter(61440.0f, 0.0f), false), 0x7Bu);
  EXPECT_EQ(encode(Format::kE5m2, 61440.0f, false), 0x7Cu);
  EXPECT_EQ(encode(Format::kE5m2, -kInfinityF, false), 0xFCu);
  EXPECT_EQ(encode(Format::kE5m2, kInfinityF), 0x7Bu);
  EXPECT_EQ(decode(Format::kE5m2, 0x7C), kInfinityF);
  EXPECT_EQ(decode(Format::kE5m2, 0xFC), -kInfinityF);
  for (uint32_t code : {0x7Du, 0x7Eu, 0x7Fu, 0xFDu, 0xFEu, 0xFFu}) {
    EXPECT_TRUE(std::isnan(decode(Format::kE5m2, code))) << code;
  }
}

TEST(Formats, TheOtherFormatsHaveTheirLargestAndSmallestValues) {
  std::map<Format, std::pair<double, double>> ends = {{Format::kE3m2, {28.0, 0x1p-4}},
                                                      {Format::kE2m3, {7.5, 0x1p-3}},
                                                      {Format::kE2m1, {6.0, 0x1p-1}},
                                                      {Format::kE8m3, {0x1.Ep127, 0x1p-129}},
                                                      {Format::kE8m4, {0x1.Fp127, 0x1p-130}},
                                                      {Format::kE8m5, {0x1.F8p127, 0x1p-131}},
                                                      {Format::kE8m6, {0x1.FCp127, 0x1p-132}},
                                                      {Format::kBf16, {0x1.FEp127, 0x1p-133}},
                                                      {Format::kFp32, {0x1.FFFFFEp127, 0x1p-149}}};
  for (auto [format, end] : ends) {
    EXPECT_EQ(format_info(format).largest, end.first) << format_name(format);
    EXPECT_EQ(format_info(format).smallest_subnormal, end.second) << format_name(format);
    EXPECT_EQ(decode(format, 1), static_cast<float>(end.second)) << format_name(format);
    EXPECT_EQ(round_to(format, kInfinityF), static_cast<float>(end.first)) << format_name(format);
  }
}

TEST(Formats, EveryCodeOfEveryNarrowFormatRoundTrips) {
  for (Format format : narrow_formats()) {
    for (uint32_t code = 0; code < 2 * sign_bit(format); ++code) {
      float value = decode(format, code);
      uint32_t expected = std::isnan(value) ? sign_bit(format) - 1 : code;
      EXPECT_EQ(encode(format, value, false), expected) << format_name(format) << " " << code;
      if (std::isfinite(value)) {
        EXPECT_EQ(encode(format, value, true), code) << format_name(format) << " " << code;
        EXPECT_EQ(to_float(to_bf16(value)), value) << "exact in BF16";
      }
    }
  }
}

TEST(Formats, EveryBf16CodeRoundTrips) {
  for (uint32_t code = 0; code < 0x10000u; ++code) {
    float value = decode(Format::kBf16, code);
    bool quiet_or_number = !std::isnan(value) || (code & 0x40u) != 0;
    uint32_t expected = quiet_or_number ? code : code | 0x40u;
    ASSERT_EQ(encode(Format::kBf16, value, false), expected) << code;
  }
}

TEST(Formats, Fp32RoundTripsAndKeepsNanQuiet) {
  for (uint32_t i = 0; i < 100000; ++i) {
    uint32_t code = philox(3, 0, i)[0];
    float value = std::bit_cast<float>(code);
    uint32_t expected = std::isnan(value) ? code | 0x400000u : code;
    ASSERT_EQ(encode(Format::kFp32, decode(Format::kFp32, code), false), expected);
  }
}

TEST(Formats, DecodingFollowsTheDefinition) {
  for (Format format : narrow_formats()) {
    TableCodec table(format);
    for (uint32_t code = 0; code < table.values().size(); ++code) {
      EXPECT_EQ(decode(format, code), table.values()[code]) << format_name(format);
      EXPECT_EQ(decode(format, code | sign_bit(format)), -table.values()[code])
          << format_name(format);
    }
    EXPECT_EQ(table.values().back(), format_info(format).largest) << format_name(format);
  }
}

TEST(Formats, EncodingGivesTheNearestValueForRandomBitPatterns) {
  for (Format format : narrow_formats()) {
    TableCodec table(format);
    for (uint32_t i = 0; i < 200000; ++i) {
      uint32_t word = philox(5, static_cast<uint64_t>(format), i)[0];
      float value = std::bit_cast<float>(word);
      if (std::isnan(value)) continue;
      uint32_t sign = std::signbit(value) ? sign_bit(format) : 0u;
      ASSERT_EQ(encode(format, value), sign | table.nearest(std::fabs(value)))
          << format_name(format) << " " << value;
    }
  }
}

TEST(Formats, TiesGoToEvenAndNeighboursOfTiesToTheNearest) {
  for (Format format : narrow_formats()) {
    TableCodec table(format);
    for (uint32_t code = 0; code + 1 < table.values().size(); ++code) {
      auto tie = static_cast<float>((table.values()[code] + table.values()[code + 1]) / 2);
      EXPECT_EQ(encode(format, tie), code + code % 2) << format_name(format);
      EXPECT_EQ(encode(format, std::nextafter(tie, 0.0f)), code) << format_name(format);
      EXPECT_EQ(encode(format, std::nextafter(tie, kInfinityF)), code + 1) << format_name(format);
    }
  }
}

TEST(Formats, NanGivesThePositiveNanOrTheLargestWhereThereIsNone) {
  for (bool saturate : {true, false}) {
    for (float nan : {kNanF, -kNanF, std::bit_cast<float>(0x7F800001u)}) {
      EXPECT_EQ(encode(Format::kE4m3, nan, saturate), 0x7Fu);
      EXPECT_EQ(encode(Format::kE5m2, nan, saturate), 0x7Fu);
      EXPECT_EQ(encode(Format::kE8m3, nan, saturate), 0x7FFu);
      EXPECT_EQ(round_to(Format::kE2m1, nan, saturate), 6.0f);
      EXPECT_EQ(round_to(Format::kE3m2, nan, saturate), 28.0f);
      EXPECT_EQ(round_to(Format::kE2m3, nan, saturate), 7.5f);
    }
  }
}

TEST(Formats, Fp32DenormalsGiveSignedZeroInEightBits) {
  for (Format format : kEightBitsAndFewer) {
    EXPECT_EQ(encode(format, 0x1p-149f), 0u);
    EXPECT_EQ(encode(format, -0x1.8p-127f), sign_bit(format));
    EXPECT_EQ(encode(format, -0.0f), sign_bit(format));
  }
}

TEST(Formats, OverflowWithoutSaturationIsInfinityNanOrTheLargest) {
  EXPECT_EQ(round_to(Format::kE5m2, 1e9f, false), kInfinityF);
  EXPECT_EQ(round_to(Format::kE8m3, std::numeric_limits<float>::max(), false), kInfinityF);
  EXPECT_EQ(round_to(Format::kBf16, -std::numeric_limits<float>::max(), false), -kInfinityF);
  EXPECT_EQ(round_to(Format::kBf16, -std::numeric_limits<float>::max(), true), -0x1.FEp127f);
  EXPECT_TRUE(std::isnan(round_to(Format::kE4m3, 1e9f, false)));
  EXPECT_EQ(round_to(Format::kE2m1, -1e9f, false), -6.0f);
}

TEST(Bf16, RoundsToNearestEvenLikeTheCodec) {
  EXPECT_EQ(to_bf16(1.0f + 0x1p-8f).bits, 0x3F80u);
  EXPECT_EQ(to_bf16(1.0f + 0x1.8p-7f).bits, 0x3F82u);
  for (uint32_t i = 0; i < 200000; ++i) {
    float value = std::bit_cast<float>(philox(9, 0, i)[0]);
    ASSERT_EQ(to_bf16(value).bits, encode(Format::kBf16, value, false)) << value;
  }
}

}  // namespace
}  // namespace gnomon

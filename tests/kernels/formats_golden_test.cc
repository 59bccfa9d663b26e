// Our codec against casts that ml_dtypes made (tests/golden/make_format_goldens.py): every BF16
// value and ten million FP32 patterns. What differs by convention is named below and nowhere else.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <bit>
#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/files.h"
#include "numerics/formats.h"
#include "tests/kernels/fp32_patterns.h"

namespace gnomon {
namespace {

const std::vector<Format> kGoldenFormats = {
    Format::kBf16, Format::kE4m3, Format::kE5m2, Format::kE3m2, Format::kE2m3,
    Format::kE2m1, Format::kE8m3, Format::kE8m4, Format::kE8m5, Format::kE8m6};
constexpr size_t kBf16Values = 0x10000;
constexpr uint16_t kNanMark = 0xFFFF;

std::string golden_file(const std::string& name) {
  return read_file(std::string(GNOMON_GOLDEN_DIR) + "/" + name);
}

// The exceptions, all of them about NaN: what ml_dtypes gives where we give the hardware's one
// positive NaN (PTX's cvt) or, without any NaN, the positive largest. ml_dtypes keeps a NaN's sign;
// FP6 and FP4 get a zero of the opposite sign; of a BF16 NaN's payload, which we keep, only the
// quiet bit is left.
struct NanConvention {
  uint16_t positive;
  uint16_t negative;
};
const std::map<Format, NanConvention> kNanByReference = {
    {Format::kBf16, {0x7FC0, 0xFFC0}}, {Format::kE4m3, {0x7F, 0xFF}},
    {Format::kE5m2, {0x7E, 0xFE}},     {Format::kE3m2, {0x20, 0x00}},
    {Format::kE2m3, {0x20, 0x00}},     {Format::kE2m1, {0x08, 0x00}},
    {Format::kE8m3, {0x7FC, 0xFFC}},   {Format::kE8m4, {0xFF8, 0x1FF8}},
    {Format::kE8m5, {0x1FF0, 0x3FF0}}, {Format::kE8m6, {0x3FE0, 0x7FE0}}};

uint16_t our_nan(Format format, uint32_t input) {
  switch (format) {
    case Format::kBf16:
      return static_cast<uint16_t>(input >> 16 | 0x40u);
    case Format::kE4m3:
    case Format::kE5m2:
      return 0x7F;
    case Format::kE3m2:
    case Format::kE2m3:
      return 0x1F;
    case Format::kE2m1:
      return 0x07;
    default:
      return static_cast<uint16_t>((1u << (format_info(format).bits - 1)) - 1);
  }
}

void expect_reference_code(Format format, uint32_t input, bool saturate, uint16_t reference) {
  auto value = std::bit_cast<float>(input);
  uint32_t ours = encode(format, value, saturate);
  if (!std::isnan(value)) {
    ASSERT_EQ(ours, reference) << fmt::format("{:08x}, saturate {}", input, saturate);
    return;
  }
  NanConvention convention = kNanByReference.at(format);
  EXPECT_EQ(reference, input >> 31 != 0 ? convention.negative : convention.positive);
  ASSERT_EQ(ours, our_nan(format, input)) << fmt::format("{:08x}", input);
}

class FormatsGolden : public testing::TestWithParam<size_t> {
 protected:
  Format format() const { return kGoldenFormats[GetParam()]; }
};

TEST_P(FormatsGolden, EveryBf16ValueHasTheReferencesCode) {
  std::string packed = golden_file("bf16_codes.z");
  std::vector<uint16_t> deltas(2 * kGoldenFormats.size() * kBf16Values);
  uLongf bytes = deltas.size() * sizeof(uint16_t);
  ASSERT_EQ(uncompress(reinterpret_cast<Bytef*>(deltas.data()), &bytes,
                       reinterpret_cast<const Bytef*>(packed.data()), packed.size()),
            Z_OK);
  ASSERT_EQ(bytes, deltas.size() * sizeof(uint16_t));
  for (bool saturate : {false, true}) {
    const uint16_t* delta = deltas.data() + (2 * GetParam() + (saturate ? 1 : 0)) * kBf16Values;
    uint16_t reference = 0;
    for (uint32_t bits = 0; bits < kBf16Values; ++bits) {
      reference = static_cast<uint16_t>(reference + delta[bits]);
      expect_reference_code(format(), bits << 16, saturate, reference);
    }
  }
}

TEST_P(FormatsGolden, TenMillionFp32PatternsHaveTheReferencesCodes) {
  std::istringstream lines(golden_file("fp32_checksums.txt"));
  std::string word;
  std::vector<std::string> columns;
  std::string header;
  std::getline(lines, header);
  std::istringstream names(header);
  names >> word;
  while (names >> word) columns.push_back(word);
  ASSERT_EQ(columns.size(), 2 * kGoldenFormats.size());
  ASSERT_EQ(columns[2 * GetParam()], format_name(format()));
  std::vector<uint16_t> plain(kPatternChunk), saturated(kPatternChunk);
  for (uint64_t chunk = 0; chunk < kPatternChunks; ++chunk) {
    uint64_t number;
    ASSERT_TRUE(lines >> number);
    ASSERT_EQ(number, chunk);
    std::vector<std::string> sums(columns.size());
    for (std::string& sum : sums) lines >> sum;
    for (uint64_t i = 0; i < kPatternChunk; ++i) {
      auto value = std::bit_cast<float>(fp32_pattern(chunk * kPatternChunk + i));
      bool nan = std::isnan(value);
      plain[i] = nan ? kNanMark : static_cast<uint16_t>(encode(format(), value, false));
      saturated[i] = nan ? kNanMark : static_cast<uint16_t>(encode(format(), value, true));
    }
    auto checksum = [](const std::vector<uint16_t>& codes) {
      return fmt::format("{:08x}", crc32(0, reinterpret_cast<const Bytef*>(codes.data()),
                                         static_cast<uInt>(codes.size() * sizeof(uint16_t))));
    };
    ASSERT_EQ(checksum(plain), sums[2 * GetParam()]) << "chunk " << chunk;
    ASSERT_EQ(checksum(saturated), sums[2 * GetParam() + 1]) << "chunk " << chunk << ", saturated";
  }
}

INSTANTIATE_TEST_SUITE_P(, FormatsGolden, testing::Range(size_t{0}, kGoldenFormats.size()),
                         [](const auto& instance) {
                           return std::string(format_name(kGoldenFormats[instance.param]));
                         });

// Infinity and overflow need no exception: there ml_dtypes and we agree.
TEST(FormatsConventions, AreTheReferencesButForTheNamedNans) {
  std::istringstream lines(golden_file("conventions.txt"));
  std::string line;
  int compared = 0;
  while (std::getline(lines, line)) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string name;
    uint32_t input, code;
    ASSERT_TRUE(words >> name >> std::hex >> input >> code) << line;
    expect_reference_code(format_from_name(name), input, false, static_cast<uint16_t>(code));
    ++compared;
  }
  EXPECT_EQ(compared, 6 * 8);
}

}  // namespace
}  // namespace gnomon

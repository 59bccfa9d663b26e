// Stored moments: the codes, rounding by chance, and what AdamW makes of them.
#include "kernels/moments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/errors.h"
#include "kernels/backend.h"
#include "kernels/moment_codes.h"
#include "tests/kernels/reference.h"
#include "tests/support/special_numbers.h"

namespace gnomon {
namespace {

template <class Codes>
constexpr Format kFormatOf = std::is_same_v<Codes, E4m3Codes> ? Format::kE4m3 : Format::kE5m2;

template <class Codes>
class MomentCodes : public testing::Test {};
using BothCodes = testing::Types<E4m3Codes, E5m2Codes>;
TYPED_TEST_SUITE(MomentCodes, BothCodes);

TYPED_TEST(MomentCodes, EveryFiniteCodeIsTheFormatsAndStaysItselfUnderAnyRandomBits) {
  constexpr Format kFormat = kFormatOf<TypeParam>;
  for (uint32_t code = 0; code < 256; ++code) {
    float value = decode(kFormat, code);
    if (!std::isfinite(value)) continue;
    uint8_t byte = static_cast<uint8_t>(code);
    EXPECT_EQ(fp8_value<TypeParam>(byte), value) << code;
    for (uint32_t random : {0u, 1u, 0x8000u, 0xFFFFu}) {
      EXPECT_EQ(fp8_code<TypeParam>(value, random), byte) << code << " " << random;
    }
  }
}

TYPED_TEST(MomentCodes, AValueBetweenTwoCodesBecomesEitherInProportion) {
  constexpr Format kFormat = kFormatOf<TypeParam>;
  for (uint32_t code : {0u, 1u, 7u, 8u, 0x33u, 0x77u}) {
    float low = decode(kFormat, code), high = decode(kFormat, code + 1);
    for (float part : {0.0625f, 0.25f, 0.75f}) {
      float value = low + part * (high - low);
      int up = 0;
      for (uint32_t random = 0; random < 0x10000u; ++random) {
        uint32_t given = fp8_code<TypeParam>(value, random);
        ASSERT_TRUE(given == code || given == code + 1) << value << " " << given;
        up += given == code + 1 ? 1 : 0;
        ASSERT_EQ(fp8_code<TypeParam>(-value, random), (given | 0x80u));
      }
      EXPECT_NEAR(up / 65536.0, static_cast<double>(part), 1e-4) << code;
    }
  }
}

TYPED_TEST(MomentCodes, BeyondTheLargestStaysTheLargest) {
  for (float value : {TypeParam::kLargest * 1.01f, 1e38f, kInfinityF}) {
    EXPECT_EQ(fp8_value<TypeParam>(fp8_code<TypeParam>(value, 0xFFFF)), TypeParam::kLargest);
  }
}

TYPED_TEST(MomentCodes, TheScaleIsTheSmallestPowerOfTwoThatFits) {
  for (float amax : {TypeParam::kLargest, TypeParam::kLargest * 1.0001f, 1.0f, 3e-20f, 7e15f}) {
    float scale = moment_scale<TypeParam>(amax);
    EXPECT_EQ(std::exp2(std::round(std::log2(scale))), scale);
    EXPECT_LE(amax / scale, TypeParam::kLargest);
    EXPECT_GT(amax / (scale / 2), TypeParam::kLargest);
  }
  EXPECT_EQ(moment_scale<TypeParam>(0.0f), 0x1p-100f);
}

TEST(MomentBf16, RoundsByChanceAndKeepsWhatItCanStore) {
  for (float value : {0.0f, 1.0f, -3.5f, 0x1.FEp127f, 0x1p-133f}) {
    for (uint32_t random : {0u, 0x7FFFu, 0xFFFFu}) {
      EXPECT_EQ(to_float(bf16_code(value, random)), value);
    }
  }
  int up = 0;
  for (uint32_t random = 0; random < 0x10000u; ++random) {
    up += to_float(bf16_code(1.0f + 0x1p-9f, random)) > 1.0f ? 1 : 0;
  }
  EXPECT_EQ(up, 0x4000);
  EXPECT_EQ(to_float(bf16_code(std::numeric_limits<float>::max(), 0xFFFF)), 0x1.FEp127f);
}

// Both moments of `count` elements in memory of their own.
struct Moments {
  Moments(MomentFormat format, int64_t count)
      : floats(static_cast<size_t>(count)),
        halves(static_cast<size_t>(count)),
        codes(static_cast<size_t>(count)),
        scales(static_cast<size_t>(moment_blocks(count))) {
    point(format);
  }
  void point(MomentFormat format) {
    if (format == MomentFormat::kFp32) span = std::span(floats);
    if (format == MomentFormat::kBf16) span = std::span(halves);
    if (format == MomentFormat::kFp8) span = Fp8Moments{codes, scales};
  }
  std::vector<float> floats;
  std::vector<bf16> halves;
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  MomentSpan span;
};

UpdateStep adamw_step(int64_t step) {
  double t = static_cast<double>(step);
  return {.learning_rate = 0.01f,
          .beta1 = 0.9f,
          .beta2 = 0.95f,
          .eps = 1e-8f,
          .weight_decay = 0.1f,
          .bias_correction1 = static_cast<float>(1.0 - std::pow(0.9, t)),
          .bias_correction2 = static_cast<float>(1.0 - std::pow(0.95, t)),
          .gradient_scale = 1.0f,
          .seed = 5,
          .step = step};
}

class StoredMoments : public testing::TestWithParam<MomentFormat> {
 protected:
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
};

// Gradients whose sizes differ by 2^40 within a block: their squares leave any 8-bit range.
TEST_P(StoredMoments, ASecondMomentIsNeverZeroWhereTheGradientWasNot) {
  constexpr int64_t kCount = 300;
  Moments m(GetParam(), kCount), v(GetParam(), kCount);
  std::vector<float> gradient(kCount), master(kCount);
  std::vector<bf16> weight(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    gradient[i] = i % 7 == 0 ? 0.0f : std::exp2(static_cast<float>(-(i % 41)));
  }
  for (int64_t t = 1; t <= 20; ++t) {
    backend->update(adamw_step(t), gradient, {m.span, v.span}, master, weight);
    for (int64_t i = 0; i < kCount; ++i) {
      bool moved = moment_value(m.span, Format::kE4m3, i) != 0;
      bool has_square = moment_value(v.span, Format::kE5m2, i) != 0;
      ASSERT_EQ(has_square, gradient[i] != 0) << i;
      ASSERT_TRUE(has_square || !moved);
      // |m| ≤ √v·(1−β1ᵗ)/√(1−β2ᵗ) in exact arithmetic with a constant gradient: no step is larger
      // than the learning rate by more than what storing loses.
      ASSERT_LT(std::fabs(master[i]), 0.02 * static_cast<double>(t)) << i;
    }
  }
}

// 5% less of an E5M2 value rounds to the nearest code back up: rounded so, it would stay for ever.
TEST_P(StoredMoments, TheSecondMomentFallsWhenGradientsDo) {
  constexpr int64_t kCount = 1280;
  Moments m(GetParam(), kCount), v(GetParam(), kCount);
  std::vector<float> gradient(kCount, 1.0f), master(kCount);
  gradient[0] = 1e3f;  // keeps the scales of one block where they are
  std::vector<bf16> weight(kCount);
  for (int64_t t = 1; t <= 200; ++t) {
    if (t == 101) std::fill(gradient.begin() + 1, gradient.end(), 1e-2f);
    backend->update(adamw_step(t), gradient, {m.span, v.span}, master, weight);
  }
  double mean = 0;
  for (int64_t i = 1; i < kCount; ++i) {
    mean += static_cast<double>(moment_value(v.span, Format::kE5m2, i)) / (kCount - 1);
  }
  double expected =
      (1 - std::pow(0.95, 100)) * std::pow(0.95, 100) + 1e-4 * (1 - std::pow(0.95, 100));
  EXPECT_NEAR(mean / expected, 1.0, 0.1);
}

TEST_P(StoredMoments, TheUpdateSumsUpTheStateThatItReadsAndTheOneThatItWrites) {
  constexpr int64_t kCount = 4100;
  const auto other_threads = make_cpu_backend(2);
  Moments m(GetParam(), kCount), v(GetParam(), kCount);
  std::vector<float> master = random_floats(1, kCount);
  std::vector<bf16> weight(kCount);
  StateSums before;
  for (int64_t t = 1; t <= 4; ++t) {
    auto gradient = random_floats(100 + static_cast<uint64_t>(t), kCount);
    const auto& with = t % 2 == 0 ? other_threads : backend;
    const StateSums sums = with->update(adamw_step(t), gradient, {m.span, v.span}, master, weight);
    if (t > 1) {
      EXPECT_EQ(sums.read, before.written) << t;
    }
    EXPECT_NE(sums.read, sums.written);
    before = sums;
  }
  const auto read_now = [&] {
    Moments own_m = m, own_v = v;
    own_m.point(GetParam());
    own_v.point(GetParam());
    std::vector<float> own = master;
    return backend->update(adamw_step(5), master, {own_m.span, own_v.span}, own, weight).read;
  };
  ASSERT_EQ(read_now(), before.written);
  // One bit of each kind of word that is stored; what is not stored is not summed up.
  const auto differs = [&](auto& word) {
    auto* byte = reinterpret_cast<unsigned char*>(&word);
    *byte = static_cast<unsigned char>(*byte ^ 1U);
    const bool seen = read_now() != before.written;
    *byte = static_cast<unsigned char>(*byte ^ 1U);
    return seen;
  };
  EXPECT_TRUE(differs(master[4099]));
  for (Moments* moments : {&m, &v}) {
    EXPECT_EQ(differs(moments->floats[77]), GetParam() == MomentFormat::kFp32);
    EXPECT_EQ(differs(moments->halves[4096]), GetParam() == MomentFormat::kBf16);
    EXPECT_EQ(differs(moments->codes[5]), GetParam() == MomentFormat::kFp8);
    EXPECT_EQ(differs(moments->scales[32]), GetParam() == MomentFormat::kFp8);
  }
}

TEST_P(StoredMoments, CutsAndThreadsChangeNoBit) {
  constexpr int64_t kCount = 10000, kCut = 4992;  // a multiple of the block
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2}) {
    for (int64_t cut : {kCount, kCut}) {
      auto with = make_cpu_backend(threads);
      Moments m(GetParam(), kCount), v(GetParam(), kCount);
      std::vector<float> master = random_floats(1, kCount);
      std::vector<bf16> weight(kCount);
      for (int64_t t = 1; t <= 5; ++t) {
        auto gradient = random_floats(100 + static_cast<uint64_t>(t), kCount);
        for (auto [begin, end] : {std::pair{int64_t{0}, cut}, std::pair{cut, kCount}}) {
          if (begin == end) continue;
          UpdateStep step = adamw_step(t);
          step.first_element = begin;
          step.decayed = 7000 - begin;
          size_t offset = static_cast<size_t>(begin), size = static_cast<size_t>(end - begin);
          backend->update(step, std::span(gradient).subspan(offset, size),
                          {moment_subspan(m.span, begin, end - begin),
                           moment_subspan(v.span, begin, end - begin)},
                          std::span(master).subspan(offset, size),
                          std::span(weight).subspan(offset, size));
        }
      }
      results.push_back(master);
    }
  }
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
  EXPECT_EQ(results[3], results[0]);
}

TEST_P(StoredMoments, TheUpdateStaysCloseToThatOfFp32Moments) {
  constexpr int64_t kCount = 4096;
  Moments m(GetParam(), kCount), v(GetParam(), kCount);
  Moments exact_m(MomentFormat::kFp32, kCount), exact_v(MomentFormat::kFp32, kCount);
  std::vector<float> master(kCount), exact(kCount);
  std::vector<bf16> weight(kCount);
  for (int64_t t = 1; t <= 50; ++t) {
    auto gradient = random_floats(100 + static_cast<uint64_t>(t), kCount);
    for (float& g : gradient) g += 0.3f;
    backend->update(adamw_step(t), gradient, {m.span, v.span}, master, weight);
    backend->update(adamw_step(t), gradient, {exact_m.span, exact_v.span}, exact, weight);
  }
  double dot_product = dot(doubles(master), doubles(exact));
  double cosine = dot_product / std::sqrt(dot(doubles(master), doubles(master)) *
                                          dot(doubles(exact), doubles(exact)));
  EXPECT_GT(cosine, GetParam() == MomentFormat::kFp8 ? 0.99 : 0.9999);
}

INSTANTIATE_TEST_SUITE_P(Formats, StoredMoments,
                         testing::Values(MomentFormat::kFp32, MomentFormat::kBf16,
                                         MomentFormat::kFp8),
                         [](const auto& instance) { return moment_format_name(instance.param); });

TEST(MomentFormats, HaveNames) {
  for (MomentFormat format : {MomentFormat::kFp32, MomentFormat::kBf16, MomentFormat::kFp8}) {
    EXPECT_EQ(moment_format_from_name(moment_format_name(format)), format);
  }
  EXPECT_THROW(moment_format_from_name("fp16"), Error);
}

}  // namespace
}  // namespace gnomon

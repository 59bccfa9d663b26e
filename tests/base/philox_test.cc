#include "base/philox.h"

#include <gtest/gtest.h>

#include <set>

namespace gnomon {
namespace {

using Words = std::array<uint32_t, 4>;

// The known-answer vectors that Random123 publishes for philox4x32-10 (kat_vectors).
TEST(Philox, GivesThePublishedKnownAnswers) {
  EXPECT_EQ(philox(0, Words{0, 0, 0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~uint64_t{0}, Words{~0u, ~0u, ~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, Words{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, StreamAndIndexFillTheCounter) {
  EXPECT_EQ(philox(7, 0x1111222233334444, 0x5555666677778888),
            philox(7, Words{0x77778888, 0x55556666, 0x33334444, 0x11112222}));
}

TEST(Philox, UniformCoversZeroToOneExcluded) {
  EXPECT_EQ(philox_uniform(0), 0.0f);
  EXPECT_EQ(philox_uniform(0x80000000u), 0.5f);
  EXPECT_LT(philox_uniform(0xffffffffu), 1.0f);
  EXPECT_GT(philox_uniform(0xffffffffu), 0.9999999f);
}

TEST(Philox, UniformHasTheMeanAndVarianceOfUniform) {
  constexpr int kDraws = 100'000;
  double sum = 0, squares = 0;
  for (uint64_t i = 0; i < kDraws / 4; ++i) {
    for (uint32_t word : philox(42, 1, i)) {
      double u = philox_uniform(word);
      sum += u;
      squares += u * u;
    }
  }
  double mean = sum / kDraws;
  EXPECT_NEAR(mean, 0.5, 0.004);
  EXPECT_NEAR(squares / kDraws - mean * mean, 1.0 / 12, 0.002);
}

TEST(Philox, IsKnownAtCompileTime) {
  constexpr Words words = philox(0, Words{0, 0, 0, 0});
  static_assert(words[0] == 0x6627e8d5);
}

}  // namespace
}  // namespace gnomon

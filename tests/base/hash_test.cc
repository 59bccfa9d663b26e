#include "base/hash.h"

#include <gtest/gtest.h>

namespace gnomon {
namespace {

TEST(Hash, IsSixteenHexadecimalDigits) {
  EXPECT_EQ(hex64(0xab), "00000000000000ab");
  EXPECT_EQ(hex64(~uint64_t{0}), "ffffffffffffffff");
}

// The XXH3 specification's values for the empty input.
TEST(Hash, GivesThePublishedValuesOfXxh3) {
  EXPECT_EQ(hash64("", 0), 0x2d06800538d394c2u);
  EXPECT_EQ(Hash128().hex(), "99aa06d3014798d86001c324468d497f");
}

TEST(Hash, StreamingInAnyPiecesIsTheSameHash) {
  std::string text(10'000, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i);
  Hash128 whole;
  whole.update(text.data(), text.size());
  for (size_t piece : {1u, 7u, 1000u, 9'999u}) {
    Hash128 pieces;
    for (size_t at = 0; at < text.size(); at += piece)
      pieces.update(text.data() + at, std::min(piece, text.size() - at));
    EXPECT_EQ(pieces.hex(), whole.hex()) << piece;
  }
}

// The numbers that SplitMix64 is published with.
TEST(PlacedHash, HasTheTermsOfItsDefinition) {
  EXPECT_EQ(PlacedHash::term(0, 0), 0xe220a8397b1dcdafu) << "SplitMix64's first number of seed 0";
  EXPECT_EQ(PlacedHash::term(1, 0), 0x6e789e6aa1b965f4u) << "and its second";
  const uint64_t words[] = {0, 0};
  EXPECT_EQ(PlacedHash::terms(words, sizeof(words)), 0xe220a8397b1dcdafu + 0x6e789e6aa1b965f4u);
}

TEST(PlacedHash, IsTheSameInParts) {
  std::string text(1003, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31);
  const uint64_t whole = PlacedHash::terms(text.data(), text.size());
  for (size_t words : {1u, 7u, 125u}) {
    const size_t cut = words * 8;
    EXPECT_EQ(PlacedHash::terms(text.data(), cut) +
                  PlacedHash::terms(text.data() + cut, text.size() - cut, words),
              whole);
  }
}

TEST(PlacedHash, EveryBitPlaceAndSizeMatters) {
  std::string text(64, 'x');
  const auto hash = [&] {
    return PlacedHash::of(PlacedHash::terms(text.data(), text.size()), text.size());
  };
  const uint64_t before = hash();
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(hash(), before) << bit;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
  }
  EXPECT_EQ(hash(), before);
  text.replace(0, 8, "abcdefgh");
  const uint64_t first = hash();
  text.replace(0, 8, "xxxxxxxx");
  text.replace(8, 8, "abcdefgh");
  EXPECT_NE(hash(), first) << "words that changed places";
  std::string zeros(8, '\0');
  EXPECT_NE(PlacedHash::of(PlacedHash::terms(zeros.data(), 7), 7),
            PlacedHash::of(PlacedHash::terms(zeros.data(), 8), 8));
}

TEST(Hash, SeedAndContentMatter) {
  EXPECT_NE(hash64("abc", 3), hash64("abd", 3));
  EXPECT_NE(hash64("abc", 3), hash64("abc", 3, 1));
}

}  // namespace
}  // namespace gnomon

#include "base/hash.h"

#include <gtest/gtest.h>

#include "base/errors.h"

namespace gnomon {
namespace {

TEST(Hash, HexRoundTrips) {
  for (uint64_t value : {uint64_t{0}, uint64_t{1}, uint64_t{0x0123456789abcdef}, ~uint64_t{0}})
    EXPECT_EQ(parse_hex64(hex64(value)), value);
  EXPECT_EQ(hex64(0xab), "00000000000000ab");
}

TEST(Hash, OnlySixteenHexadecimalDigitsAreParsed) {
  for (const char* bad : {"", "ab", "00000000000000abc", "00000000000000g0", "0x000000000000ab",
                          "-000000000000001", " 000000000000001", "000000000000001 "})
    EXPECT_THROW(parse_hex64(bad), Error) << bad;
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

TEST(Hash, SeedAndContentMatter) {
  EXPECT_NE(hash64("abc", 3), hash64("abd", 3));
  EXPECT_NE(hash64("abc", 3), hash64("abc", 3, 1));
}

}  // namespace
}  // namespace gnomon

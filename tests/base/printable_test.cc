// What a terminal may be given of text that others wrote.
#include "base/printable.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gnomon {
namespace {

TEST(PrintableTest, WordsOfAnyLanguageStay) {
  for (const char* text : {"", "a run/1 (\"x\\y\")", "Übung 訓練 тест", "🜚 \xf0\x9f\x98\x80"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(PrintableTest, WhatATerminalObeysIsWrittenOut) {
  EXPECT_EQ(printable("a\x1b[2Jb"), "a\\u001b[2Jb");
  EXPECT_EQ(printable("one\ntwo\tthree\r"), "one\\ntwo\\tthree\\u000d");
  EXPECT_EQ(printable(std::string_view("\0\x7f", 2)), "\\u0000\\u007f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\u009b31m")
      << "CSI in one character";
  EXPECT_EQ(printable("\u202egnp\u2066"), "\\u202egnp\\u2066");
  EXPECT_EQ(printable("a\u200bb\u2028c\ufeff"), "a\\u200bb\\u2028c\\ufeff");
  EXPECT_EQ(printable("\U000e0041"), "\\ue0041");
}

TEST(PrintableTest, BytesThatAreNoTextAreShownAsSuch) {
  EXPECT_EQ(printable("\xff\x9b"
                      "a"),
            "\\xff\\x9ba");
  EXPECT_EQ(printable("\xc3"), "\\xc3");
  EXPECT_EQ(printable("\xe2\x80"), "\\xe2\\x80");
  EXPECT_EQ(printable("\xc0\x8a"), "\\xc0\\x8a") << "a line break in two bytes";
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half a pair of UTF-16";
}

TEST(PrintableTest, ColumnsAreThoseOfATerminal) {
  EXPECT_EQ(columns_of(""), 0u);
  EXPECT_EQ(columns_of("naive"), 5u);
  EXPECT_EQ(columns_of("na\u00efve"), 5u);
  EXPECT_EQ(columns_of("\u8a13\u7df4"), 4u) << "wide";
  EXPECT_EQ(columns_of("\U0001f680!"), 3u);
}

TEST(PrintableTest, AJsonTextKeepsItsMeaning) {
  EXPECT_EQ(printable_json("{\n  \"a\": \"Ü\\n\\u001b\"\n}\n"), "{\n  \"a\": \"Ü\\n\\u001b\"\n}\n");
  EXPECT_EQ(printable_json("\"\xc2\x9b\x7f\u202e\""), "\"\\u009b\\u007f\\u202e\"");
  EXPECT_EQ(printable_json("\"\U000e0041\U0001f600\""), "\"\\udb40\\udc41\U0001f600\"");
  EXPECT_EQ(printable_json("\"\xff\""), "\"\\ufffd\"");
}

TEST(PlainNumberTest, HasThreeDigitsAndNoExponent) {
  EXPECT_EQ(plain_number(4.1934), "4.19");
  EXPECT_EQ(plain_number(0.25), "0.25");
  EXPECT_EQ(plain_number(100), "100");
  EXPECT_EQ(plain_number(999.7), "1,000");
  EXPECT_EQ(plain_number(1e4), "10,000");
  EXPECT_EQ(plain_number(-22949), "-22,900");
  EXPECT_EQ(plain_number(123456789), "123,000,000");
  EXPECT_EQ(plain_number(3e20), "over 10^15");
  EXPECT_EQ(plain_number(std::nan("")), "not finite");
}

}  // namespace
}  // namespace gnomon

#include "controller/daemon/write_trouble.h"

#include <gtest/gtest.h>

namespace gnomon {
namespace {

TEST(WriteTroubleTest, ItsBeginItsLengthAndItsEndAreSaidOnce) {
  WriteTrouble trouble;
  EXPECT_EQ(trouble.outcome("", 10).text, "");
  const WriteTrouble::Line first = trouble.outcome("no room", 100);
  EXPECT_EQ(first.text,
            "the ledger cannot be written, and what is not recorded is not acknowledged: no room");
  EXPECT_FALSE(first.well);
  EXPECT_EQ(trouble.outcome("no room", 101).text, "");
  EXPECT_EQ(trouble.outcome("no room", 399).text, "");
  EXPECT_EQ(trouble.outcome("no room", 400).text,
            "the ledger cannot be written since 300 s: no room");
  EXPECT_EQ(trouble.outcome("no room", 401).text, "");
  const WriteTrouble::Line last = trouble.outcome("", 420);
  EXPECT_TRUE(last.well);
  EXPECT_EQ(
      last.text,
      "the ledger can be written again, after 320 s; 5 groups of writes failed, and what was not "
      "recorded was not acknowledged");
  EXPECT_EQ(trouble.outcome("", 421).text, "");
  EXPECT_NE(trouble.outcome("again", 500).text, "");
}

}  // namespace
}  // namespace gnomon

#include "base/errors.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace gnomon {
namespace {

TEST(ConfigErrorTest, SaysFileLineKeyValueAndWhatIsAccepted) {
  ConfigError error("run.toml", 12, "optimizer.beta1", "1.5", "a number in [0, 1)");
  EXPECT_STREQ(error.what(),
               "run.toml:12: optimizer.beta1 = 1.5: not accepted; expected a number in [0, 1)");
  EXPECT_EQ(error.file(), "run.toml");
  EXPECT_EQ(error.line(), 12);
  EXPECT_EQ(error.key(), "optimizer.beta1");
  EXPECT_EQ(error.value(), "1.5");
  EXPECT_EQ(error.accepted(), "a number in [0, 1)");
}

TEST(ConfigErrorTest, SeveralAreSaidByTheirLines) {
  const ConfigError late("f", 9, "c", "", "x"), early("f", 1, "a", "", "x"),
      middle("f", 5, "b", "", "x");
  const ConfigError all(std::vector{ConfigError(std::vector{late, early}), middle});
  EXPECT_STREQ(all.what(),
               "f:1: a: not accepted; expected x\nf:5: b: not accepted; expected x\n"
               "f:9: c: not accepted; expected x");
  EXPECT_EQ(all.line(), 1);
}

TEST(ConfigErrorTest, LeavesOutWhatIsUnknown) {
  EXPECT_STREQ(ConfigError("run.toml", 0, "model", "", "a table").what(),
               "run.toml: model: not accepted; expected a table");
  EXPECT_STREQ(ConfigError("", 0, "--port", "70000", "1 to 65535").what(),
               "--port = 70000: not accepted; expected 1 to 65535");
}

TEST(FormatErrorTest, SaysFileOffsetFoundAndExpected) {
  FormatError error("train.bin", 5'000'000'000, "token 9", "a token below 5");
  EXPECT_STREQ(error.what(),
               "train.bin: at byte 5000000000: found token 9, expected a token below 5");
  EXPECT_EQ(error.offset_bytes(), 5'000'000'000);
}

TEST(SystemErrorTest, SaysActionPathAndReason) {
  SystemError error("open", "a.bin", ENOENT);
  EXPECT_STREQ(error.what(), "cannot open a.bin: No such file or directory");
  EXPECT_EQ(error.error_number(), ENOENT);
}

TEST(AssertionDeathTest, HoldsInEveryBuildType) {
  EXPECT_DEATH(GNOMON_ASSERT(1 == 2), "assertion failed: 1 == 2");
  GNOMON_ASSERT(1 == 1);
}

}  // namespace
}  // namespace gnomon

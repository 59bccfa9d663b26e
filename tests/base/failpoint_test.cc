#include "base/failpoint.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fstream>

#include "base/errors.h"
#include "base/temporary_directory.h"

namespace gnomon {
namespace {

using failpoint::Point;
using failpoint::reached;

class FailpointTest : public ::testing::Test {
 protected:
  ~FailpointTest() override { failpoint::set(""); }
};

TEST_F(FailpointTest, NothingHappensUnlessItIsSet) {
  failpoint::set("");
  for (int i = 0; i < 3; ++i) reached(Point::kBeforeCommit);
  EXPECT_EQ(failpoint::wall_clock_offset(), 0);
}

TEST_F(FailpointTest, AnErrorComesAtTheTimeThatWasNamedAlone) {
  failpoint::set("before_commit=error@2;backup_copy=error");
  reached(Point::kBeforeCommit);
  EXPECT_THROW(reached(Point::kBeforeCommit), Error);
  reached(Point::kBeforeCommit);
  for (int i = 0; i < 3; ++i) EXPECT_THROW(reached(Point::kBackupCopy), Error);
  reached(Point::kAfterCommit);
}

TEST_F(FailpointTest, KillIsSigkillAtThatVeryMoment) {
  EXPECT_EXIT(
      {
        failpoint::set("after_commit=kill@2");
        reached(Point::kAfterCommit);
        std::fputs("once\n", stderr);
        reached(Point::kAfterCommit);
      },
      ::testing::KilledBySignal(SIGKILL), "once");
}

TEST_F(FailpointTest, TheWallClockIsOffByWhatTheFileSaysNow) {
  const TemporaryDirectory folder;
  const std::string file = folder / "offset";
  failpoint::set("wall_clock=offset:" + file);
  EXPECT_EQ(failpoint::wall_clock_offset(), 0);
  std::ofstream(file) << "-86400.5";
  EXPECT_EQ(failpoint::wall_clock_offset(), -86400.5);
}

TEST_F(FailpointTest, WhatIsNoFailpointIsRefused) {
  for (const char* wrong :
       {"before_commit", "nowhere=kill", "before_commit=explode", "before_commit=kill@0",
        "before_commit=delay:", "after_commit=error", "before_commit=kill@2x", "wall_clock=kill"}) {
    EXPECT_THROW(failpoint::set(wrong), ConfigError) << wrong;
  }
}

}  // namespace
}  // namespace gnomon

#include "base/child_process.h"

#include <gtest/gtest.h>

#include <csignal>

#include "base/temporary_directory.h"

namespace gnomon {
namespace {

TEST(ChildProcessTest, OneThatHasBeenStoppedGoesOnOnceItIsWoken) {
  const TemporaryDirectory folder;
  ChildProcess child({"/bin/sh", "-c", "kill -STOP $$; exit 7"}, folder / "output");
  EXPECT_TRUE(eventually([&] { return child.wake_if_stopped(); }));
  EXPECT_EQ(child.wait(), 7);
}

TEST(ChildProcessTest, OneThatRunsIsLeftAlone) {
  const TemporaryDirectory folder;
  ChildProcess child({"/bin/sleep", "60"}, folder / "output");
  EXPECT_FALSE(child.wake_if_stopped());
  EXPECT_TRUE(child.running());
  child.signal(SIGKILL);
  EXPECT_EQ(child.wait(), -SIGKILL);
}

}  // namespace
}  // namespace gnomon

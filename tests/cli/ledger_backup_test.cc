// `gnomon ledger backup` with a real controller, and what is shown meanwhile.
#include <gmock/gmock.h>

#include "base/files.h"
#include "tests/cli/program.h"
#include "tests/support/daemon_process.h"

namespace gnomon::cli {
namespace {

using test::EndedProcess;
using ::testing::HasSubstr;

// Other requests give up after ten seconds.
TEST(LedgerBackup, IsWaitedForHoweverLongItTakes) {
  test::TemporaryDirectory folder;
  write_file_atomically(folder / "gnomond.toml", "[backup]\nfolder = \".\"\n");
  test::DaemonProcess daemon({"--config", (folder / "gnomond.toml").string()});
  daemon.start({.environment = {{"GNOMON_FAILPOINTS", "backup_copy=delay:11000"}}});
  const EndedProcess done = run_gnomon({"ledger", "backup", "--url", daemon.url()});
  EXPECT_EQ(done.status, 0) << done.errors;
  EXPECT_THAT(done.output, HasSubstr("every page checked"));
  EXPECT_THAT(done.errors, HasSubstr("is asked for a backup"));
}

TEST(LedgerBackup, OfAFileShowsHowMuchIsCopied) {
  test::DaemonProcess daemon;
  daemon.start();
  const EndedProcess done = run_gnomon({"ledger", "backup", "--ledger", daemon.ledger().string(),
                                        "--out", (daemon.folder() / "copy.sqlite").string()});
  EXPECT_EQ(done.status, 0) << done.errors;
  EXPECT_THAT(done.errors, HasSubstr("MiB copied 1/1 100%  checking every page"));
}

TEST(LedgerBackup, OnlyOfAFileIsOneCompact) {
  const EndedProcess done =
      run_gnomon({"ledger", "backup", "--url", "http://127.0.0.1:9", "--compact"});
  EXPECT_EQ(done.status, 2);
  EXPECT_THAT(done.errors, HasSubstr("--compact"));
}

}  // namespace
}  // namespace gnomon::cli

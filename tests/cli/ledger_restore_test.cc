// `gnomon ledger restore` by root, for the user that gnomond runs as.
#include <gmock/gmock.h>
#include <unistd.h>

#include "base/file_access.h"
#include "base/files.h"
#include "storage/ledger.h"
#include "storage/ledger_backup.h"
#include "tests/cli/program.h"
#include "tests/support/temporary_directory.h"

namespace gnomon::cli {
namespace {

namespace fs = std::filesystem;
using test::EndedProcess;

constexpr unsigned kUser = 61234;
constexpr unsigned kGroup = 61235;

class RestoreByRootTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root gives files to others";
    fs::permissions(folder.path(), fs::perms(0755));  // as whom root restores must get in
    fs::create_directory(place);
    for (const fs::path& one : {ledger, backup}) {
      LedgerOptions options;
      options.file = one;
      const Ledger made(options);
    }
    fs::remove(ledger.string() + ".lock");
    give(place, 0750);
  }
  static void give(const fs::path& file, unsigned mode) {
    give_ownership(FileDescriptor::open(file, 0), {kUser, kGroup, mode}, file);
  }
  EndedProcess restore() {
    return run_gnomon(
        {"ledger", "restore", "--from", backup.string(), "--ledger", ledger.string(), "--force"});
  }
  // Checks every file in the ledger's folder, the ledger itself included.
  void expect_ownership(unsigned mode) {
    int files = 0;
    for (const auto& entry : fs::directory_iterator(place)) {
      const Ownership found = ownership_of(entry.path()).value();
      EXPECT_EQ(found.owner, kUser) << entry.path();
      EXPECT_EQ(found.group, kGroup) << entry.path();
      EXPECT_EQ(found.mode, mode) << entry.path();
      ++files;
    }
    EXPECT_GE(files, 2) << "the ledger and its lock";
  }

  test::TemporaryDirectory folder;
  fs::path place = folder / "state";
  fs::path ledger = place / "ledger.sqlite";
  fs::path backup = folder / "backup.sqlite";
};

TEST_F(RestoreByRootTest, TheCopyAndWhatIsSetAsideAreTheServices) {
  give(ledger, 0600);
  const EndedProcess done = restore();
  EXPECT_EQ(done.status, 0) << done.errors;
  expect_ownership(0600);
}

TEST_F(RestoreByRootTest, WhereThereWasNoLedgerTheFolderSaysWhose) {
  fs::remove(ledger);
  const EndedProcess done = restore();
  EXPECT_EQ(done.status, 0) << done.errors;
  expect_ownership(0640);
}

// Whoever may write the folder may put a link there, to where root alone may make files.
TEST_F(RestoreByRootTest, ALinkInThePlaceOfTheLockLeadsNowhere) {
  const fs::path target = folder / "of-root";
  fs::create_symlink(target, ledger.string() + ".lock");
  const EndedProcess done = restore();
  EXPECT_NE(done.status, 0);
  EXPECT_THAT(done.errors, ::testing::HasSubstr("ledger.sqlite.lock is a link"));
  EXPECT_FALSE(fs::exists(target));
}

TEST_F(RestoreByRootTest, ALinkToAPlaceOfRootsIsNoWayIn) {
  fs::remove(ledger);
  const fs::path roots = folder / "roots.sqlite";
  write_file_atomically(roots, "precious");
  fs::create_symlink(roots, ledger);
  const EndedProcess done = restore();
  EXPECT_NE(done.status, 0);
  EXPECT_EQ(read_file(roots), "precious");
}

TEST_F(RestoreByRootTest, ABackupThatTheServiceCannotReadIsToldAsSuch) {
  fs::permissions(backup, fs::perms(0600));
  const EndedProcess done = restore();
  EXPECT_NE(done.status, 0);
  EXPECT_THAT(done.errors, ::testing::HasSubstr("cannot be read by user 61234"));
}

}  // namespace
}  // namespace gnomon::cli

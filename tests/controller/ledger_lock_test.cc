// One ledger has one daemon, by whatever name somebody reaches it.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/file.h>

#include <chrono>
#include <set>
#include <thread>

#include "base/files.h"
#include "storage/ledger_backup.h"
#include "tests/controller/api_fixture.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;
using test::DaemonProcess;
using test::EndedProcess;
using test::run_gnomond;
using test::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::set<std::string> files_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

class LedgerLockTest : public ::testing::Test {
 protected:
  LedgerLockTest() {
    daemon.start();
    HttpClient client = daemon.client();
    client.checked("POST", "/v1/runs", to_json(test_registration("kept", "1")));
    back_up_ledger(daemon.ledger(), backup);
  }
  // That neither a daemon nor a restore gets at the ledger by this name, and what is left of them.
  void expect_refused(const fs::path& name) {
    const std::set<std::string> before = files_in(elsewhere.path());
    const std::string holder = fmt::format("in use by another gnomond (process {})", daemon.pid());
    const EndedProcess second = run_gnomond({"--listen", "127.0.0.1:0", "--ledger", name.string()});
    EXPECT_EQ(second.status, 2);
    EXPECT_THAT(second.output, AllOf(HasSubstr(holder), HasSubstr(name.filename().string())));
    try {
      restore_ledger(backup, name, true);
      ADD_FAILURE() << "the ledger of a daemon was replaced";
    } catch (const LedgerError& error) {
      EXPECT_THAT(error.what(), HasSubstr(holder));
    }
    EXPECT_EQ(files_in(elsewhere.path()), before);
    EXPECT_EQ(daemon.client().request("GET", "/readyz").status, 200);
  }

  DaemonProcess daemon;
  TemporaryDirectory elsewhere;
  fs::path backup = daemon.folder() / "backup.sqlite";
};

TEST_F(LedgerLockTest, ASymbolicLinkIsTheSameLedger) {
  const fs::path link = elsewhere / "ledger.sqlite";
  fs::create_symlink(daemon.ledger(), link);
  expect_refused(link);
  const fs::path folder = elsewhere / "folder";
  fs::create_directory_symlink(daemon.folder(), folder);
  expect_refused(folder / "ledger.sqlite");
}

TEST_F(LedgerLockTest, AHardLinkIsTheSameLedger) {
  fs::create_hard_link(daemon.ledger(), elsewhere / "ledger.sqlite");
  expect_refused(elsewhere / "ledger.sqlite");
}

TEST_F(LedgerLockTest, RemovingTheLockFileDoesNotUnlockTheLedger) {
  fs::remove(daemon.ledger().string() + ".lock");
  expect_refused(daemon.ledger());
  EXPECT_FALSE(fs::exists(daemon.ledger().string() + ".lock")) << "of those that were refused";
}

TEST_F(LedgerLockTest, AProgramThatCopiesTheLedgerKeepsAStartWaitingForAMoment) {
  EXPECT_EQ(daemon.stop(), 0);
  FileDescriptor copying = FileDescriptor::open(daemon.ledger(), O_RDONLY);
  ASSERT_EQ(::flock(copying.get(), LOCK_SH), 0);
  {
    const std::jthread copy([&] {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      copying = FileDescriptor();
    });
    daemon.start();
  }
  EXPECT_EQ(daemon.stop(), 0);
  copying = FileDescriptor::open(daemon.ledger(), O_RDONLY);
  ASSERT_EQ(::flock(copying.get(), LOCK_SH), 0);
  const EndedProcess second =
      run_gnomond({"--listen", "127.0.0.1:0", "--ledger", daemon.ledger().string()});
  EXPECT_EQ(second.status, 2);
  EXPECT_THAT(second.output, HasSubstr("a program that copies it (flock)"));
}

// SQLite's lock on the ledger says to other programs that its WAL is in use: without it the sqlite3
// that looked last removes the WAL under the daemon. A process that closes any descriptor of the
// file loses it.
TEST_F(LedgerLockTest, ABackupLeavesSqliteItsLock) {
  const auto holder = [this] {
    const FileDescriptor file = FileDescriptor::open(daemon.ledger(), O_RDONLY);
    struct flock lock {};
    lock.l_type = F_WRLCK;
    EXPECT_EQ(::fcntl(file.get(), F_GETLK, &lock), 0);
    return lock.l_type == F_UNLCK ? 0 : lock.l_pid;
  };
  EXPECT_EQ(daemon.stop(), 0);
  const fs::path config = daemon.folder() / "gnomond.toml";
  write_file_atomically(config, "[backup]\nfolder = \".\"\n");
  DaemonProcess other({"--config", config.string()});
  fs::rename(daemon.ledger(), other.ledger());
  other.start();
  fs::create_symlink(other.ledger(), daemon.ledger());
  EXPECT_EQ(holder(), other.pid());
  other.client().checked("POST", "/v1/backups", "{}");
  EXPECT_EQ(holder(), other.pid());
}

class LedgerNameTest : public ::testing::Test {
 protected:
  DaemonProcess place;
  EndedProcess start() {
    return run_gnomond({"--listen", "127.0.0.1:0", "--ledger", place.ledger().string()});
  }
};

TEST_F(LedgerNameTest, ALinkToNothingBecomesNoNewLedger) {
  const fs::path target = place.folder() / "unmounted" / "ledger.sqlite";
  fs::create_symlink(target, place.ledger());
  for (const bool folder_is_there : {false, true}) {
    if (folder_is_there) fs::create_directory(target.parent_path());
    const EndedProcess result = start();
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.output,
                HasSubstr(fmt::format("is a link to {}, which does not exist", target.string())));
  }
  EXPECT_THAT(files_in(target.parent_path()), IsEmpty());
  EXPECT_EQ(files_in(place.folder()), (std::set<std::string>{"ledger.sqlite", "unmounted"}));
}

TEST_F(LedgerNameTest, ALinkInACircleIsRefused) {
  fs::create_symlink(place.ledger(), place.ledger());
  const EndedProcess result = start();
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.output, HasSubstr("leads nowhere"));
}

// The WAL of a daemon that was killed lies beside the file, not beside the link.
TEST_F(LedgerNameTest, ThroughALinkNothingIsLost) {
  DaemonProcess real;
  real.start();
  real.client().checked("POST", "/v1/runs", to_json(test_registration("kept", "1")));
  real.kill();
  fs::create_symlink(real.ledger(), place.ledger());
  place.start();
  EXPECT_EQ(place.client().request("GET", "/v1/runs/run-1").status, 200);
  EXPECT_EQ(place.stop(), 0);
  EXPECT_TRUE(fs::is_symlink(place.ledger()));
  EXPECT_EQ(files_in(place.folder()), (std::set<std::string>{"ledger.sqlite", "log", "port"}));
}

TEST_F(LedgerNameTest, ANewLedgerIsToldInTheLogAndOneThatIsThereIsNot) {
  const std::string line = "new ledger created at " + place.ledger().string();
  place.start();
  EXPECT_THAT(place.log(), HasSubstr(line));
  EXPECT_EQ(place.stop(), 0);
  const size_t before = place.log().size();
  place.start();
  EXPECT_EQ(place.log().find(line, before), std::string::npos);
}

}  // namespace
}  // namespace gnomon

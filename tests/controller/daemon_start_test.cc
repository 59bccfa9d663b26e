// How the daemon starts, and how it refuses to: with status 2, a sentence that names the trouble,
// and nothing left behind.
#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <fstream>
#include <set>

#include "base/files.h"
#include "controller/daemon/descriptors.h"
#include "tests/controller/api_fixture.h"

namespace gnomon {
namespace {

using test::DaemonProcess;
using test::EndedProcess;
using test::run_gnomond;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(DaemonStartTest, ABadPolicyIsRefusedWithItsLineAndNothingIsStarted) {
  DaemonProcess place;  // for its folder
  std::filesystem::path policy = place.folder() / "bad.toml";
  write_file_atomically(policy, "mode = \"enforce\"\n[window]\nevery = \"often\"\n");
  EndedProcess result =
      run_gnomond({"--policy", policy.string(), "--ledger", place.ledger().string()});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.output, HasSubstr(policy.string() + ":3"));
  EXPECT_THAT(result.output, HasSubstr("often"));
  EXPECT_FALSE(std::filesystem::exists(place.ledger()));
}

TEST(DaemonStartTest, AddressesThatOthersCanReachAreRefused) {
  DaemonProcess place;
  EndedProcess result = run_gnomond({"--listen", "0.0.0.0:0", "--ledger", place.ledger().string()});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.output, HasSubstr("loopback"));
  EXPECT_FALSE(std::filesystem::exists(place.ledger()));
}

TEST(DaemonStartTest, UnknownOptionsAreRefusedAndHelpAndVersionAreGiven) {
  const EndedProcess slip = run_gnomond({"--lisen", "x"});
  EXPECT_EQ(slip.status, 2);
  EXPECT_THAT(slip.output, HasSubstr("did you mean --listen?"));
  EXPECT_THAT(run_gnomond({"--zzz"}).output, HasSubstr("--help"));
  EXPECT_EQ(run_gnomond({"--log-level", "loud"}).status, 2);
  EXPECT_THAT(run_gnomond({"--help"}).output, HasSubstr("--port-file"));
  EndedProcess version = run_gnomond({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_THAT(version.output, HasSubstr("gnomond "));
}

TEST(DaemonStartTest, ASecondDaemonOnTheSameLedgerRefusesToStart) {
  DaemonProcess daemon;
  daemon.start();
  EndedProcess second =
      run_gnomond({"--listen", "127.0.0.1:0", "--ledger", daemon.ledger().string()});
  EXPECT_EQ(second.status, 2);
  EXPECT_THAT(second.output, HasSubstr(fmt::format("process {}", daemon.pid())));
}

// Files that are open are counted: the limit is raised as far as connections need, or the start is
// refused with the number there could be.
TEST(DaemonStartTest, MoreConnectionsThanDescriptorsAreRefused) {
  DaemonProcess place;
  const std::filesystem::path config = place.folder() / "gnomond.toml";
  write_file_atomically(config, "[limits]\nconnections = 1000\n");
  EndedProcess result = test::run_to_end(
      {"/bin/sh", "-c",
       fmt::format("ulimit -n 600 && exec {} --config {} --ledger {} --listen 127.0.0.1:0", GNOMOND,
                   config.string(), place.ledger().string())});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.output, HasSubstr("limits.connections"));
  EXPECT_THAT(result.output, HasSubstr("at most 472 connections"));
  EXPECT_FALSE(std::filesystem::exists(place.ledger()));
}

TEST(DaemonStartTest, WhatIsAcceptedInPlaceOfTooManyConnectionsCanBeHad) {
  EXPECT_THAT(connections_that_fit(600, 1152), HasSubstr("at most 472 connections"));
  EXPECT_THAT(connections_that_fit(129, 1152), HasSubstr("at most 1 connections"));
  for (const uint64_t files : {0, 100, 128}) {
    EXPECT_THAT(connections_that_fit(files, 1152),
                AllOf(HasSubstr("more open files"), HasSubstr("1152"), Not(HasSubstr("at most"))));
  }
}

TEST(DaemonStartTest, TheLimitOfDescriptorsIsRaisedToWhatConnectionsNeed) {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit low{200, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &low);
  DaemonProcess daemon;
  daemon.start();
  ::setrlimit(RLIMIT_NOFILE, &before);
  rlimit raised{};
  ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &raised), 0);
  EXPECT_EQ(raised.rlim_cur, 1024u + 128u);
}

class RefusedStartTest : public ::testing::Test {
 protected:
  // Everything in the test's folder, by name.
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(place.folder())) {
      names.insert(entry.path().lexically_relative(place.folder()).string());
    }
    return names;
  }
  EndedProcess start(const std::filesystem::path& ledger, const std::string& listen,
                     const std::filesystem::path& port_path) {
    return run_gnomond(
        {"--ledger", ledger.string(), "--listen", listen, "--port-file", port_path.string()});
  }

  static int64_t root_page(const std::filesystem::path& ledger, const std::string& table) {
    return SQLite::Database(ledger.string(), SQLite::OPEN_READONLY)
        .execAndGet("SELECT rootpage FROM sqlite_schema WHERE name = '" + table + "'")
        .getInt64();
  }

  DaemonProcess place;  // for its folder
  std::filesystem::path port_file = place.folder() / "port";
};

TEST_F(RefusedStartTest, ALedgerInAFolderThatIsNotThere) {
  std::filesystem::path nowhere = place.folder() / "nowhere";
  EndedProcess result = start(nowhere / "ledger.sqlite", "127.0.0.1:0", port_file);
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.output, HasSubstr("there is no folder " + nowhere.string()));
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(RefusedStartTest, ALedgerThatIsNoDatabase) {
  std::ofstream(place.ledger()) << "not a database, but long enough to have a header" << std::endl;
  EndedProcess result = start(place.ledger(), "127.0.0.1:0", port_file);
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.output, HasSubstr(place.ledger().string()));
  EXPECT_THAT(result.output, HasSubstr("not a database"));
  EXPECT_EQ(files(), std::set<std::string>{"ledger.sqlite"});
}

TEST_F(RefusedStartTest, APortFileInAFolderThatIsNotThere) {
  EndedProcess result = start(place.ledger(), "127.0.0.1:0", place.folder() / "nowhere" / "port");
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.output, HasSubstr("--port-file"));
  EXPECT_THAT(result.output, HasSubstr("nowhere/port"));
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(RefusedStartTest, APortFileThatIsAFolder) {
  EndedProcess result = start(place.ledger(), "127.0.0.1:0", place.folder());
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.output, HasSubstr("--port-file"));
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(RefusedStartTest, APortThatIsTaken) {
  DaemonProcess other;
  other.start();
  EndedProcess result = start(place.ledger(), fmt::format("127.0.0.1:{}", other.port()), port_file);
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.output, HasSubstr(fmt::format("127.0.0.1:{}", other.port())));
  EXPECT_THAT(files(), IsEmpty());
}

// Where a start reads; what lies elsewhere is found in the background (DurabilityTest).
TEST_F(RefusedStartTest, ALedgerThatIsDamagedKeepsItsFilesAndNoMore) {
  DaemonProcess whole;
  whole.start();
  EXPECT_EQ(whole.stop(), 0);
  std::string bytes = read_file(whole.ledger());
  std::ofstream(place.ledger(), std::ios::binary)
      << bytes.substr(0, 4096) << std::string(bytes.size() - 4096, 'x');
  EndedProcess result = start(place.ledger(), "127.0.0.1:0", port_file);
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.output, HasSubstr("damaged"));
  EXPECT_EQ(files(), std::set<std::string>{"ledger.sqlite"});
}

// What is found only when the ledger is open already.
TEST_F(RefusedStartTest, ALedgerWhoseRunsCannotBeReadKeepsItsFilesAndNoMore) {
  DaemonProcess whole;
  whole.start();
  EXPECT_EQ(whole.stop(), 0);
  std::string bytes = read_file(whole.ledger());
  const size_t page = 4096 * static_cast<size_t>(root_page(whole.ledger(), "runs") - 1);
  write_file_atomically(place.ledger(), bytes.replace(page, 4096, 4096, 'x'));
  EndedProcess result = start(place.ledger(), "127.0.0.1:0", port_file);
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.output, HasSubstr("damaged"));
  EXPECT_EQ(files(), std::set<std::string>{"ledger.sqlite"});
}

TEST_F(RefusedStartTest, APortFileThatCannotBeWrittenInTheEndLeavesNoNewLedger) {
  const std::string long_name(250, 'p');  // the one it is written under first is longer still
  EndedProcess result = start(place.ledger(), "127.0.0.1:0", place.folder() / long_name);
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.output, HasSubstr(long_name));
  EXPECT_THAT(files(), IsEmpty());
}

// A file system of its own without room, in a mount namespace of the daemon's.
class FullDiskTest : public RefusedStartTest {
 protected:
  void SetUp() override {
    for (const char* one : {"unshare -m", "unshare -rm"}) {
      if (in_shell(fmt::format("{} mount -t tmpfs none {}", one, disk.string())).status == 0) {
        unshare = one;
        return;
      }
    }
    GTEST_SKIP() << "no file system may be mounted here";
  }
  static EndedProcess in_shell(const std::string& command) {
    return test::run_to_end({"/bin/sh", "-c", command});
  }
  // A start where nothing is free once `before` has run; then the disk's files are listed.
  EndedProcess start_on_full_disk(const std::string& before) {
    write_file_atomically(place.folder() / "start",
                          fmt::format("mount -t tmpfs -o size=1m none {0} && cd {0} && {1}\n"
                                      "cat /dev/zero > filling 2>&-\n"
                                      "{2} --listen 127.0.0.1:0 --ledger ledger.sqlite\n"
                                      "status=$?; ls; exit $status\n",
                                      disk.string(), before, GNOMOND));
    return in_shell(fmt::format("{} sh {}", unshare, (place.folder() / "start").string()));
  }

  const std::filesystem::path disk = [this] {
    std::filesystem::create_directory(place.folder() / "disk");
    return place.folder() / "disk";
  }();
  std::string unshare;
};

TEST_F(FullDiskTest, IsToldWithAdviceAndMayBeTriedAgain) {
  DaemonProcess other;
  other.start();
  EXPECT_EQ(other.stop(), 0);
  const std::string copy = fmt::format("cp {} ledger.sqlite", other.ledger().string());
  for (const std::string& before : {std::string("true"), copy}) {
    const EndedProcess result = start_on_full_disk(before);
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.output, HasSubstr("no room is left on the disk"));
    EXPECT_THAT(result.output, HasSubstr("make room there"));
    const std::string files = before == copy ? "filling\nledger.sqlite\n" : "filling\n";
    EXPECT_TRUE(result.output.ends_with("\n" + files)) << result.output;
  }
}

}  // namespace
}  // namespace gnomon

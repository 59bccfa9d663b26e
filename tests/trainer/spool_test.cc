#include "trainer/spool.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "tests/support/temporary_directory.h"

namespace gnomon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Outcome = Spool::Outcome;
namespace fs = std::filesystem;

constexpr int64_t kRoomy = 1 << 20;

std::vector<std::string> bodies(const Spool& spool) {
  std::vector<std::string> result;
  for (const SpoolRecord& record : spool.oldest(1000000, 1 << 30)) result.push_back(record.body);
  return result;
}

std::vector<fs::path> segments(const fs::path& directory) {
  std::vector<fs::path> result;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == ".log") result.push_back(entry.path());
  }
  std::sort(result.begin(), result.end());
  return result;
}

class SpoolTest : public ::testing::Test {
 protected:
  test::TemporaryDirectory directory_;
  fs::path where_ = directory_ / "spool";
};

TEST_F(SpoolTest, GivesBackWhatWasAppendedInOrder) {
  Spool spool(where_, kRoomy);
  EXPECT_TRUE(spool.empty());
  EXPECT_EQ(spool.append("attempts", "{\"a\":1}"), Outcome::kWritten);
  EXPECT_EQ(spool.append("directives/3/ack", "{\"b\": \"two words\"}"), Outcome::kWritten);
  const std::vector<SpoolRecord> records = spool.oldest(10, 1000);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].number, 1);
  EXPECT_EQ(records[0].target, "attempts");
  EXPECT_EQ(records[0].body, "{\"a\":1}");
  EXPECT_EQ(records[1].number, 2);
  EXPECT_EQ(records[1].target, "directives/3/ack");
  EXPECT_EQ(records[1].body, "{\"b\": \"two words\"}");
}

TEST_F(SpoolTest, BatchesAreBoundedByRecordsAndBytesButNeverEmpty) {
  Spool spool(where_, kRoomy);
  for (int i = 0; i < 10; ++i) spool.append("steps", std::string(100, 'x'));
  EXPECT_EQ(spool.oldest(3, 1 << 20).size(), 3u);
  EXPECT_EQ(spool.oldest(100, 350).size(), 2u);
  EXPECT_EQ(spool.oldest(100, 1).size(), 1u);
}

TEST_F(SpoolTest, AcknowledgedRecordsAreGoneAlsoAfterReopening) {
  {
    Spool spool(where_, kRoomy);
    for (const char* body : {"1", "2", "3", "4"}) spool.append("steps", body);
    spool.acknowledge(2);
    EXPECT_THAT(bodies(spool), ElementsAre("3", "4"));
  }
  Spool spool(where_, kRoomy);
  EXPECT_THAT(bodies(spool), ElementsAre("3", "4"));
  EXPECT_EQ(spool.append("steps", "5"), Outcome::kWritten);
  EXPECT_EQ(spool.oldest(10, 1000).back().number, 5);
}

TEST_F(SpoolTest, NumbersGoOnWhenEverythingWasAcknowledged) {
  {
    Spool spool(where_, kRoomy);
    spool.append("steps", "1");
    spool.acknowledge(1);
  }
  Spool spool(where_, kRoomy);
  EXPECT_TRUE(spool.empty());
  spool.append("steps", "2");
  EXPECT_EQ(spool.oldest(1, 100).front().number, 2);
}

TEST_F(SpoolTest, PendingFindsTheUnacknowledgedRecordsOfOneTarget) {
  Spool spool(where_, kRoomy);
  spool.append("checkpoints", "c1");
  spool.append("steps", "s");
  spool.append("checkpoints", "c2");
  EXPECT_THAT(spool.pending("checkpoints"), ElementsAre("c1", "c2"));
  spool.acknowledge(1);
  EXPECT_THAT(spool.pending("checkpoints"), ElementsAre("c2"));
}

TEST_F(SpoolTest, DiskSpaceOfDeliveredRecordsIsGivenBack) {
  constexpr int64_t kSmall = 64 << 10;
  Spool spool(where_, kSmall);
  const std::string body(500, 'x');
  for (int i = 1; i <= 5000; ++i) {
    ASSERT_EQ(spool.append("steps", body), Outcome::kWritten) << i;
    spool.acknowledge(i);
    ASSERT_LE(spool.bytes(), kSmall);
  }
  EXPECT_LE(segments(where_).size(), 2u);
}

TEST_F(SpoolTest, AFullSpoolRefusesUntilThereIsRoomAndLosesNothing) {
  constexpr int64_t kSmall = 64 << 10;
  Spool spool(where_, kSmall);
  const std::string body(500, 'x');
  int64_t written = 0;
  while (spool.append("steps", body) == Outcome::kWritten) ++written;
  EXPECT_GT(written, 100);
  EXPECT_EQ(spool.append("steps", body), Outcome::kFull);
  EXPECT_LE(spool.bytes(), kSmall);
  EXPECT_EQ(bodies(spool).size(), static_cast<size_t>(written));
  spool.acknowledge(written / 2);
  EXPECT_EQ(spool.append("steps", body), Outcome::kWritten);
  EXPECT_EQ(spool.oldest(1, 1).front().number, written / 2 + 1);
}

TEST_F(SpoolTest, ATornLastLineIsDroppedAndTheRestKept) {
  {
    Spool spool(where_, kRoomy);
    for (const char* body : {"one", "two", "three"}) spool.append("steps", body);
  }
  const fs::path file = segments(where_).back();
  for (int64_t cut = 1; cut <= 20; cut += 3) {
    fs::resize_file(file, fs::file_size(file) - 1);
    Spool spool(where_, kRoomy);
    EXPECT_THAT(bodies(spool), ElementsAre("one", "two"));
    EXPECT_THAT(spool.opening_notes(), ElementsAre(HasSubstr("torn")));
    spool.append("steps", "three");
    EXPECT_THAT(bodies(spool), ElementsAre("one", "two", "three"));
  }
}

TEST_F(SpoolTest, ADamagedLineInTheMiddleIsLeftOutAndTold) {
  {
    Spool spool(where_, kRoomy);
    for (const char* body : {"one", "two", "three"}) spool.append("steps", body);
  }
  const fs::path file = segments(where_).back();
  std::fstream stream(file, std::ios::in | std::ios::out);
  std::string content((std::istreambuf_iterator<char>(stream)), {});
  stream.clear();
  stream.seekp(static_cast<std::streamoff>(content.find("two")));
  stream.put('X');
  stream.close();
  Spool spool(where_, kRoomy);
  EXPECT_THAT(bodies(spool), ElementsAre("one", "three"));
  EXPECT_THAT(spool.opening_notes(), ElementsAre(HasSubstr("damaged line")));
}

TEST_F(SpoolTest, ARecordDamagedWhileOpenComesWithAnEmptyTarget) {
  Spool spool(where_, kRoomy);
  spool.append("steps", "one");
  std::ofstream(segments(where_).back(), std::ios::in | std::ios::out).write("XXXX", 4);
  ASSERT_EQ(spool.oldest(1, 100).size(), 1u);
  EXPECT_EQ(spool.oldest(1, 100).front().target, "");
  EXPECT_THAT(spool.oldest(1, 100).front().body, HasSubstr("damaged"));
}

TEST_F(SpoolTest, ADamagedAcknowledgementMeansSendingAgainNotLosing) {
  {
    Spool spool(where_, kRoomy);
    for (const char* body : {"one", "two"}) spool.append("steps", body);
    spool.acknowledge(2);
  }
  std::ofstream(where_ / "acknowledged", std::ios::in | std::ios::out).write("zz", 2);
  Spool spool(where_, kRoomy);
  EXPECT_THAT(bodies(spool), ElementsAre("one", "two"));
  EXPECT_THAT(spool.opening_notes(), ElementsAre(HasSubstr("sent again")));
}

// A child appends and tells each number through a pipe after append has returned, until it is
// killed -9.
TEST_F(SpoolTest, NothingAppendedIsLostWhenTheProcessIsKilled) {
  for (int round = 0; round < 5; ++round) {
    const fs::path where = directory_ / ("killed" + std::to_string(round));
    int channel[2];
    ASSERT_EQ(::pipe(channel), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      Spool spool(where, kRoomy);
      for (int64_t i = 1;; ++i) {
        if (spool.append("steps", std::to_string(i)) != Outcome::kWritten) ::_exit(1);
        if (::write(channel[1], &i, sizeof(i)) != sizeof(i)) ::_exit(1);
      }
    }
    ::close(channel[1]);
    int64_t received = 0;
    while (received < 200 * (round + 1) &&
           ::read(channel[0], &received, sizeof(received)) == sizeof(received)) {
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    int64_t last = received;
    while (::read(channel[0], &last, sizeof(last)) == sizeof(last)) {
    }
    ::close(channel[0]);
    Spool spool(where, kRoomy);
    const std::vector<std::string> found = bodies(spool);
    ASSERT_GE(static_cast<int64_t>(found.size()), last);
    for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], std::to_string(i + 1));
  }
}

// RLIMIT_FSIZE makes write(2) fail as on a full disk, in the middle of a line.
TEST_F(SpoolTest, AFullDiskRefusesTheRecordAndLeavesTheFileWhole) {
  ::signal(SIGXFSZ, SIG_IGN);
  Spool spool(where_, kRoomy);
  spool.append("steps", "before");
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  rlimit small = old;
  small.rlim_cur = static_cast<rlim_t>(spool.bytes()) + 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Outcome outcome = spool.append("steps", std::string(200, 'x'));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_EQ(outcome, Outcome::kDiskFull);
  EXPECT_EQ(spool.append("steps", "after"), Outcome::kWritten);
  EXPECT_THAT(bodies(spool), ElementsAre("before", "after"));
  Spool again(where_, kRoomy);
  EXPECT_THAT(bodies(again), ElementsAre("before", "after"));
  EXPECT_TRUE(again.opening_notes().empty());
}

TEST_F(SpoolTest, SyncAndAppendFromTwoThreadsKeepTheOrder) {
  Spool spool(where_, 4 << 20);
  std::thread syncing([&] {
    for (int i = 0; i < 50; ++i) spool.sync();
  });
  for (int i = 1; i <= 5000; ++i)
    ASSERT_EQ(spool.append("steps", std::to_string(i)), Outcome::kWritten);
  syncing.join();
  const std::vector<std::string> found = bodies(spool);
  ASSERT_EQ(found.size(), 5000u);
  for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], std::to_string(i + 1));
}

}  // namespace
}  // namespace gnomon

// What is not whole is told in one sentence with advice, and left as it is to the byte.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <map>

#include "base/files.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_integrity.h"
#include "tests/storage/ledger_fixture.h"

namespace gnomon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CorruptionTest : public LedgerTest {
 protected:
  // Files by name with what is in them.
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      found[entry.path().filename().string()] =
          entry.is_regular_file() ? read_file(entry.path()) : "(no file)";
    }
    return found;
  }
  // What a start says, which must change nothing.
  std::string refusal() {
    std::filesystem::remove(folder_ / "ledger.sqlite.lock");
    const auto before = files();
    std::string message = "no LedgerError";
    try {
      Ledger ledger(options());
    } catch (const LedgerError& error) {
      message = error.what();
    }
    auto after = files();
    if (before.contains("ledger.sqlite-wal")) {
      after.erase("ledger.sqlite-shm");  // an index of the WAL, which SQLite makes anew each time
    }
    EXPECT_TRUE(after == before) << "something was changed";
    return message;
  }
  static void write_rows(Ledger& ledger, int count) {
    for (int i = 0; i < count; ++i) {
      ledger.write([](LedgerTransaction& transaction) {
        ledger::insert_audit(transaction.connection(), 0, std::nullopt, "row",
                             std::string(500, 'x'));
      });
    }
  }
  void make_good() {
    Ledger ledger(options());
    write_rows(ledger, 100);
  }
  // As after SIGKILL: the newest rows are in the WAL alone.
  void make_killed() {
    make_good();
    const std::filesystem::path copies = folder_ / "copies";
    std::filesystem::create_directory(copies);
    {
      Ledger ledger(options());
      write_rows(ledger, 50);
      std::filesystem::copy(file_, copies / "ledger.sqlite");
      std::filesystem::copy(wal_of(file_), wal_of(copies / "ledger.sqlite"));
    }
    std::filesystem::rename(copies / "ledger.sqlite", file_);
    std::filesystem::rename(wal_of(copies / "ledger.sqlite"), wal_of(file_));
    std::filesystem::remove(copies);
  }
  static void overwrite(const std::filesystem::path& file, int64_t at, const std::string& bytes) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(at, at < 0 ? std::ios::end : std::ios::beg);
    stream << bytes;
  }
  int64_t rows() {
    Ledger ledger(options());
    return number(ledger, "SELECT count(*) FROM audit");
  }
  // As the daemon's background check ends.
  std::string problem_found_in_the_background() {
    Ledger ledger(options());
    std::promise<std::string> end;
    BackgroundCheck check(file_, {{}, [&](BackgroundCheck::State state, const std::string& text) {
                                    EXPECT_EQ(state == BackgroundCheck::State::kOk, text.empty());
                                    end.set_value(text);
                                  }});
    return end.get_future().get();
  }
  static constexpr int64_t kFrame = 4096 + 24;
};

TEST_F(CorruptionTest, AnEmptyFile) {
  std::ofstream(file_).close();
  EXPECT_THAT(refusal(), AllOf(HasSubstr("is empty"), HasSubstr("restore a backup")));
}

TEST_F(CorruptionTest, AFolder) {
  std::filesystem::create_directory(file_);
  EXPECT_THAT(refusal(), HasSubstr("is a folder"));
}

TEST_F(CorruptionTest, AFileThatIsNoDatabase) {
  std::ofstream(file_) << std::string(5000, 'x');
  EXPECT_THAT(refusal(), AllOf(HasSubstr("not a database"), HasSubstr("restore a backup")));
}

TEST_F(CorruptionTest, AFileThatIsCutOff) {
  make_good();
  const int64_t size = file_bytes(file_);
  for (int64_t left : {size / 2, size - 1, int64_t{4096}, int64_t{100}}) {
    std::filesystem::resize_file(file_, static_cast<uintmax_t>(left));
    EXPECT_THAT(refusal(), AllOf(HasSubstr("is cut off"), HasSubstr(std::to_string(left)),
                                 HasSubstr("restore a backup")));
  }
  std::filesystem::resize_file(file_, 50);
  EXPECT_THAT(refusal(), HasSubstr("restore a backup"));
}

TEST_F(CorruptionTest, AFileThatIsCutOffBesideItsWal) {
  make_killed();
  std::filesystem::resize_file(file_, static_cast<uintmax_t>(file_bytes(file_) / 8192 * 4096));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("damaged"), HasSubstr("restore a backup")));
}

TEST_F(CorruptionTest, APageSizeThatIsNone) {
  make_good();
  overwrite(file_, 16, std::string("\x0f\xff", 2));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("4095 bytes"), HasSubstr("restore a backup")));
}

TEST_F(CorruptionTest, AWalThatCannotBeRead) {
  make_killed();
  overwrite(wal_of(file_), 0, std::string(32, 'x'));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("-wal is damaged at its beginning"),
                               HasSubstr("what was acknowledged last")));
}

// A WAL begins anew when all of it is in the ledger; the header for that failed in the middle.
TEST_F(CorruptionTest, AHeaderThatIsOverwrittenInPartIsNoDamageWhereAllIsInTheLedger) {
  make_killed();
  const std::string whole = read_file(wal_of(file_)), before = read_file(file_);
  EXPECT_FALSE(Ledger(options()).dropped_wal());
  SQLite::Database(file_.string(), SQLite::OPEN_READWRITE).exec("PRAGMA wal_checkpoint(TRUNCATE)");
  const std::string after = read_file(file_);
  for (size_t written : {16, 20, 23, 24, 29, 31}) {
    std::string header = whole.substr(0, 32);
    for (size_t i = 15; i < written; ++i) header[i] = static_cast<char>(header[i] + 1);
    const std::string mixed = header + whole.substr(32);
    std::ofstream(file_, std::ios::binary) << after;
    std::ofstream(wal_of(file_), std::ios::binary) << mixed;
    EXPECT_EQ(rows(), 150) << written;
    std::ofstream(wal_of(file_), std::ios::binary) << mixed;
    {
      // Frames that are left behind must not look like those of now.
      Ledger ledger(options());
      EXPECT_TRUE(ledger.dropped_wal()) << written;
      write_rows(ledger, 1);
      const std::string now = read_file(wal_of(file_));
      EXPECT_NE(now.substr(16, 8), whole.substr(16, 8)) << written << ": the salts";
      EXPECT_LT(now.size(), whole.size());
    }
    std::ofstream(file_, std::ios::binary) << before;
    std::ofstream(wal_of(file_), std::ios::binary) << mixed;
    EXPECT_THAT(refusal(), HasSubstr("-wal is damaged at its beginning")) << written;
  }
}

TEST_F(CorruptionTest, AWalOfAnotherLedger) {
  make_good();
  const std::filesystem::path other = folder_ / "other.sqlite";
  {
    SQLite::Database database(other.string(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
    database.exec("PRAGMA page_size=1024; PRAGMA journal_mode=WAL; CREATE TABLE t (x)");
    std::filesystem::copy(wal_of(other), wal_of(file_));
  }
  EXPECT_THAT(refusal(), AllOf(HasSubstr("pages of 1024"), HasSubstr("pages of 4096")));
}

TEST_F(CorruptionTest, AWalWithAHoleBeforeItsEnd) {
  make_killed();
  ASSERT_GT(file_bytes(wal_of(file_)), 20 * kFrame);
  overwrite(wal_of(file_), 32 + 10 * kFrame + 1000, "damage");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("damaged at frame 11"), HasSubstr("restore a backup")));
}

TEST_F(CorruptionTest, AWalWithoutItsLedger) {
  make_killed();
  std::filesystem::remove(file_);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("is not there, but"), HasSubstr("-wal is")));
}

TEST_F(CorruptionTest, AWalThatACrashCutIsNoDamage) {
  make_killed();
  const std::string whole = read_file(wal_of(file_));
  const std::string ledger = read_file(file_);
  EXPECT_EQ(rows(), 150);
  for (size_t cut : {size_t{1}, size_t{100}, size_t{kFrame - 1}}) {
    std::ofstream(file_, std::ios::binary) << ledger;
    std::ofstream(wal_of(file_), std::ios::binary) << whole.substr(0, whole.size() - cut);
    EXPECT_EQ(rows(), 149) << "the last write was not on disk in full";
  }
  std::ofstream(file_, std::ios::binary) << ledger;
  std::ofstream(wal_of(file_), std::ios::binary) << whole + std::string(3 * kFrame, 'x');
  EXPECT_EQ(rows(), 150);
}

// Groups that failed at their fsync, one after another, each shorter than the one before: the end
// of each of them lies behind the end of what is good, with the right salts and no right successor.
TEST_F(CorruptionTest, WhatFailedWritesLeftInTheWalIsNoDamage) {
  make_killed();
  const std::string whole = read_file(wal_of(file_));
  auto frame = [&](size_t number) { return whole.substr(32 + (number - 1) * kFrame, kFrame); };
  std::string mixed = whole.substr(0, 32 + 10 * kFrame);
  for (size_t left_behind : {5, 9, 7, 3}) {
    std::string one = frame(left_behind);
    one[7] = 1;  // the last of its group
    mixed += one;
  }
  std::ofstream(wal_of(file_), std::ios::binary) << mixed;
  EXPECT_GE(rows(), 100);
}

// A group that failed behind its second frame, and one of a single frame after it that failed
// within the header of that: the first bytes say "the last of its group", the checksum and the page
// are of the first frame of the other.
TEST_F(CorruptionTest, AFrameThatIsOverwrittenInPartIsNoEndOfItsGroup) {
  make_killed();
  const std::string whole = read_file(wal_of(file_)), ledger = read_file(file_);
  const auto ends_group = [&](size_t number) {
    return whole.substr(32 + (number - 1) * kFrame + 4, 4) != std::string(4, '\0');
  };
  size_t first = 10;
  while (!ends_group(first - 1) || ends_group(first)) ++first;
  for (size_t written : {8, 12, 15}) {
    std::string mixed = whole.substr(0, 32 + (first + 1) * kFrame);
    std::string one = whole.substr(32 + (first - 1) * kFrame, written);
    one[3] = 8;  // the page
    one[7] = 1;  // the size of the ledger
    mixed.replace(32 + (first - 1) * kFrame, written, one);
    std::ofstream(file_, std::ios::binary) << ledger;
    std::ofstream(wal_of(file_), std::ios::binary) << mixed;
    EXPECT_GE(rows(), 1) << written;
    // Where the page is damaged as well it may have been the end.
    mixed[32 + (first - 1) * kFrame + 1000] ^= 1;
    std::ofstream(file_, std::ios::binary) << ledger;
    std::ofstream(wal_of(file_), std::ios::binary) << mixed;
    EXPECT_THAT(refusal(), HasSubstr(fmt::format("damaged at frame {}", first)));
  }
}

TEST_F(CorruptionTest, ATableOrAColumnThatIsMissingIsNamed) {
  make_good();
  SQLite::Database(file_.string(), SQLite::OPEN_READWRITE).exec("DROP TABLE scores");
  EXPECT_THAT(refusal(), HasSubstr("has no column phi of table scores"));
  std::filesystem::remove(file_);
  make_good();
  SQLite::Database(file_.string(), SQLite::OPEN_READWRITE)
      .exec("ALTER TABLE plans DROP COLUMN toml");
  EXPECT_THAT(refusal(), HasSubstr("has no column toml of table plans"));
}

TEST_F(CorruptionTest, ADamagedPageIsFoundWhileTheDaemonRuns) {
  make_good();
  EXPECT_EQ(problem_found_in_the_background(), "");
  overwrite(file_, -8192, std::string(8192, '\x55'));
  EXPECT_THAT(problem_found_in_the_background(), HasSubstr("audit"));
}

TEST_F(CorruptionTest, AnExaminationFindsWhatAStartDoesNotLookFor) {
  make_good();
  EXPECT_TRUE(examine_ledger(file_).good());
  EXPECT_EQ(examine_ledger(file_).audit.rows, 100);
  SQLite::Database(file_.string(), SQLite::OPEN_READWRITE)
      .exec("INSERT INTO faults VALUES (17, '', '', 0, 0, '')");
  LedgerHealth health = examine_ledger(file_);
  ASSERT_EQ(health.problems.size(), 1u);
  EXPECT_THAT(health.problems[0], HasSubstr("1 rows of faults name rows of runs"));
  overwrite(file_, -8192, std::string(8192, '\x55'));
  EXPECT_FALSE(examine_ledger(file_).good());
}

TEST_F(CorruptionTest, AStartThatWasKilledBeforeItsLedgerWasWholeIsMadeAnew) {
  std::ofstream(folder_ / "ledger.sqlite.new") << "half";
  make_good();
  EXPECT_EQ(rows(), 100);
  EXPECT_FALSE(files().contains("ledger.sqlite.new"));
}

}  // namespace
}  // namespace gnomon

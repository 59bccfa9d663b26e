// Copies of a ledger that is being written, and what comes back from them.
#include "storage/ledger_backup.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <fstream>
#include <set>
#include <thread>

#include "base/files.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_integrity.h"
#include "tests/storage/ledger_fixture.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;

class BackupTest : public LedgerTest {
 protected:
  // A row of the audit log and one of the stream, always together.
  static void write_pair(Ledger& ledger) {
    ledger.write([](LedgerTransaction& transaction) {
      ledger::insert_audit(transaction.connection(), 0, std::nullopt, "n", std::string(200, 'x'));
      ledger::insert_stream(transaction.connection(), 0, 1, "n", "{}");
    });
  }
  void make(int rows) {
    Ledger ledger(options());
    for (int i = 0; i < rows; ++i) write_pair(ledger);
  }
  static int64_t count(const std::filesystem::path& file, const char* table) {
    SQLite::Database database(file.string(), SQLite::OPEN_READONLY);
    return database.execAndGet(std::string("SELECT count(*) FROM ") + table).getInt64();
  }
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      // What SQLite leaves beside a ledger that was looked at.
      if (name != "ledger.sqlite-shm" && name != "ledger.sqlite-wal") names.insert(name);
    }
    return names;
  }
  template <typename Function>
  static std::string refusal(Function function) {
    try {
      function();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path copy_ = folder_ / "copy.sqlite";
};

TEST_F(BackupTest, ACopyOfALedgerThatIsBeingWrittenIsWholeAndOfOneMoment) {
  make(300);
  Ledger ledger(options());
  std::atomic<bool> stop = false;
  std::atomic<int64_t> written = 0;
  std::thread writer([&] {
    for (; !stop; ++written) write_pair(ledger);
  });
  int64_t told = 0;
  BackupOptions slow;
  slow.progress = [&](int64_t done, int64_t bytes) {
    EXPECT_LE(done, bytes);
    told = done;
    const int64_t before = written;
    EXPECT_TRUE(written > before || [&] {
      while (written == before) std::this_thread::yield();  // the daemon goes on meanwhile
      return true;
    }());
  };
  const BackupReport report = back_up_ledger(file_, copy_, slow);
  stop = true;
  writer.join();
  EXPECT_EQ(told, report.bytes);
  EXPECT_EQ(report.bytes, file_bytes(copy_));
  EXPECT_EQ(count(copy_, "audit"), count(copy_, "stream"));
  EXPECT_GE(report.audit.rows, 300);
  EXPECT_LT(report.audit.rows, 300 + written);
  EXPECT_TRUE(examine_ledger(copy_).good());
}

TEST_F(BackupTest, ACompactCopyHasNoFreePages) {
  make(300);
  {
    Ledger ledger(options());
    ledger.write([](LedgerTransaction& transaction) {
      for (int i = 0; i < 1000; ++i) {
        ledger::insert_stream(transaction.connection(), 0, 1, "n", std::string(1000, 'x'));
      }
    });
    ledger.write([](LedgerTransaction& transaction) {
      transaction.connection().execute("DELETE FROM stream WHERE id > 300");
    });
  }
  BackupOptions compact;
  compact.compact = true;
  const BackupReport report = back_up_ledger(file_, copy_, compact);
  EXPECT_LT(report.bytes, file_bytes(file_) / 2);
  std::filesystem::rename(copy_, file_);
  make(1);  // it opens
  EXPECT_EQ(count(file_, "audit"), 301);
}

TEST_F(BackupTest, NothingIsOverwrittenAndNothingIsLeft) {
  make(1);
  std::ofstream(copy_) << "mine";
  const std::set<std::string> before = files();
  EXPECT_THAT(refusal([&] { back_up_ledger(file_, copy_); }), HasSubstr("is there already"));
  EXPECT_EQ(read_file(copy_), "mine");
  EXPECT_THAT(refusal([&] { back_up_ledger(file_, folder_ / "none" / "copy"); }),
              HasSubstr("there is no folder"));
  BackupOptions ended;
  ended.end_now = [] { return true; };
  EXPECT_THAT(refusal([&] { back_up_ledger(file_, folder_ / "other", ended); }),
              HasSubstr("given up"));
  EXPECT_EQ(files(), before);
}

TEST_F(BackupTest, ADamagedLedgerGivesNoCopy) {
  make(300);
  std::fstream stream(file_, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-20000, std::ios::end);
  stream << std::string(8192, '\x55');
  stream.close();
  const std::set<std::string> before = files();
  EXPECT_THAT(refusal([&] { back_up_ledger(file_, copy_); }), HasSubstr("not good"));
  EXPECT_EQ(files(), before);
}

TEST_F(BackupTest, AFullDiskIsToldAndLeavesNothing) {
  make(300);
  const std::set<std::string> before = files();
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  rlimit small = old;
  small.rlim_cur = 50'000;
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = refusal([&] { back_up_ledger(file_, copy_); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_THAT(message, HasSubstr("cannot copy the ledger"));
  EXPECT_EQ(files(), before);
}

TEST_F(BackupTest, ARestoredLedgerIsTheCopyAndTheOldOneIsKept) {
  make(5);
  back_up_ledger(file_, copy_);
  make(3);
  EXPECT_THAT(refusal([&] { restore_ledger(copy_, file_, false); }), HasSubstr("--force"));
  EXPECT_EQ(count(file_, "audit"), 8);
  const RestoreReport report = restore_ledger(copy_, file_, true);
  EXPECT_EQ(report.copy.audit.rows, 5);
  EXPECT_EQ(count(file_, "audit"), 5);
  EXPECT_EQ(count(report.replaced, "audit"), 8);
  make(1);
  EXPECT_EQ(count(file_, "audit"), 6);
  EXPECT_EQ(count(copy_, "audit"), 5);
}

TEST_F(BackupTest, ALedgerThatIsGoneComesBack) {
  make(5);
  back_up_ledger(file_, copy_);
  std::filesystem::remove(file_);
  const RestoreReport report = restore_ledger(copy_, file_, false);
  EXPECT_TRUE(report.replaced.empty());
  EXPECT_EQ(count(file_, "audit"), 5);
}

TEST_F(BackupTest, AFolderIsNotReplacedAndNoneIsMade) {
  make(1);
  back_up_ledger(file_, copy_);
  EXPECT_THAT(refusal([&] { restore_ledger(copy_, folder_, true); }), HasSubstr("is a folder"));
  EXPECT_THAT(refusal([&] { restore_ledger(copy_, folder_ / "none" / "ledger", true); }),
              HasSubstr("there is no folder " + (folder_ / "none").string()));
  EXPECT_FALSE(std::filesystem::exists(folder_.string() + ".lock"));
}

TEST_F(BackupTest, ADamagedLedgerIsReplacedAndKeptWithItsWal) {
  make(5);
  back_up_ledger(file_, copy_);
  std::ofstream(file_) << "rubbish";
  std::ofstream(wal_of(file_)) << "more rubbish";
  const RestoreReport report = restore_ledger(copy_, file_, true);
  EXPECT_EQ(count(file_, "audit"), 5);
  EXPECT_EQ(read_file(report.replaced), "rubbish");
  EXPECT_EQ(read_file(wal_of(report.replaced)), "more rubbish");
}

TEST_F(BackupTest, ThroughLinksItIsTheFilesTheyLeadTo) {
  const std::filesystem::path elsewhere = folder_ / "elsewhere";
  std::filesystem::create_directory(elsewhere);
  make(5);
  {
    // As of a daemon that was killed: the newest row is in the WAL alone.
    Ledger ledger(options());
    write_pair(ledger);
    std::filesystem::copy(file_, elsewhere / "from.sqlite");
    std::filesystem::copy(wal_of(file_), wal_of(elsewhere / "from.sqlite"));
  }
  std::filesystem::create_symlink(elsewhere / "from.sqlite", folder_ / "from");
  std::filesystem::rename(file_, elsewhere / "to.sqlite");
  std::filesystem::create_symlink(elsewhere / "to.sqlite", file_);
  back_up_ledger(folder_ / "from", copy_);
  EXPECT_EQ(count(copy_, "audit"), 6);
  const RestoreReport report = restore_ledger(folder_ / "from", file_, true);
  EXPECT_TRUE(std::filesystem::is_symlink(file_));
  EXPECT_EQ(count(elsewhere / "to.sqlite", "audit"), 6);
  EXPECT_EQ(report.replaced.parent_path(), elsewhere);

  std::filesystem::remove(file_);
  std::filesystem::create_symlink(folder_ / "nothing", file_);
  EXPECT_THAT(refusal([&] { restore_ledger(copy_, file_, true); }), HasSubstr("does not exist"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "nothing"));
}

TEST_F(BackupTest, ADaemonsLedgerIsNotReplaced) {
  make(5);
  back_up_ledger(file_, copy_);
  Ledger running(options());
  EXPECT_THAT(refusal([&] { restore_ledger(copy_, file_, true); }), HasSubstr("in use"));
  write_pair(running);
}

TEST_F(BackupTest, ABackupThatIsNotGoodReplacesNothing) {
  make(5);
  back_up_ledger(file_, copy_);
  {
    SQLite::Database tampered(copy_.string(), SQLite::OPEN_READWRITE);
    tampered.exec("DROP TRIGGER audit_is_not_changed; UPDATE audit SET what = 'm' WHERE id = 2");
    tampered.exec("CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit BEGIN SELECT 1; END");
  }
  const std::set<std::string> before = files();
  EXPECT_THAT(refusal([&] { restore_ledger(copy_, file_, true); }),
              HasSubstr("row 2 does not fit"));
  std::filesystem::resize_file(copy_, 8192);
  EXPECT_THAT(refusal([&] { restore_ledger(copy_, file_, true); }), HasSubstr("cut off"));
  EXPECT_EQ(count(file_, "audit"), 5);
  EXPECT_EQ(files(), before);
}

TEST(TimeInANameTest, SortsAsTimeDoes) {
  EXPECT_EQ(time_in_a_name(1'500'000'000.042), "20170714T024000.042Z");
}

}  // namespace
}  // namespace gnomon

// A ledger whose files somebody deletes, replaces or cuts off while the daemon runs: nothing is
// acknowledged that is not where the ledger should be.
#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>

#include "base/files.h"
#include "storage/ledger_file.h"
#include "storage/ledger_integrity.h"
#include "tests/controller/api_fixture.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;
using test::eventually;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kLogLine = "nothing more is recorded: ";

class LedgerFileIdentityTest : public ApiTest {
 protected:
  LedgerFileIdentityTest() {
    trainer.begin();
    trainer.train(1, 20);
  }
  // That nothing is acknowledged any more, everybody learns why, and the daemon says so at its
  // end.
  void expect_lost(const std::string& why) {
    for (int i = 0; i < 3; ++i) {
      const Refused step =
          refused("POST", trainer.path("/steps"), to_json(StepBatch{{test_step(21)}}));
      EXPECT_EQ(step.status, 503);
      EXPECT_EQ(step.title, "The ledger is not in its place");
      EXPECT_THAT(step.detail, HasSubstr(why));
    }
    const HttpResponse ready = daemon.client().request("GET", "/readyz");
    EXPECT_EQ(ready.status, 503);
    EXPECT_THAT(ready.body, HasSubstr(why));
    EXPECT_TRUE(eventually([&] { return daemon.log().find(kLogLine) != std::string::npos; }));
    EXPECT_EQ(metric("gnomon_ledger_integrity{state=\"lost\"}"), 1);
  }
  void expect_end_without_promise(const std::string& why) {
    EXPECT_EQ(daemon.stop(), 1);
    const std::string log = daemon.log();
    EXPECT_THAT(log, Not(HasSubstr("everything acknowledged is in")));
    EXPECT_THAT(log, HasSubstr("what was acknowledged last may be lost"));
    const size_t at = log.find(kLogLine);
    ASSERT_NE(at, std::string::npos) << log;
    EXPECT_THAT(log.substr(at, 200), HasSubstr(daemon.ledger().string()));
    EXPECT_THAT(log.substr(at, 200), HasSubstr(why));
    EXPECT_EQ(log.find(kLogLine, at + 1), std::string::npos) << "once";
  }
  static int64_t steps_in(const fs::path& ledger) {
    return SQLite::Database(ledger.string(), SQLite::OPEN_READONLY)
        .execAndGet("SELECT count(*) FROM steps")
        .getInt64();
  }

  FakeTrainer trainer{daemon.url()};
};

TEST_F(LedgerFileIdentityTest, ADeletedLedgerIsNotWritten) {
  for (const char* suffix : {"", "-wal", "-shm"}) fs::remove(daemon.ledger().string() + suffix);
  expect_lost("was deleted or moved away");
  expect_end_without_promise("was deleted or moved away");
  EXPECT_FALSE(fs::exists(daemon.ledger()));
}

// docs/runbook.md, A ledger is deleted under the daemon.
TEST_F(LedgerFileIdentityTest, ADeletedLedgerCanBeCopiedFromTheDaemon) {
  for (const char* suffix : {"", "-wal", "-shm"}) fs::remove(daemon.ledger().string() + suffix);
  const fs::path saved = daemon.folder() / "saved.sqlite";
  for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", daemon.pid()))) {
    const std::string leads_to = fs::read_symlink(entry.path()).string();
    if (leads_to == daemon.ledger().string() + " (deleted)") {
      fs::copy(entry.path(), saved, fs::copy_options::skip_existing);
    } else if (leads_to == daemon.ledger().string() + "-wal (deleted)") {
      fs::copy(entry.path(), wal_of(saved), fs::copy_options::skip_existing);
    }
  }
  daemon.kill();
  EXPECT_TRUE(examine_ledger(saved).good());
  EXPECT_EQ(steps_in(saved), 20);
}

TEST_F(LedgerFileIdentityTest, AReplacedLedgerIsNotTouched) {
  const fs::path other = daemon.folder() / "other.sqlite";
  write_file_atomically(other, "another file");
  fs::rename(other, daemon.ledger());
  write_file_atomically(wal_of(other), "another WAL");
  fs::rename(wal_of(other), wal_of(daemon.ledger()));
  expect_lost("was replaced by another file");
  expect_end_without_promise("was replaced by another file");
  EXPECT_EQ(read_file(daemon.ledger()), "another file");
  EXPECT_EQ(read_file(wal_of(daemon.ledger())), "another WAL");
}

TEST_F(LedgerFileIdentityTest, ATruncatedLedgerIsNotWritten) {
  const auto bytes = fs::file_size(daemon.ledger());
  fs::resize_file(daemon.ledger(), bytes / 2);
  const std::string why = fmt::format("was cut off: it had {} bytes and has {}", bytes, bytes / 2);
  expect_lost(why);
  expect_end_without_promise(why);
  EXPECT_EQ(fs::file_size(daemon.ledger()), bytes / 2);
}

TEST_F(LedgerFileIdentityTest, ALedgerThatIsPutBackIsWrittenAndComplete) {
  fs::rename(daemon.ledger(), daemon.folder() / "moved");
  expect_lost("was deleted or moved away");
  fs::rename(daemon.folder() / "moved", daemon.ledger());
  EXPECT_EQ(trainer.post_steps({{test_step(21)}}).accepted, 1);
  EXPECT_TRUE(
      eventually([&] { return daemon.log().find("is back in its place") != std::string::npos; }));
  EXPECT_EQ(metric("gnomon_ledger_integrity{state=\"lost\"}"), 0);
  EXPECT_EQ(daemon.stop(), 0);
  EXPECT_THAT(daemon.log(), HasSubstr("everything acknowledged is in"));
  EXPECT_EQ(steps_in(daemon.ledger()), 21);
}

// Its content is known to SQLite as long as the daemon runs.
TEST_F(LedgerFileIdentityTest, ADeletedWalIsCheckpointedAtShutdown) {
  fs::remove(wal_of(daemon.ledger()));
  // A reader of the daemon's own makes a new, empty one, often before the old one is missed.
  write_file_atomically(wal_of(daemon.ledger()), "");
  expect_lost("write-ahead log");
  expect_end_without_promise("was deleted, moved away or replaced");
  EXPECT_EQ(steps_in(daemon.ledger()), 20);
  daemon.start();
  EXPECT_EQ(daemon.client().request("GET", "/readyz").status, 200);
}

}  // namespace
}  // namespace gnomon

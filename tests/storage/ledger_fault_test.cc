// A disk that fails at any write or sync: what was acknowledged is there, what was not is in
// nobody's way, and the ledger goes on by itself once the disk is well.
#include <gmock/gmock.h>
#include <sqlite3.h>

#include <set>

#include "storage/ledger_audit.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_integrity.h"
#include "tests/storage/failing_disk.h"
#include "tests/storage/ledger_fixture.h"

namespace gnomon {
namespace {

struct Fault {
  const char* name;
  int code;
  int64_t count;  // operations in a row
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class LedgerFaultTest : public LedgerTest, public ::testing::WithParamInterface<Fault> {
 protected:
  static constexpr int kWrites = 24;
  static constexpr int kGroup = 3;

  struct Outcomes {
    std::set<int64_t> done;
    std::set<int64_t> failed;
    std::set<int64_t> rolled_back;
  };

  // Posts groups of writes, each a row of 200 kB in one table and a small one in another.
  Outcomes write_groups(Ledger& ledger) {
    Outcomes outcomes;
    for (int64_t next = 1; next <= kWrites; next += kGroup) {
      std::promise<void> last;
      for (int64_t n = next; n < next + kGroup; ++n) {
        EXPECT_TRUE(ledger.post(
            [&outcomes, n](LedgerTransaction& transaction) {
              transaction.on_rollback([&outcomes, n] { outcomes.rolled_back.insert(n); });
              ledger::insert_stream(transaction.connection(), 0, n, "n", std::string(200'000, 'x'));
              ledger::insert_audit(transaction.connection(), 0, n, "n", "");
            },
            [&outcomes, &last, n, end = next + kGroup - 1](std::exception_ptr error) {
              (error ? outcomes.failed : outcomes.done).insert(n);
              if (n == end) last.set_value();
            }));
      }
      last.get_future().wait();
    }
    return outcomes;
  }
  // The numbers in the file, and that no write is there by half.
  static std::set<int64_t> numbers(const std::filesystem::path& file) {
    LedgerOptions options;
    options.file = file;
    Ledger ledger(options);
    std::set<int64_t> in_stream, in_audit;
    ledger.read([&](Connection& connection) {
      for (auto& [sql, to] : {std::pair("SELECT run FROM stream", &in_stream),
                              std::pair("SELECT run FROM audit", &in_audit)}) {
        Query rows = connection.query(sql);
        while (rows.next()) to->insert(rows.integer(0));
      }
    });
    EXPECT_EQ(in_stream, in_audit) << "half a write";
    return in_stream;
  }
  // What a SIGKILL at this moment would leave.
  std::filesystem::path as_if_killed() {
    const std::filesystem::path copy = folder_ / "killed.sqlite";
    std::filesystem::remove(copy.string() + "-shm");
    std::filesystem::copy(file_, copy, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::copy(wal_of(file_), wal_of(copy),
                          std::filesystem::copy_options::overwrite_existing);
    return copy;
  }
  void strike(FailingDisk& disk, int64_t at) {
    std::filesystem::remove(file_);
    std::filesystem::remove(wal_of(file_));
    Outcomes outcomes;
    std::set<int64_t> after_kill;
    {
      Ledger ledger(options());
      disk.fail(at, GetParam().count, GetParam().code);
      outcomes = write_groups(ledger);
      disk.heal();
      const std::filesystem::path killed = as_if_killed();
      after_kill = numbers(killed);
      ledger.write([](LedgerTransaction& transaction) {
        ledger::insert_stream(transaction.connection(), 0, 1000, "n", "");
        ledger::insert_audit(transaction.connection(), 0, 1000, "n", "");
      });
    }
    EXPECT_EQ(outcomes.done.size() + outcomes.failed.size(), size_t{kWrites});
    EXPECT_EQ(outcomes.rolled_back, outcomes.failed)
        << "caches must forget exactly what was undone";
    for (int64_t n : outcomes.done) EXPECT_TRUE(after_kill.contains(n)) << n << " was acknowledged";
    std::set<int64_t> expected = outcomes.done;
    expected.insert(1000);
    EXPECT_EQ(numbers(file_), expected) << "acknowledged, and nothing else";
    const LedgerHealth health = examine_ledger(file_);
    EXPECT_TRUE(health.good()) << health.problems.front();
    some_failed_ = some_failed_ || !outcomes.failed.empty();
  }

  bool some_failed_ = false;
};

TEST_P(LedgerFaultTest, AtEachWriteAndSyncWhatIsAcknowledgedIsThereAndNothingElse) {
  FailingDisk disk;
  int64_t operations = 0;
  {
    Ledger ledger(options());
    disk.heal();
    write_groups(ledger);
    operations = disk.operations();
  }
  ASSERT_GT(operations, 1000) << "with a checkpoint";
  // Every operation of the first group, then one of each 211.
  for (int64_t at = 0; at < operations; at += at < 12 ? 1 : 211) {
    strike(disk, at);
    ASSERT_FALSE(HasFailure()) << GetParam().name << " at operation " << at;
  }
  EXPECT_TRUE(some_failed_);
}

INSTANTIATE_TEST_SUITE_P(Faults, LedgerFaultTest,
                         ::testing::Values(Fault{"FullOnce", SQLITE_FULL, 1},
                                           Fault{"FullForLong", SQLITE_FULL, 400},
                                           Fault{"WriteErrorOnce", SQLITE_IOERR_WRITE, 1},
                                           Fault{"WriteErrorForLong", SQLITE_IOERR_WRITE, 400},
                                           Fault{"SyncErrorOnce", SQLITE_IOERR_FSYNC, 1}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace gnomon

// A restore that is killed at any system call leaves the old ledger or the new one in its place,
// never none, in which a daemon would begin a new one.
#include <gtest/gtest.h>

#include "storage/ledger_audit.h"
#include "storage/ledger_backup.h"
#include "tests/storage/ledger_fixture.h"
#include "tests/storage/syscall_tracer.h"

namespace gnomon {
namespace {

class RestoreCrashTest : public LedgerTest {
 protected:
  void make(int rows) {
    Ledger ledger(options());
    for (int i = 0; i < rows; ++i) {
      ledger.write([](LedgerTransaction& transaction) {
        ledger::insert_audit(transaction.connection(), 0, std::nullopt, "n", "");
      });
    }
  }
  int64_t rows() {
    Ledger ledger(options());
    return number(ledger, "SELECT count(*) FROM audit");
  }
  TracedRun restore(Strike strike, size_t at, int error = 0) {
    return run_traced(
        [&] {
          try {
            restore_ledger(folder_ / "copy.sqlite", file_, true);
          } catch (const std::exception&) {
            return 1;
          }
          return 0;
        },
        strike, at, error);
  }
};

TEST_F(RestoreCrashTest, KilledOrFailingAtAnyCallOneOfTheTwoLedgersIsThere) {
  make(3);
  back_up_ledger(file_, folder_ / "copy.sqlite");
  make(4);
  std::filesystem::copy(file_, folder_ / "old.sqlite");
  const size_t calls = restore(Strike::kNone, 0).calls.size();
  EXPECT_EQ(rows(), 3);
  ASSERT_GT(calls, 10u);
  for (Strike strike : {Strike::kKill, Strike::kFail}) {
    int kept = 0;
    for (size_t at = 0; at < calls; ++at) {
      std::filesystem::copy(folder_ / "old.sqlite", file_,
                            std::filesystem::copy_options::overwrite_existing);
      const TracedRun run = restore(strike, at, EIO);
      const int64_t found = rows();
      EXPECT_TRUE(found == 7 || found == 3) << "call " << at << ": " << found;
      EXPECT_TRUE(run.exit_status != 0 || found == 3) << "call " << at << " was told as done";
      kept += found == 7 ? 1 : 0;
    }
    EXPECT_GT(kept, 5);
  }
}

}  // namespace
}  // namespace gnomon

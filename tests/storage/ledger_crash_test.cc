// The ledger's process is killed with SIGKILL in the middle of a stream of writes: all that was
// acknowledged is there.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "storage/ledger_audit.h"
#include "tests/storage/ledger_fixture.h"

namespace gnomon {
namespace {

// Writes numbered rows for ever, telling each number on `pipe` once it is acknowledged. Keeps many
// in flight.
[[noreturn]] void write_until_killed(const LedgerOptions& options, int pipe) {
  Ledger ledger(options);
  for (int64_t next = 0;; ++next) {
    while (!ledger.post(
        [next](LedgerTransaction& transaction) {
          ledger::insert_audit(transaction.connection(), 0, next, "n", "");
          transaction.connection().execute(
              "INSERT INTO stream (time, run, type, body) VALUES (0, ?, 'n', '')", next + 1);
        },
        [next, pipe](std::exception_ptr error) {
          if (error || ::write(pipe, &next, sizeof next) != sizeof next) {
            ::_exit(1);
          }
        })) {
      std::this_thread::yield();
    }
  }
}

// Reads `pipe` until `count` numbers have come; returns the last.
int64_t read_numbers(int pipe, int64_t count) {
  int64_t last = -1;
  for (int64_t i = 0; i < count; ++i) {
    if (::read(pipe, &last, sizeof last) != sizeof last) {
      return -1;
    }
  }
  return last;
}

class LedgerCrashTest : public LedgerTest, public ::testing::WithParamInterface<int64_t> {};

TEST_P(LedgerCrashTest, EverythingAcknowledgedBeforeAKillIsThereAndNothingIsHalf) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(ends[0]);
    write_until_killed(options(), ends[1]);
  }
  ::close(ends[1]);
  ASSERT_GE(read_numbers(ends[0], GetParam()), 0);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";
  int64_t last = GetParam() - 1;
  for (int64_t more; ::read(ends[0], &more, sizeof more) == sizeof more;) {
    last = more;  // acknowledged between the last read and the kill
  }
  ::close(ends[0]);
  Ledger ledger(options());
  int64_t rows = number(ledger, "SELECT count(*) FROM audit");
  EXPECT_GE(rows, last + 1);
  EXPECT_EQ(number(ledger, "SELECT max(run) FROM audit"), rows - 1)
      << "a gap in what was written in order";
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM stream"), rows) << "half a write";
}

INSTANTIATE_TEST_SUITE_P(KilledAfter, LedgerCrashTest, ::testing::Values(1, 7, 100, 1500, 6000));

}  // namespace
}  // namespace gnomon

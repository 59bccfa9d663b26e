// A ledger that the first version of gnomond wrote, with a live run in it: the present daemon
// brings it to its own version and the run goes on where it stood.
#include <SQLiteCpp/SQLiteCpp.h>

#include "base/files.h"
#include "controller/decide/decide.h"
#include "tests/controller/api_fixture.h"

namespace gnomon {
namespace {

using test::DaemonProcess;

class OldLedgerTest : public ::testing::Test {
 protected:
  OldLedgerTest() {
    SQLite::Database old(daemon.ledger().string(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
    old.exec("PRAGMA journal_mode=WAL");
    old.exec(read_file(GNOMON_LEDGER_SCHEMA_V1));
    old.exec(read_file(GNOMON_LEDGER_ROWS_V1));
    old.exec("PRAGMA application_id=0x476e6f6d; PRAGMA user_version=1");
  }
  DaemonProcess daemon{{}, test_policy()};
};

TEST_F(OldLedgerTest, ItsRunGoesOn) {
  daemon.start();
  FakeTrainer trainer(daemon.url());
  trainer.run = "run-1";
  EXPECT_EQ(trainer.post_steps({{test_step(16)}}).accepted, 1);
  FakeVerifier verifier(daemon.url());
  std::optional<Lease> lease = verifier.lease();
  ASSERT_TRUE(lease.has_value());
  EXPECT_EQ(lease->task.arm, "same") << "the alarm's triage was waiting";
  verifier.complete(*lease, 0);
  EXPECT_TRUE(verifier.lease().has_value());
  EXPECT_THAT(daemon.log(), ::testing::Not(::testing::HasSubstr("cannot be read")));
}

TEST_F(OldLedgerTest, ItsEventsAndStateCanBeRead) {
  daemon.start();
  EXPECT_EQ(daemon.stop(), 0);
  SQLite::Database ledger(daemon.ledger().string());
  SQLite::Statement events(ledger, "SELECT type, body FROM events WHERE body IS NOT NULL");
  int count = 0;
  while (events.executeStep()) {
    EXPECT_NO_THROW(
        decide::event_from_json(events.getColumn(0).getString(), events.getColumn(1).getString()))
        << events.getColumn(1).getString();
    ++count;
  }
  EXPECT_GT(count, 5);
  EXPECT_NO_THROW(decide::state_from_json(
      ledger.execAndGet("SELECT body FROM decision_state WHERE run = 1").getString()));
}

}  // namespace
}  // namespace gnomon

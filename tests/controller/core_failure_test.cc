// The decision core fails on a report: its sender gets a 500 with a sentence, nothing of the report
// is kept, and what the daemon has cached is forgotten, so that a mended ledger is all it takes.
#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>

#include "tests/controller/api_fixture.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;

class CoreFailureTest : public ApiTest {
 protected:
  CoreFailureTest() {
    trainer.begin();
    trainer.train(1, 10);
  }
  // Replays until one of an attribution is leased: its result makes the core read the run's plan.
  Lease attribution_lease() {
    for (int i = 0; i < 10; ++i) {
      Lease lease = verifier.lease().value();
      if (lease.task.purpose == "attribution") {
        return lease;
      }
      verifier.complete(lease, 0.2);
    }
    throw Error("no attribution");
  }
  std::string state() {
    SQLite::Database database(daemon.ledger().string(), SQLite::OPEN_READONLY);
    return database.execAndGet("SELECT body FROM decision_state WHERE run = 1").getString();
  }
  int64_t count(const std::string& table) {
    SQLite::Database database(daemon.ledger().string(), SQLite::OPEN_READONLY);
    return database.execAndGet(fmt::format("SELECT count(*) FROM {}", table)).getInt64();
  }
  void edit(const std::string& sql, const std::string& value) {
    SQLite::Database database(daemon.ledger().string(), SQLite::OPEN_READWRITE);
    database.setBusyTimeout(5000);
    SQLite::Statement statement(database, sql);
    statement.bind(1, value);
    statement.exec();
  }
  void restart() {
    daemon.start();
    trainer.connect(daemon.url());
    verifier.connect(daemon.url());
  }

  FakeTrainer trainer{daemon.url()};
  FakeVerifier verifier{daemon.url()};
};

TEST_F(CoreFailureTest, AnExceptionInTheCoreIsA500AndTheCachedStateIsForgotten) {
  Lease lease = attribution_lease();
  std::string path = fmt::format("/v1/leases/{}/complete", lease.lease);
  daemon.kill();
  std::string good = state();
  edit("UPDATE decision_state SET body = json_set(body, '$.plans[0].toml', ?)", "no plan [");
  restart();
  int64_t events = count("events");
  for (int again = 0; again < 2; ++again) {
    Refused refusal = refused("POST", path, to_json(verifier.result(lease, 0.2)));
    EXPECT_EQ(refusal.status, 500);
    EXPECT_THAT(refusal.detail, HasSubstr("the decision core failed on replay_finished of test/1"));
    EXPECT_THAT(refusal.detail, HasSubstr("plan:1"));
  }
  EXPECT_EQ(count("events"), events);
  EXPECT_EQ(count("results WHERE replay = " + std::to_string(lease.task.replay)), 0);
  edit("UPDATE decision_state SET body = ?", good);
  verifier.complete(lease, 0.2);
  EXPECT_GT(count("events"), events);
}

}  // namespace
}  // namespace gnomon

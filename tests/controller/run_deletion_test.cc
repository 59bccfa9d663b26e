// A run that has ended is deleted: what goes, what stays, and that an interruption costs nothing.
#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>

#include <set>

#include "storage/ledger_deletion.h"
#include "tests/controller/api_fixture.h"
#include "tests/controller/raw_connection.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class RunDeletionTest : public ApiTest {
 protected:
  // A run with rows of most kinds, and a verifier that holds a lease of it.
  void begin_run(const std::string& name) {
    trainer.begin(test_registration(name));
    trainer.train(1, 10);
    verifier.complete(verifier.lease().value(), 0.2);
    trainer.client().checked(
        "POST", trainer.path("/overrides"),
        R"({"kind":"silence","owner":"mira","reason":"test","expires_seconds":60})");
    trainer.client().checked("POST", trainer.path("/notices"),
                             R"({"kind":"checkpoint_failed","attempt":1,"step":5,"text":"full",)"
                             R"("plan":"","plan_version":0,"time":1.0})");
  }
  void end_run(int64_t step = 10) {
    trainer.client().checked("POST", trainer.path("/finished"),
                             to_json(RunFinished{"stopped", step, 3, 1, 1}));
  }
  int erase(const std::string& run) {
    return daemon.client().request("DELETE", "/v1/runs/" + run).status;
  }
  int64_t number(const std::string& sql) {
    SQLite::Database database(daemon.ledger().string(), SQLite::OPEN_READONLY);
    return database.execAndGet(sql).getInt64();
  }
  std::set<std::string> tables_with_a_run() {
    SQLite::Database database(daemon.ledger().string(), SQLite::OPEN_READONLY);
    SQLite::Statement query(database,
                            "SELECT m.name FROM sqlite_schema m, pragma_table_info(m.name) p WHERE "
                            "m.type = 'table' AND p.name = 'run'");
    std::set<std::string> names;
    while (query.executeStep()) names.insert(query.getColumn(0).getString());
    return names;
  }
  int64_t rows_of(int run) {
    int64_t rows = number(fmt::format("SELECT count(*) FROM runs WHERE id = {}", run));
    for (const std::string& table : ledger::tables_of_a_run()) {
      rows += number(fmt::format("SELECT count(*) FROM {} WHERE run = {}", table, run));
    }
    return rows;
  }

  FakeTrainer trainer{daemon.url()};
  FakeVerifier verifier{daemon.url()};
};

TEST_F(RunDeletionTest, EveryTableIsEmptiedOrGoesByItself) {
  std::set<std::string> known = {"audit", "stream", "outbox"};
  for (const std::string& table : ledger::tables_of_a_run()) known.insert(table);
  EXPECT_EQ(tables_with_a_run(), known);
}

TEST_F(RunDeletionTest, ALiveRunAndAnUnknownOneAreRefused) {
  begin_run("test");
  const Refused live = refused("DELETE", "/v1/runs/run-1");
  EXPECT_EQ(live.status, 409);
  EXPECT_THAT(live.accepted, HasSubstr("completed, stopped or failed"));
  EXPECT_EQ(refused("DELETE", "/v1/runs/run-7").status, 404);
  EXPECT_EQ(get("/v1/runs/run-1").at("state"), "live");
}

TEST_F(RunDeletionTest, AllOfTheRunGoesAndNothingOfAnother) {
  begin_run("other");
  const int64_t before = rows_of(1);
  begin_run("test");
  const std::optional<Lease> lease = verifier.lease();
  ASSERT_TRUE(lease);
  end_run();
  ASSERT_GT(rows_of(2), 20);
  ASSERT_EQ(metric("gnomon_run_step{run=\"test/1\"}"), 10);

  EXPECT_EQ(erase("run-2"), 204);
  EXPECT_EQ(rows_of(2), 0);
  EXPECT_EQ(refused("GET", "/v1/runs/run-2").status, 404);
  EXPECT_EQ(refused("DELETE", "/v1/runs/run-2").status, 404);
  EXPECT_EQ(refused("POST", "/v1/runs/run-2/steps", to_json(StepBatch{{test_step(11)}})).status,
            404);
  EXPECT_EQ(metric("gnomon_run_step{run=\"test/1\"}"), -1);
  // The verifier's lease is a row of the run whose turn it was.
  EXPECT_EQ(rows_of(1), before + (lease->task.run == "run-1" ? 1 : 0));
  EXPECT_EQ(get("/v1/runs").as_array().size(), 1u);

  EXPECT_EQ(number("SELECT count(*) FROM audit WHERE run = 2 AND what = 'run_deleted' AND "
                   "detail = 'test/1'"),
            1);
  EXPECT_GE(number("SELECT count(*) FROM audit WHERE run = 2"), 2) << "the override's row stays";
  RawConnection stream(daemon.port());
  stream.send("GET /v1/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(stream.read_until("event: run_deleted"), HasSubstr("event: run_deleted"));

  if (lease->task.run == "run-2") {
    EXPECT_EQ(refused("POST", fmt::format("/v1/leases/{}/complete", lease->lease),
                      to_json(verifier.result(*lease, 0)))
                  .status,
              404);
  }
  EXPECT_EQ(metric("gnomon_leases_active"), lease->task.run == "run-2" ? 0 : 1);
}

// Also of the newest run, whose id SQLite by itself would give again.
TEST_F(RunDeletionTest, AnIdIsNeverGivenAgain) {
  begin_run("test");
  end_run();
  EXPECT_EQ(erase("1"), 204);
  trainer.begin(test_registration("test"));
  EXPECT_EQ(trainer.run, "run-2");
  EXPECT_EQ(get("/v1/runs/run-2/steps").as_array().size(), 0u);
  end_run(0);
  EXPECT_EQ(daemon.stop(), 0);
  daemon.start();
  EXPECT_EQ(erase("2"), 204);
  FakeTrainer again(daemon.url());
  again.begin(test_registration("test"));
  EXPECT_EQ(again.run, "run-3");
}

// What a crash between two pieces leaves, with a lease that was not ended.
TEST_F(RunDeletionTest, AnInterruptedDeletionTakesNothingInAndGoesOn) {
  begin_run("test");
  verifier.lease();
  end_run();
  daemon.kill();
  {
    SQLite::Database database(daemon.ledger().string(), SQLite::OPEN_READWRITE);
    database.exec(
        "UPDATE runs SET state = 'deleting'; DELETE FROM decision_state; DELETE FROM "
        "replay_steps; DELETE FROM steps WHERE step > 3; UPDATE leases SET state = "
        "'expired' WHERE state = 'leased'");
  }
  daemon.start();
  EXPECT_EQ(get("/v1/runs/run-1").at("state"), "deleting");
  EXPECT_EQ(get("/v1/runs?state=deleting").as_array().size(), 1u);
  EXPECT_EQ(metric("gnomon_run_step{run=\"test/1\"}"), -1);
  const Refused step = refused("POST", "/v1/runs/run-1/steps", to_json(StepBatch{{test_step(11)}}));
  EXPECT_EQ(step.status, 409);
  EXPECT_THAT(step.detail, HasSubstr("test/1 is being deleted"));
  EXPECT_EQ(refused("POST", "/v1/runs", to_json(test_registration("test"))).status, 409);
  EXPECT_EQ(erase("1"), 204);
  EXPECT_EQ(rows_of(1), 0);
}

// That it ends one whose trainer is silent is seen in supervisor_test.cc, whose clock can be moved.
class RunEndTest : public RunDeletionTest {
 protected:
  static constexpr const char* kEnd = R"({"owner":"mira","reason":"the node burned down"})";
};

TEST_F(RunEndTest, ARunWhoseTrainerHasJustSpokenIsNot) {
  begin_run("test");
  const Refused early = refused("POST", "/v1/runs/run-1/end", kEnd);
  EXPECT_EQ(early.status, 409);
  EXPECT_THAT(early.detail, HasSubstr("has spoken"));
  EXPECT_THAT(early.accepted, HasSubstr("gnomon override test/1 stop"));
  EXPECT_EQ(get("/v1/runs/run-1").at("state"), "live");
}

TEST_F(RunEndTest, AnEndedRunIsNotEndedAgainAndTheOwnerIsRequired) {
  begin_run("test");
  EXPECT_EQ(refused("POST", "/v1/runs/1/end", R"({"owner":" ","reason":"x"})").status, 400);
  EXPECT_EQ(refused("POST", "/v1/runs/7/end", kEnd).status, 404);
  end_run();
  EXPECT_EQ(refused("POST", "/v1/runs/1/end", kEnd).status, 409);
  EXPECT_EQ(get("/v1/runs/run-1").at("state"), "stopped");
}

// More rows than one write takes; the client leaves and the daemon is killed at once.
TEST_F(RunDeletionTest, KilledInTheMiddleItIsStillDeletable) {
  trainer.begin();
  for (int64_t from = 1; from <= 4000; from += 1000) {
    StepBatch batch;
    for (int64_t step = from; step < from + 1000; ++step) batch.steps.push_back(test_step(step));
    trainer.post_steps(batch);
  }
  end_run(4000);
  RawConnection connection(daemon.port());
  connection.send("DELETE /v1/runs/1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_TRUE(test::eventually(
      [&] { return number("SELECT count(*) FROM runs WHERE state = 'stopped'") == 0; }));
  daemon.kill();
  daemon.start();
  const int status = erase("1");
  EXPECT_TRUE(status == 204 || status == 404) << status;
  EXPECT_EQ(rows_of(1), 0);
  EXPECT_EQ(number("SELECT count(*) FROM audit WHERE what = 'run_deleted'"), 1);
}

}  // namespace
}  // namespace gnomon

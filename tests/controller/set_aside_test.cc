// A decision state is a cache of its events: whatever becomes of it, it is computed again. A run of
// which that is impossible is set aside, and nothing else suffers.
#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>

#include "controller/supervisor/decision_state.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_runs.h"
#include "tests/controller/api_fixture.h"

namespace gnomon {
namespace {

using test::eventually;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class SetAsideTest : public ApiTest {
 protected:
  // Windows, replays, directives; the policy changes on the way.
  SetAsideTest() {
    trainer.begin();
    trainer.train(1, 10);
    provoke_directive(trainer, verifier);
    old_seq = number("SELECT seq FROM decision_state");
    old_body = text("SELECT body FROM decision_state");
    trainer.client().checked("PUT", trainer.path("/policy"),
                             test_policy() + "[detector]\nburn_in_windows = 3\n");
    trainer.train(11, 20);
    while (const std::optional<Lease> lease = verifier.lease()) {
      // Who says two things of one window is not believed any more.
      verifier.complete(*lease, lease->task.start_step < 10 ? 0.2 : 0.001);
    }
    trainer.train(21, 25);
    held = verifier.lease().value();
  }
  void edit(const std::string& sql) {
    SQLite::Database database(daemon.ledger().string(), SQLite::OPEN_READWRITE);
    database.exec(sql);
  }
  std::string text(const std::string& sql) {
    SQLite::Database database(daemon.ledger().string(), SQLite::OPEN_READONLY, 5000);
    return database.execAndGet(sql).getString();
  }
  int64_t number(const std::string& sql) {
    SQLite::Database database(daemon.ledger().string(), SQLite::OPEN_READONLY, 5000);
    return database.execAndGet(sql).getInt64();
  }
  // What effects have written.
  std::string effects() {
    return text(
        "SELECT (SELECT count(*) FROM windows) || ' ' || (SELECT count(*) FROM replays) || ' ' || "
        "(SELECT count(*) FROM decisions) || ' ' || (SELECT count(*) FROM directives) || ' ' || "
        "(SELECT count(*) FROM stream) || ' ' || (SELECT group_concat(state) FROM replays) || ' ' "
        "|| (SELECT total(steps) FROM step_totals)");
  }
  void restart() {
    daemon.start();
    trainer.connect(daemon.url());
    verifier.connect(daemon.url());
  }
  std::string rebuilt() {
    Connection connection(open_for_looking(daemon.ledger()));
    const decide::Policy policy =
        decide::Policy::parse(ledger::load_run(connection, 1).value().policy, "policy");
    return decide::state_to_json(rebuilt_state(connection, 1, policy).state);
  }
  std::string on_record() { return text("SELECT body FROM decision_state WHERE run = 1"); }

  FakeTrainer trainer{daemon.url()};
  FakeVerifier verifier{daemon.url()};
  int64_t old_seq = 0;
  std::string old_body;
  Lease held;
};

TEST_F(SetAsideTest, AStateThatIsOfNoUseIsRebuiltAndNothingIsDoneTwice) {
  EXPECT_EQ(daemon.stop(), 0);
  const std::string good = on_record();
  EXPECT_EQ(rebuilt(), good);
  const std::string before = effects();
  const std::string old_copy = fmt::format("seq = {}, body = '{}'", old_seq, old_body);
  for (const std::string& sql :
       {std::string("UPDATE decision_state SET body = '{}'"),
        std::string("UPDATE decision_state SET body = 'no JSON'"),
        std::string("DELETE FROM decision_state"),
        std::string("UPDATE decision_state SET seq = seq + 7"),
        std::string("UPDATE decision_state SET seq = 3"),
        std::string("UPDATE decision_state SET body = json_set(body, '$.next_window', 1)"),
        "UPDATE decision_state SET " + old_copy}) {
    edit(sql);
    restart();
    EXPECT_EQ(get("/v1/runs").at(0).at("set_aside"), nullptr) << sql;
    EXPECT_EQ(get("/v1/runs/run-1/economics").is_object(), true) << sql;
    EXPECT_EQ(boost::json::serialize(get("/v1/runs/run-1").at("decision_state")),
              boost::json::serialize(boost::json::parse(good)))
        << sql;
    EXPECT_EQ(on_record(), good) << sql << ": the start writes it down";
    EXPECT_EQ(effects(), before) << sql;
    daemon.kill();
  }
  restart();
  EXPECT_EQ(trainer.post_steps({{test_step(26)}}).accepted, 1);
  verifier.complete(held, 0.001);
  EXPECT_EQ(daemon.stop(), 0);
  EXPECT_EQ(rebuilt(), on_record());
}

// What the daemon finds while it runs.
TEST_F(SetAsideTest, AnOldCopyOfTheStateIsBroughtUpToDateUnderThePoliciesOfThen) {
  daemon.kill();
  edit(fmt::format("UPDATE decision_state SET seq = {}, body = '{}'", old_seq, old_body));
  restart();
  trainer.train(26, 30);
  EXPECT_EQ(daemon.stop(), 0);
  EXPECT_EQ(rebuilt(), on_record());
}

class LostRunTest : public SetAsideTest {
 protected:
  // With a live lease of the run, and another run beside it.
  LostRunTest() {
    FakeTrainer second(daemon.url());
    second.begin(test_registration("other", "1"));
    second.train(1, 5);
    daemon.kill();
  }
  void expect_only_run_1_suffers() {
    restart();
    FakeTrainer second(daemon.url());
    second.run = "run-2";
    const boost::json::value runs = get("/v1/runs");
    ASSERT_EQ(runs.as_array().size(), 2u);
    EXPECT_EQ(runs.at(0).at("phase"), "set_aside");
    EXPECT_THAT(runs.at(0).at("set_aside").as_string().c_str(), HasSubstr("event"));
    EXPECT_EQ(runs.at(1).at("set_aside"), nullptr);
    EXPECT_EQ(get("/v1/runs/run-1").at("decision_state"), nullptr);
    EXPECT_FALSE(get("/v1/runs/run-1/windows").as_array().empty());
    EXPECT_EQ(second.post_steps({{test_step(6)}}).accepted, 1);
    for (const auto& [method, path, body] :
         {std::tuple(std::string("POST"), trainer.path("/steps"),
                     to_json(StepBatch{{test_step(26)}})),
          std::tuple(std::string("GET"), trainer.path("/economics"), std::string()),
          std::tuple(std::string("GET"), trainer.path("/directives?after=0&wait=0"), std::string()),
          std::tuple(std::string("POST"), std::string("/v1/runs"), to_json(test_registration())),
          std::tuple(std::string("POST"), fmt::format("/v1/leases/{}/complete", held.lease),
                     to_json(verifier.result(held, 0.001)))}) {
      const Refused refusal = refused(method, path, body);
      EXPECT_EQ(refusal.status, 503) << path;
      EXPECT_EQ(refusal.title, "The run is set aside") << path;
      EXPECT_THAT(refusal.accepted, HasSubstr("gnomon ledger repair"));
    }
    const std::optional<Lease> lease = verifier.lease();
    ASSERT_TRUE(lease) << "of the other run";
    EXPECT_EQ(lease->task.run, "run-2");
    verifier.complete(*lease, 0.001);
    expect_said();
    EXPECT_EQ(daemon.stop(), 0);
  }
  void expect_said() {
    EXPECT_EQ(metric("gnomon_runs_set_aside"), 1);
    const boost::json::value ready = get("/readyz");
    EXPECT_EQ(ready.at("ready"), true);
    const boost::json::value& line = ready.at("checks").as_array().back();
    EXPECT_EQ(line.at("name"), "runs_served");
    EXPECT_EQ(line.at("ok"), false);
    EXPECT_THAT(line.at("error").as_string().c_str(), HasSubstr("run-1 (test/1) is set aside"));
    EXPECT_TRUE(eventually([&] {
      const boost::json::value notices = get("/v1/runs/run-1/notices");
      for (const boost::json::value& notice : notices.as_array()) {
        if (notice.at("kind") == "run_set_aside") return true;
      }
      return false;
    }));
  }
};

TEST_F(LostRunTest, AnEventIsGone) {
  edit(
      "UPDATE decision_state SET body = '{}' WHERE run = 1; DELETE FROM events WHERE run = 1 AND "
      "seq = 2");
  expect_only_run_1_suffers();
}

TEST_F(LostRunTest, AllEventsAreGone) {
  edit("DELETE FROM decision_state WHERE run = 1; DELETE FROM events WHERE run = 1");
  expect_only_run_1_suffers();
}

TEST_F(LostRunTest, AStepThatWasAnEventIsGone) {
  edit(
      "UPDATE decision_state SET body = 'x' WHERE run = 1; DELETE FROM steps WHERE run = 1 AND "
      "step = 7");
  expect_only_run_1_suffers();
}

TEST_F(LostRunTest, AnEventCannotBeRead) {
  edit(
      "UPDATE decision_state SET body = '' WHERE run = 1; UPDATE events SET body = '{\"a\":1}' "
      "WHERE run = 1 AND seq = 2");
  expect_only_run_1_suffers();
}

TEST_F(LostRunTest, TheDaemonRepairsTheLedgerFromMemory) {
  restart();
  edit(
      "PRAGMA busy_timeout=5000; UPDATE decision_state SET body = '{}' WHERE run = 1; DELETE FROM "
      "events WHERE run = 1 AND seq = 2");
  EXPECT_EQ(get("/v1/runs/run-1").at("decision_state"), nullptr);
  EXPECT_TRUE(eventually([&] { return get("/v1/runs/run-1").at("decision_state").is_object(); }));
  EXPECT_EQ(metric("gnomon_runs_set_aside"), 0);
  EXPECT_EQ(trainer.post_steps({{test_step(26)}}).accepted, 1);
}

// Another version had a key that this one does not have.
TEST_F(LostRunTest, APolicyThatCannotBeReadCanBeReplaced) {
  restart();
  trainer.train(26, 30);  // a window that waits
  daemon.kill();
  edit("UPDATE runs SET policy = '[window]' || char(10) || 'absent = 1' WHERE id = 1");
  restart();
  EXPECT_EQ(get("/v1/runs").at(0).at("phase"), "set_aside");
  const auto refusal = refused("POST", trainer.path("/steps"), to_json(StepBatch{{test_step(26)}}));
  EXPECT_THAT(refusal.accepted, HasSubstr("PUT /v1/runs/{run}/policy"));
  EXPECT_EQ(refused("PUT", trainer.path("/policy"), "[window]\nabsent = 2\n").status, 400);
  trainer.client().checked("PUT", trainer.path("/policy"), test_policy());
  EXPECT_EQ(metric("gnomon_runs_set_aside"), 0);
  EXPECT_EQ(metric("gnomon_leases_active"), 1) << "the one from before";
  std::vector<std::pair<std::string, int64_t>> leased;
  while (const std::optional<Lease> lease = verifier.lease()) {
    leased.emplace_back(lease->task.run, lease->task.start_step);
    verifier.complete(*lease, 0.001);
  }
  EXPECT_THAT(leased, Contains(Pair("run-1", 25)));
  EXPECT_EQ(trainer.post_steps({{test_step(31)}}).accepted, 1);
  EXPECT_EQ(metric("gnomon_run_step{run=\"test/1\"}"), 31);
  verifier.complete(held, 0.001);
  EXPECT_EQ(daemon.stop(), 0);
  restart();
  EXPECT_EQ(trainer.post_steps({{test_step(32)}}).accepted, 1) << "a start after it";
}

// The operator takes leave of it.
TEST_F(LostRunTest, OneThatHasEndedCanBeDeleted) {
  edit(
      "DELETE FROM decision_state WHERE run = 1; DELETE FROM events WHERE run = 1; UPDATE runs SET "
      "state = 'stopped', finished_at = 1e9 WHERE id = 1");
  restart();
  EXPECT_EQ(get("/v1/runs").at(0).at("phase"), "set_aside");
  EXPECT_EQ(daemon.client().request("DELETE", "/v1/runs/run-1").status, 204);
  EXPECT_EQ(get("/v1/runs").as_array().size(), 1u);
  EXPECT_EQ(metric("gnomon_runs_set_aside"), 0);
}

}  // namespace
}  // namespace gnomon

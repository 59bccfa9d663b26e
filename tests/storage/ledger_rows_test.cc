#include <gmock/gmock.h>
#include <sqlite3.h>

#include <cmath>
#include <limits>

#include "storage/ledger_decisions.h"
#include "storage/ledger_health.h"
#include "storage/ledger_leases.h"
#include "storage/ledger_runs.h"
#include "storage/ledger_statistics.h"
#include "storage/ledger_windows.h"
#include "tests/storage/ledger_fixture.h"
#include "tests/support/words.h"

namespace gnomon {
namespace {

using ::testing::ElementsAre;

class LedgerRowsTest : public LedgerTest {
 protected:
  LedgerRowsTest() : ledger_(options()) {
    write([&](Connection& connection) {
      run_ =
          ledger::insert_run(connection, {0, "name", "job", "{}", "", "live", 1.0, std::nullopt});
    });
  }
  void write(const std::function<void(Connection&)>& action) {
    ledger_.write([&](LedgerTransaction& transaction) { action(transaction.connection()); });
  }

  Ledger ledger_;
  int64_t run_ = 0;
};

TEST_F(LedgerRowsTest, NanIsWrittenAsNullAndReadBackAsNanAndInfinitiesAreKept) {
  double infinity = std::numeric_limits<double>::infinity();
  double nan = std::numeric_limits<double>::quiet_NaN();
  write([&](Connection& connection) {
    ledger::insert_step(connection, {{1, 1, 1, nan, infinity, 0.1, 8, 0.5, "00"}, run_, 2.0});
    ledger::insert_step(connection,
                        {{1, 2, 1, -infinity, 0.1 + 0.2, 0.1, 8, 0.5, "01"}, run_, 2.0});
  });
  ledger_.read([&](Connection& connection) {
    const std::vector<StepRow> steps = ledger::steps_between(connection, run_, 1, 1, 2);
    ASSERT_EQ(steps.size(), 2u);
    EXPECT_TRUE(std::isnan(steps[0].loss));
    EXPECT_EQ(steps[0].grad_norm, infinity);
    EXPECT_EQ(steps[1].loss, -infinity);
    EXPECT_EQ(steps[1].grad_norm, 0.1 + 0.2);
  });
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM steps WHERE loss IS NULL"), 1);
}

TEST_F(LedgerRowsTest, OfGpusTheNewestSamplesAreKeptOneOfTenSeconds) {
  const auto insert = [&](double sampled_at, const std::string& device = "0000:01:00.0",
                          int64_t attempt = 1) {
    write([&](Connection& connection) {
      DeviceHealthRow row{.run = run_,
                          .attempt = attempt,
                          .step = static_cast<int64_t>(sampled_at),
                          .host = "h",
                          .device = device,
                          .sampled_at = sampled_at,
                          .reported_at = 9.0,
                          .ecc_uncorrected = 3,
                          .body = "{}"};
      ledger::insert_health(connection, row, 4);
    });
  };
  const auto samples = [&] {
    std::vector<double> times;
    ledger_.read([&](Connection& connection) {
      Query query = connection.query("SELECT sampled_at FROM device_health ORDER BY sample");
      while (query.next()) times.push_back(query.real(0));
    });
    return times;
  };
  for (double time : {11.0, 12.0, 19.9, 20.0, 31.0}) insert(time);
  EXPECT_THAT(samples(), ElementsAre(19.9, 20.0, 31.0));
  insert(32.0, "0000:02:00.0");
  insert(33.0, "0000:02:00.0", 2);
  EXPECT_THAT(samples(), ElementsAre(20.0, 31.0, 32.0, 33.0)) << "another device, another attempt";
  for (double time : {40.0, 50.0, 60.0, 70.0, 80.0}) insert(time);
  EXPECT_THAT(samples(), ElementsAre(50.0, 60.0, 70.0, 80.0));
  ledger_.read([&](Connection& connection) {
    const std::optional<DeviceHealthRow> newest = ledger::newest_health(connection, run_);
    ASSERT_TRUE(newest.has_value());
    EXPECT_EQ(newest->sampled_at, 80.0);
    EXPECT_EQ(newest->host, "h");
    EXPECT_EQ(newest->ecc_uncorrected, 3);
    EXPECT_EQ(newest->ecc_told, std::nullopt);
    EXPECT_FALSE(ledger::newest_health(connection, run_ + 1).has_value());
  });
}

TEST_F(LedgerRowsTest, StatisticsOfTheNewestStepsAreKept) {
  auto insert = [&](int64_t attempt, int64_t step) {
    StatisticsReport report;
    report.attempt = attempt;
    report.step = step;
    for (const char* site : {"a", "b"}) {
      StatisticsRow row;
      row.site = site;
      row.tensor = "input";
      report.rows.push_back(row);
    }
    int64_t inserted = 0;
    write([&](Connection& connection) {
      inserted = ledger::insert_statistics(connection, run_, report, {"{}", "{}"}, 1.0);
    });
    return inserted;
  };
  const int64_t most = ledger::kStatisticsStepsMax;
  write([&](Connection& connection) {  // all but the last of them at once
    connection.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
        "INSERT INTO statistics_steps (run, attempt, step, plan_version, measured_at, reported_at) "
        "SELECT ?, 1, 10 * i, 1, 0, 0 FROM n",
        most - 1, run_);
    connection.execute(
        "INSERT INTO statistics (run, attempt, step, site, tensor, gemm, recipe, in_use, body) "
        "SELECT run, attempt, step, 'a', 'input', '', '', 0, '{}' FROM statistics_steps");
  });
  auto steps = [&] { return number(ledger_, "SELECT count(*) FROM statistics_steps"); };
  auto oldest = [&] {
    return number(ledger_, "SELECT min(step) FROM statistics WHERE attempt = 1");
  };
  EXPECT_EQ(insert(1, 10 * most), 2);
  EXPECT_EQ(steps(), most);
  EXPECT_EQ(oldest(), 10);
  EXPECT_EQ(insert(1, 10 * most), 0) << "the same again";
  EXPECT_EQ(oldest(), 10);
  // A later attempt from an earlier step on: the old attempt's oldest steps go, not the new ones.
  EXPECT_EQ(insert(2, 15), 2);
  EXPECT_EQ(insert(2, 25), 2);
  EXPECT_EQ(steps(), most);
  EXPECT_EQ(oldest(), 30);
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM statistics WHERE attempt = 2"), 4);
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM statistics"), most - 3 + 2 + 4);
}

TEST_F(LedgerRowsTest, StatisticsAreBoundedByRowsAndTheOldestStepsGo) {
  auto insert = [&](int64_t step, int rows, const std::string& tensor = "input") {
    StatisticsReport report;
    report.attempt = 1;
    report.step = step;
    for (int i = 0; i < rows; ++i) {
      StatisticsRow row;
      row.site = std::to_string(i);
      row.tensor = test::any_word(tensor);
      report.rows.push_back(row);
    }
    write([&](Connection& connection) {
      ledger::insert_statistics(connection, run_, report,
                                std::vector<std::string>(report.rows.size(), "{}"), 1.0, {8, 20});
    });
  };
  auto rows = [&] { return number(ledger_, "SELECT count(*) FROM statistics"); };
  auto steps = [&] { return number(ledger_, "SELECT count(*) FROM statistics_steps"); };
  auto oldest = [&] { return number(ledger_, "SELECT min(step) FROM statistics"); };
  for (int64_t step = 1; step <= 9; ++step) insert(step, 1);
  EXPECT_EQ(steps(), 8) << "room for 20 rows, but not for 20 steps";
  EXPECT_EQ(oldest(), 2);
  insert(10, 5);  // four as large as this one
  EXPECT_EQ(steps(), 4);
  EXPECT_EQ(oldest(), 7);
  for (int64_t step = 11; step <= 20; ++step) insert(step, 5);
  EXPECT_EQ(rows(), 20);
  EXPECT_EQ(oldest(), 17);
  insert(20, 5, "output");  // more of the newest: it has ten now
  EXPECT_EQ(rows(), 15);
  EXPECT_EQ(oldest(), 19);
  for (int64_t step = 21; step <= 23; ++step)
    insert(step, 1);  // not more while a large one is left
  EXPECT_EQ(oldest(), 21);
  EXPECT_EQ(rows(), 3);
  insert(24, 100);
  EXPECT_EQ(rows(), 100) << "the newest step stays whatever its size";
  EXPECT_EQ(steps(), 1);
}

TEST_F(LedgerRowsTest, AStepIsKeptOnce) {
  StepRow step{{1, 1, 1, 2.0, 1.0, 0.1, 8, 0.5, "00"}, run_, 2.0};
  write([&](Connection& connection) { EXPECT_TRUE(ledger::insert_step(connection, step)); });
  step.loss = 3.0;
  write([&](Connection& connection) {
    EXPECT_FALSE(ledger::insert_step(connection, step));
    EXPECT_EQ(ledger::find_step(connection, run_, 1, 1)->loss, 2.0);
  });
}

TEST_F(LedgerRowsTest, AnAttemptOfAnUnknownRunIsRefused) {
  EXPECT_THROW(write([&](Connection& connection) {
                 ledger::insert(connection, AttemptRow{run_ + 7, 1, 0, "start", 1});
               }),
               LedgerError);  // foreign key
}

TEST_F(LedgerRowsTest, TheQueueHasWhatIsQueuedAlone) {
  auto queued = [&](int64_t replay, double ordered_at) {
    ReplayRow row{{replay, 1, "bf16", "", "shadow", true, 5}, run_};
    row.ordered_at = ordered_at;
    return row;
  };
  write([&](Connection& connection) {
    for (int64_t replay = 1; replay <= 4; ++replay) {
      ledger::insert(connection, queued(replay, 10.5));
    }
    ledger::set_replay_state(connection, run_, 2, "leased", 1, "", 0);
    ledger::set_replay_state(connection, run_, 4, "done", 1, "", 0);
  });
  std::vector<int64_t> found;
  write([&](Connection& connection) {
    for (const ReplayRow& row : ledger::queued_replays(connection)) {
      found.push_back(row.replay);
      EXPECT_EQ(row.priority, 5);
      EXPECT_EQ(row.ordered_at, 10.5);
    }
  });
  EXPECT_THAT(found, ElementsAre(1, 3));
}

// Counted in hundreds of instructions of SQLite's machine.
TEST_F(LedgerRowsTest, WhatEachWindowAsksForCostsNoMoreInALongRun) {
  write([&](Connection& connection) {
    connection.execute(
        "WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 5000) "
        "INSERT INTO checkpoints (run, attempt, step, uri, plan_version, bytes, manifest_hash, "
        "weights_hash, reported_at, protected) SELECT ?1, 1, i + 1000, 'long/' || i, 1, 1, 'm', "
        "'w', 0.0, i > 4997 FROM n",
        run_);
    connection.execute(
        "WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 5000) "
        "INSERT INTO replays (run, replay, window, arm, plan, purpose, evaluate_endpoints, "
        "priority, state, token, ordered_at) SELECT ?1, i + 1000, 1000 + i, 'bf16', '', 'shadow', "
        "1, 0, 'done', 1, 0.0 FROM n",
        run_);
  });
  int64_t hundreds = 0;
  write([&](Connection& connection) {
    sqlite3_progress_handler(
        connection.handle(), 100,
        [](void* count) {
          ++*static_cast<int64_t*>(count);
          return 0;
        },
        &hundreds);
    EXPECT_EQ(ledger::protected_checkpoints(connection, run_).size(), 3);
    ledger::protect_checkpoints(connection, run_, {"long/7"});
    EXPECT_THAT(ledger::protected_checkpoints(connection, run_), ElementsAre("long/7"));
    EXPECT_EQ(ledger::cancel_queued_replays(connection, run_, 3000, 0), 0);
    sqlite3_progress_handler(connection.handle(), 0, nullptr, nullptr);
  });
  EXPECT_LT(hundreds, 20);
}

// Every way in which a lease's row may stand against a token, and whether the lease may then be
// touched or ended.
TEST_F(LedgerRowsTest, OnlyTheHolderOfTheTokenMayTouchOrEndALease) {
  struct Case {
    const char* state;
    int64_t token;
    bool accepted;
  };
  for (const Case& each :
       {Case{"leased", 3, true}, Case{"leased", 2, false}, Case{"leased", 4, false},
        Case{"completed", 3, false}, Case{"failed", 3, false}, Case{"expired", 3, false}}) {
    write([&](Connection& connection) {
      int64_t lease = ledger::insert_lease(connection, run_, 1, 3, "v", 0);
      connection.execute("UPDATE leases SET state = ? WHERE id = ?", each.state, lease);
      EXPECT_EQ(ledger::touch_lease(connection, lease, each.token, 1, 1), each.accepted)
          << each.state << each.token;
      EXPECT_EQ(ledger::end_lease(connection, lease, each.token, "completed", ""), each.accepted)
          << each.state << each.token;
      EXPECT_FALSE(ledger::end_lease(connection, lease, each.token, "completed", "")) << "twice";
    });
  }
}

TEST_F(LedgerRowsTest, ProtectingCheckpointsReplacesTheListBefore) {
  write([&](Connection& connection) {
    for (int64_t step : {10, 20, 30}) {
      ledger::insert(connection,
                     CheckpointRow{{1, step, "uri" + std::to_string(step), 1, 1}, run_});
    }
    ledger::protect_checkpoints(connection, run_, {"uri10", "uri20"});
    ledger::protect_checkpoints(connection, run_, {"uri30", "uri20"});
    EXPECT_THAT(ledger::protected_checkpoints(connection, run_), ElementsAre("uri20", "uri30"));
  });
}

TEST_F(LedgerRowsTest, OpenDirectivesLeaveOutWhatHasEnded) {
  write([&](Connection& connection) {
    for (int64_t number = 1; number <= 4; ++number) {
      ledger::insert(connection,
                     DirectiveRow{{number, "set_plan", "", 1, 0, "", "because", "pending"}, run_});
    }
    ledger::mark_delivered(connection, run_, 1, 1);
    ledger::end_directive(connection, run_, 2, "applied", {"applied", 1, 5, "", 0}, 1);
    ledger::end_directive(connection, run_, 3, "rejected", {"rejected", 1, 5, "no", 0}, 1);
    std::vector<int64_t> numbers;
    for (const Directive& directive : ledger::open_directives(connection, run_, 0)) {
      numbers.push_back(directive.number);
    }
    EXPECT_THAT(numbers, ElementsAre(1, 4));
    EXPECT_EQ(ledger::open_directives(connection, run_, 1).size(), 1u);
    EXPECT_EQ(ledger::last_directive(connection, run_), 4);
  });
}

TEST_F(LedgerRowsTest, TheSameFaultIsRecordedOnce) {
  write([&](Connection& connection) {
    InjectedFault fault{"stale_amax", "lm_head", 5, 0, "text"};
    ledger::insert_fault(connection, run_, fault);
    ledger::insert_fault(connection, run_, fault);
  });
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM faults"), 1);
}

}  // namespace
}  // namespace gnomon

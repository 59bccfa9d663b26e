// What the supervisor keeps in memory is never ahead of the ledger.
#include <gtest/gtest.h>

#include "controller/auth/http_error.h"
#include "controller/supervisor/attempts.h"
#include "controller/supervisor/ending.h"
#include "controller/supervisor/registration.h"
#include "controller/supervisor/reports.h"
#include "controller/supervisor/run_cache.h"
#include "protocol/json.h"
#include "storage/ledger_decisions.h"
#include "tests/controller/registration.h"
#include "tests/storage/ledger_fixture.h"

namespace gnomon {
namespace {

TEST_F(LedgerTest, AWriteThatWasUndoneLeavesNoTraceInTheCachedState) {
  Ledger ledger(options());
  Metrics metrics;
  ReplayQueue queue;
  ChangeNotifiers notifiers;
  RunCache runs(
      metrics, queue, notifiers, RunCacheOptions{"", 3600}, [] { return 1e9; }, [] { return 0.0; });
  int64_t run = 0;
  ledger.write([&](LedgerTransaction& transaction) {
    run = parse_run_id(register_run({runs, transaction}, small_registration()).run);
    start_attempt({runs, transaction}, run, {1, 0, "start", 1, 0});
  });
  auto report = [&](LedgerTransaction& transaction) {
    StepReport step;
    step.step = 1;
    step.plan_version = 1;
    step.loss = 2.0;
    EXPECT_EQ(report_steps({runs, transaction}, run, {{step}}).accepted, 1);
  };
  EXPECT_THROW(ledger.write([&](LedgerTransaction& transaction) {
    report(transaction);
    throw Error("undone");
  }),
               Error);
  ledger.write(report);
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM events"), 2);
  EXPECT_EQ(number(ledger, "SELECT seq FROM steps"), 3);
  ledger.write([&](LedgerTransaction& transaction) { runs.save_all(transaction); });
  EXPECT_EQ(number(ledger, "SELECT seq FROM decision_state"), 3);
}

// From before texts had limits.
TEST_F(LedgerTest, ARunOnRecordRegistersAgainWithTheTextsThatItHas) {
  Ledger ledger(options());
  Metrics metrics;
  ReplayQueue queue;
  ChangeNotifiers notifiers;
  RunCache runs(
      metrics, queue, notifiers, RunCacheOptions{"", 3600}, [] { return 1e9; }, [] { return 0.0; });
  RunRegistration run = small_registration();
  run.fingerprint.device = std::string(300, 'd');
  const auto post = [&] {
    ledger.write([&](LedgerTransaction& transaction) { register_run({runs, transaction}, run); });
  };
  EXPECT_THROW(post(), JsonError);
  ledger.write([&](LedgerTransaction& transaction) {
    ledger::insert_run(transaction.connection(),
                       {0, run.name, run.job_id, to_json(run), "", "live", 1e9, std::nullopt});
  });
  run.last_directive = 0;
  run.total_steps = 77;
  post();
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM runs"), 1);
  run.fingerprint.device += 'd';
  EXPECT_THROW(post(), JsonError);
}

// The core orders nothing that the trainer cannot do, so it must hear what that is.
TEST_F(LedgerTest, WhatATrainerCanDoReachesTheCoreAndSoDoesAChangeOfIt) {
  Ledger ledger(options());
  Metrics metrics;
  ReplayQueue queue;
  ChangeNotifiers notifiers;
  RunCache runs(
      metrics, queue, notifiers, RunCacheOptions{"", 3600}, [] { return 1e9; }, [] { return 1e3; });
  RunRegistration run = small_registration();
  const auto known_to_core = [&] {
    Capabilities known;
    ledger.write([&](LedgerTransaction& transaction) {
      register_run({runs, transaction}, run);
      runs.save_all(transaction);
    });
    ledger.read([&](Connection& connection) {
      known = decide::state_from_json(ledger::load_state(connection, 1)->body).run.capabilities;
    });
    return known;
  };
  run.capabilities = {"layer", "restart", "none", false, true};
  EXPECT_EQ(known_to_core(), run.capabilities);
  run.capabilities.rollback = "restart";
  EXPECT_EQ(known_to_core(), run.capabilities);
}

class RunsTest : public LedgerTest {
 protected:
  double now = 1e9;
  double steady = 1000;
  Ledger ledger{options()};
  Metrics metrics;
  ReplayQueue queue;
  ChangeNotifiers notifiers;
  RunCache runs{metrics,
                queue,
                notifiers,
                RunCacheOptions{"", 3600},
                [this] { return now; },
                [this] { return steady; }};
};

TEST_F(RunsTest, ARunKeepsItsBasePlan) {
  RunRegistration run = small_registration();
  for (const char* more : {"", "# another text\n"}) {
    run.base_plan += more;
    ledger.write([&](LedgerTransaction& transaction) { register_run({runs, transaction}, run); });
  }
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM runs WHERE registration LIKE '%another text%'"),
            0);
}

// A clock that was hours ahead is set right, and the daemon started again.
TEST_F(RunsTest, ATrainerOfTheFutureKeepsNobodyOut) {
  const auto begin = [&](const std::string& incarnation, double running) {
    ledger.write([&](LedgerTransaction& transaction) {
      register_run({runs, transaction}, small_registration(), {incarnation, running});
    });
  };
  now += 9 * 3600;
  begin("first", 10);
  now -= 9 * 3600;
  begin("second", 1);
  EXPECT_THROW(begin("first", 20), HttpError) << "that began before the second";
}

class EndedRunTest : public RunsTest {
 protected:
  int64_t begin() {
    int64_t run = 0;
    ledger.write([&](LedgerTransaction& transaction) {
      run = parse_run_id(register_run({runs, transaction}, small_registration()).run);
      start_attempt({runs, transaction}, run, {1, 0, "start", 1, 0});
    });
    return run;
  }
  // The status of what an operator is told.
  int end(int64_t run) {
    try {
      ledger.write([&](LedgerTransaction& transaction) {
        end_run({runs, transaction}, run, {"mira", "the node burned down"});
      });
      return 200;
    } catch (const HttpError& refusal) {
      return refusal.problem().status;
    }
  }
};

TEST_F(EndedRunTest, ARunWithASilentTrainerCanBeEndedAsFailed) {
  const int64_t run = begin();
  EXPECT_EQ(end(run), 409) << "the daemon has just begun: the trainer may not have found it yet";
  steady += 119;
  EXPECT_EQ(end(run), 409);
  steady += 1;
  EXPECT_EQ(end(run), 200);
  EXPECT_EQ(end(run), 200) << "a repeat";
  EXPECT_EQ(
      number(ledger, "SELECT count(*) FROM runs WHERE state = 'failed' AND final_loss IS NULL"), 1);
  EXPECT_EQ(number(ledger,
                   "SELECT count(*) FROM audit WHERE what = 'run_ended' AND detail = "
                   "'mira: the node burned down'"),
            1);
  // It comes back after all.
  ledger.write([&](LedgerTransaction& transaction) {
    start_attempt({runs, transaction}, run, {2, 0, "restart", 1, 0});
  });
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM runs WHERE state = 'live'"), 1);
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM stream WHERE body LIKE '%\"state\":\"live\"%'"),
            2);
}

// It was cut off, and reports on as if nothing had been.
TEST_F(EndedRunTest, AnEndedRunThatReportsIsSupervisedAgain) {
  const int64_t run = begin();
  const auto report = [&](int64_t step) {
    StepReport one;
    one.attempt = 1;
    one.step = step;
    one.plan_version = 1;
    ledger.write([&](LedgerTransaction& transaction) {
      report_steps({runs, transaction}, run, {{one}});
    });
  };
  const auto live = [&] {
    return number(ledger, "SELECT count(*) FROM runs WHERE state = 'live'");
  };
  for (int64_t step = 1; step <= 5; ++step) report(step);
  steady += 121;
  EXPECT_EQ(end(run), 200);
  report(5);
  EXPECT_EQ(live(), 0) << "a repeat of what was on record is no sign of life";
  report(6);
  EXPECT_EQ(live(), 1);
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM audit WHERE what = 'run_goes_on'"), 1);
  EXPECT_EQ(end(run), 200) << "its trainer is silent once more";
  ledger.write([&](LedgerTransaction& transaction) {
    start_attempt({runs, transaction}, run, {2, 5, "restart", 1, 0});
    finish_run({runs, transaction}, run, {"stopped", 5, 1, 1, 1});
  });
  report(7);
  EXPECT_EQ(live(), 0) << "an attempt of before that one";
}

// Its series were dropped an hour after its end.
TEST_F(EndedRunTest, OneThatComesBackLaterHasItsSeriesAgain) {
  const int64_t run = begin();
  const auto report = [&](int64_t attempt, int64_t step) {
    StepReport one;
    one.attempt = attempt;
    one.step = step;
    one.plan_version = 1;
    one.loss = 3;
    ledger.write([&](LedgerTransaction& transaction) {
      report_steps({runs, transaction}, run, {{one}});
    });
  };
  const auto series = [&](const std::string& name) {
    const std::string text = metrics.serialize(steady);
    const size_t at = text.find(name + "{run=\"small/1\"} ");
    return at == std::string::npos ? "none" : text.substr(text.find(' ', at) + 1, 1);
  };
  const auto fail_and_drop = [&] {
    steady += 121;
    ASSERT_EQ(end(run), 200);
    ASSERT_NE(series("gnomon_run_steps_total"), "none");
    steady += 3601;
    ASSERT_EQ(series("gnomon_run_steps_total"), "none");
  };
  for (int64_t step = 1; step <= 5; ++step) report(1, step);
  fail_and_drop();
  report(1, 6);
  EXPECT_EQ(series("gnomon_run_steps_total"), "6");
  EXPECT_EQ(series("gnomon_run_step"), "6");
  fail_and_drop();
  ledger.write([&](LedgerTransaction& transaction) {
    start_attempt({runs, transaction}, run, {2, 6, "restart", 1, 0});
  });
  EXPECT_EQ(series("gnomon_run_steps_total"), "6");
  report(2, 7);
  EXPECT_EQ(series("gnomon_run_steps_total"), "7");
  EXPECT_EQ(series("gnomon_run_attempt"), "2");
}

// A paused one reports nothing; it polls.
TEST_F(EndedRunTest, ARunWithAnActiveTrainerCannotBeEnded) {
  const int64_t run = begin();
  steady += 500;
  runs.record_contact(run);
  steady += 100;
  EXPECT_EQ(end(run), 409);
  EXPECT_EQ(number(ledger, "SELECT count(*) FROM runs WHERE state = 'live'"), 1);
}

}  // namespace
}  // namespace gnomon

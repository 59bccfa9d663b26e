// The state that is written down may be behind the events; with them it is the same.
#include "controller/supervisor/decision_state.h"

#include <gmock/gmock.h>

#include <limits>

#include "controller/auth/http_error.h"
#include "controller/supervisor/attempts.h"
#include "controller/supervisor/ending.h"
#include "controller/supervisor/overrides.h"
#include "controller/supervisor/registration.h"
#include "controller/supervisor/reports.h"
#include "controller/supervisor/run_cache.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_runs.h"
#include "tests/controller/registration.h"
#include "tests/storage/ledger_fixture.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;

class DecisionStateTest : public LedgerTest {
 protected:
  DecisionStateTest() : ledger_(options()), runs_(make_runs()) {
    ledger_.write([&](LedgerTransaction& transaction) {
      run_ = parse_run_id(register_run({*runs_, transaction}, small_registration()).run);
      start_attempt({*runs_, transaction}, run_, {1, 0, "start", 1, 0, {}});
      runs_->save_all(transaction);
    });
  }
  std::unique_ptr<RunCache> make_runs() {
    return std::make_unique<RunCache>(
        metrics_, queue_, notifiers_, RunCacheOptions{"", 3600}, [this] { return 1e9 + clock_; },
        [this] { return clock_; });
  }
  static StepReport step(int64_t number, int64_t attempt = 1) {
    StepReport report;
    report.attempt = attempt;
    report.step = number;
    report.plan_version = 1;
    report.loss = 3.0 - 0.01 * static_cast<double>(number);
    report.step_seconds = 0.5;
    return report;
  }
  void report(const std::vector<StepReport>& steps) {
    clock_ += 0.001;
    ledger_.write([&](LedgerTransaction& transaction) {
      EXPECT_EQ(report_steps({*runs_, transaction}, run_, {steps}).accepted, std::ssize(steps));
    });
  }
  int64_t saved_seq() { return number(ledger_, "SELECT seq FROM decision_state"); }
  // As another process finds it.
  StateOnRecord on_record(const LateEffects& late = {}) {
    std::optional<StateOnRecord> found;
    ledger_.read([&](Connection& connection) {
      const std::string policy = ledger::load_run(connection, run_).value().policy;
      found = state_on_record(connection, run_, decide::Policy::parse(policy, "policy"), late);
    });
    return std::move(found.value());
  }
  // What the supervisor itself has in memory, once it was made to write it down.
  std::string in_memory() {
    ledger_.write([&](LedgerTransaction& transaction) { runs_->save_all(transaction); });
    return state();
  }
  std::string state() {
    std::string body;
    ledger_.read(
        [&](Connection& connection) { body = ledger::load_state(connection, run_)->body; });
    return body;
  }

  double clock_ = 100;
  Ledger ledger_;
  Metrics metrics_;
  ReplayQueue queue_;
  ChangeNotifiers notifiers_;
  std::unique_ptr<RunCache> runs_;
  int64_t run_ = 0;
};

TEST_F(DecisionStateTest, TheSignOfAZeroIsKeptNowhere) {
  StepReport zero = step(1);
  zero.loss = -0.0;
  zero.grad_norm = -0.0;
  report({zero});
  const std::string read_back = decide::state_to_json(on_record().state);
  EXPECT_EQ(read_back, in_memory());
  ledger_.write([&](LedgerTransaction& transaction) {
    EXPECT_EQ(report_steps({*runs_, transaction}, run_, {{zero}}).repeated, 1);
  });
}

// In a row both are NULL, and only one of them is an alarm.
TEST_F(DecisionStateTest, ANormThatIsNotANumberIsToldFromOneThatIsNotSaid) {
  StepReport without = step(1), nan = step(2);
  without.grad_norm.reset();
  nan.grad_norm = std::numeric_limits<double>::quiet_NaN();
  report({without});
  EXPECT_FALSE(on_record().state.spikes.non_finite.has_value());
  report({nan});
  const StateOnRecord found = on_record();
  EXPECT_TRUE(found.state.spikes.non_finite.has_value());
  EXPECT_EQ(decide::state_to_json(found.state), in_memory());
  EXPECT_EQ(number(ledger_,
                   "SELECT count(*) FROM events WHERE type = 'step_reported' AND body "
                   "LIKE '%NaN%'"),
            1);
  ledger_.write([&](LedgerTransaction& transaction) {
    EXPECT_EQ(report_steps({*runs_, transaction}, run_, {{without, nan}}).repeated, 2);
    nan.grad_norm = 1;
    EXPECT_THROW(report_steps({*runs_, transaction}, run_, {{nan}}), HttpError);
  });
}

// Steps without effects are read from their rows, where NULL is NaN or not said.
TEST_F(DecisionStateTest, WhatCastsDidIsReadBackFromTheSteps) {
  StepReport said = step(1), nan = step(2), without = step(3);
  said.cast_saturated = 1e-6;
  said.cast_flushed = 0.001;
  said.cast_peak = 0.9;
  nan.cast_saturated = 2e-6;
  nan.cast_peak = std::numeric_limits<double>::quiet_NaN();
  report({said, nan, without});
  const StateOnRecord found = on_record();
  EXPECT_EQ(decide::state_to_json(found.state), in_memory());
  const decide::SentinelState& sentinels = found.state.watch.sentinels;
  EXPECT_EQ(sentinels.loss.count, 3);
  EXPECT_EQ(sentinels.cast_saturated.count, 2);
  EXPECT_EQ(sentinels.cast_flushed.count, 1);
  EXPECT_EQ(sentinels.cast_peak.count, 1);
  // They are no part of what a step is.
  said.cast_peak = 64;
  ledger_.write([&](LedgerTransaction& transaction) {
    EXPECT_EQ(report_steps({*runs_, transaction}, run_, {{said}}).repeated, 1);
  });
}

TEST_F(DecisionStateTest, StepsWithoutEffectsAreNotWrittenDownEachAndAreNotForgotten) {
  const int64_t before = saved_seq();
  for (int64_t i = 1; i <= 40; ++i) report({step(i)});
  report({step(41), step(42), step(43)});
  EXPECT_EQ(saved_seq(), before);
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM events WHERE type = 'step_reported'"), 0);
  EXPECT_EQ(number(ledger_, "SELECT max(seq) FROM steps"), before + 43);
  const StateOnRecord found = on_record();
  EXPECT_EQ(found.seq, before + 43);
  EXPECT_EQ(found.uncounted.size(), 43);
  EXPECT_EQ(decide::state_to_json(found.state), in_memory());
  EXPECT_EQ(saved_seq(), before + 43);
  EXPECT_TRUE(on_record().uncounted.empty());
}

TEST_F(DecisionStateTest, AStateIsWrittenDownAfterASecond) {
  report({step(1)});
  clock_ += 1.5;
  const int64_t before = saved_seq();
  report({step(2)});
  EXPECT_GT(saved_seq(), before);
}

TEST_F(DecisionStateTest, StepsThatComeLateKeepTheirPlaceAmongTheEvents) {
  report({step(1), step(2), step(5)});
  report({step(3)});
  report({step(6)});
  report({step(4), step(7)});
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM events WHERE type = 'step_reported'"), 2);
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM steps WHERE seq IS NULL"), 2);
  const StateOnRecord found = on_record();
  EXPECT_EQ(found.uncounted.size(), 7);
  EXPECT_EQ(decide::state_to_json(found.state), in_memory());
}

TEST_F(DecisionStateTest, AnotherProcessGoesOnWhereTheFirstOneWasKilled) {
  for (int64_t i = 1; i <= 9; ++i) report({step(i)});
  runs_ = make_runs();
  report({step(10)});
  EXPECT_EQ(number(ledger_, "SELECT max(seq) FROM steps"), 12);
  const StateOnRecord found = on_record();
  EXPECT_EQ(found.seq, 12);
  EXPECT_EQ(decide::state_to_json(found.state), in_memory());
}

TEST_F(DecisionStateTest, ANewPolicyIsNotAppliedToWhatWasHeardUnderTheOldOne) {
  for (int64_t i = 1; i <= 9; ++i) report({step(i)});
  ledger_.write([&](LedgerTransaction& transaction) {
    set_policy({*runs_, transaction}, run_, "mode = \"enforce\"\n");
  });
  EXPECT_TRUE(on_record().uncounted.empty());
}

TEST_F(DecisionStateTest, WhatANewerCoreWantsOfAnOldEventIsSaid) {
  for (int64_t i = 1; i <= 40; ++i) report({step(i)});
  // As if this step had passed unremarked.
  ledger_.write([&](LedgerTransaction& transaction) {
    transaction.connection().execute("UPDATE steps SET loss = NULL WHERE step = 40");
  });
  int64_t late_seq = 0;
  on_record([&](const std::vector<decide::Effect>& effects, int64_t seq, double time) {
    EXPECT_FALSE(effects.empty());
    EXPECT_NEAR(time, 1e9 + clock_, 1e-3);
    late_seq = seq;
  });
  EXPECT_EQ(late_seq, 42);
  // The supervisor carries it out when it loads the run.
  runs_ = make_runs();
  report({step(41)});
  EXPECT_GT(number(ledger_, "SELECT count(*) FROM decisions"), 0);
}

TEST_F(DecisionStateTest, AnEventThatDoesNotFollowIsAnError) {
  ledger_.write([&](LedgerTransaction& transaction) {
    ledger::insert(transaction.connection(), EventRow{run_, 99, 1e9, "tick", {}, {}, "{}"});
  });
  try {
    on_record();
    FAIL();
  } catch (const RunSetAside& error) {
    EXPECT_THAT(error.what(), HasSubstr("event 99 (tick) follows event 2 on record"));
    EXPECT_EQ(error.problem().status, 503);
  }
}

TEST_F(DecisionStateTest, AnyEventBehindTheStateIsAppliedToIt) {
  report({step(1), step(2)});
  ledger_.write([&](LedgerTransaction& transaction) {
    finish_run({*runs_, transaction}, run_, {"stopped", 2, 3, 1, 0});
  });
  const std::string before = state();
  ledger_.write([&](LedgerTransaction& transaction) {
    report_steps({*runs_, transaction}, run_, {{step(3)}});
    report_checkpoint({*runs_, transaction}, run_, {1, 3, "/c", 1, 1, "", "", 0});
  });
  const std::string after = state();
  EXPECT_NE(after, before);
  const int64_t seq = saved_seq();
  ledger_.write([&](LedgerTransaction& transaction) {
    ledger::save_state(transaction.connection(), run_, {seq - 3, before});
  });
  EXPECT_EQ(number(ledger_,
                   "SELECT count(*) FROM events WHERE seq > (SELECT seq FROM "
                   "decision_state)"),
            2);
  const StateOnRecord found = on_record([](const auto&...) { FAIL(); });
  EXPECT_EQ(found.seq, seq);
  EXPECT_EQ(decide::state_to_json(found.state), after);
  EXPECT_TRUE(found.uncounted.empty()) << "the sums have them";
}

TEST_F(DecisionStateTest, AStateThatCannotBeReadIsRebuiltUnderThePoliciesOfThen) {
  report({step(1), step(2)});
  int64_t next = 3;
  for (const char* policy : {"mode = \"enforce\"\n", "mode = \"observe\"\n"}) {
    ledger_.write([&](LedgerTransaction& transaction) {
      set_policy({*runs_, transaction}, run_, policy);
      override_run({*runs_, transaction}, run_, {"pause", "", "", "mira", "test", 0});
      override_run({*runs_, transaction}, run_, {"resume", "", "", "mira", "test", 0});
    });
    report({step(next), step(next + 1)});
    next += 2;
  }
  const std::string before = in_memory();
  for (const char* sql : {"UPDATE decision_state SET body = '{}'", "DELETE FROM decision_state",
                          "UPDATE decision_state SET seq = seq + 9"}) {
    ledger_.write([&](LedgerTransaction& transaction) { transaction.connection().execute(sql); });
    const StateOnRecord found = on_record();
    EXPECT_NE(found.rebuilt_because, "") << sql;
    EXPECT_EQ(decide::state_to_json(found.state), before) << sql;
  }
  EXPECT_EQ(number(ledger_,
                   "SELECT count(*) FROM audit WHERE what = 'policy_replaced' AND detail "
                   "LIKE 'in force up to event %'"),
            2);
}

// Such a ledger is from before the replaced policy was recorded.
TEST_F(DecisionStateTest, APolicyThatIsNotOnRecordIsGuessedByNobodyButARepair) {
  report({step(1)});
  ledger_.write([&](LedgerTransaction& transaction) {
    ledger::insert_audit(transaction.connection(), 1e9 + clock_ + 1, run_, "policy_changed", "");
    transaction.connection().execute("DELETE FROM decision_state");
  });
  EXPECT_THROW(on_record(), RunSetAside);
  ledger_.read([&](Connection& connection) {
    const decide::Policy policy = decide::Policy::parse("", "policy");
    EXPECT_THROW(rebuilt_state(connection, run_, policy), RunSetAside);
    EXPECT_EQ(rebuilt_state(connection, run_, policy, UnknownPolicies::kGuessed).seq, 3);
  });
}

TEST_F(DecisionStateTest, EffectsOfAnOldEventAreCarriedOutOnce) {
  for (int64_t i = 1; i <= 40; ++i) report({step(i)});
  ledger_.write([&](LedgerTransaction& transaction) {
    transaction.connection().execute("UPDATE steps SET loss = NULL WHERE step = 40");
  });
  for (int again = 0; again < 3; ++again) {
    runs_ = make_runs();
    ledger_.write([&](LedgerTransaction& transaction) { runs_->load(transaction, run_); });
  }
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM decisions"), 1);
}

}  // namespace
}  // namespace gnomon

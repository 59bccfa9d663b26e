// Time that passes while nobody reports: directives that are never answered.
#include <gmock/gmock.h>

#include "controller/auth/http_error.h"
#include "controller/supervisor/attempts.h"
#include "controller/supervisor/directives.h"
#include "controller/supervisor/overrides.h"
#include "controller/supervisor/registration.h"
#include "controller/supervisor/reports.h"
#include "controller/supervisor/run_cache.h"
#include "protocol/json.h"
#include "storage/ledger_decisions.h"
#include "tests/controller/registration.h"
#include "tests/storage/ledger_fixture.h"
#include "tests/support/words.h"

namespace gnomon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class TickTest : public LedgerTest {
 protected:
  TickTest() : ledger_(options()) {
    make_runs();
    ledger_.write([&](LedgerTransaction& transaction) {
      run_ = parse_run_id(register_run({*runs_, transaction}, small_registration()).run);
      start_attempt({*runs_, transaction}, run_, {1, 0, "start", 1, 0, {}});
    });
    train(1);
  }
  // As after a restart: nothing but the ledger is left.
  void make_runs() {
    metrics_ = std::make_unique<Metrics>();
    runs_ = std::make_unique<RunCache>(
        *metrics_, queue_, notifiers_,
        RunCacheOptions{"[directives]\ntimeout_seconds = 100.0\n", 3600},
        [this] { return 1e9 + clock_; }, [this] { return clock_; });
    ledger_.read([&](Connection& connection) { runs_->restore(connection); });
  }
  void train(int64_t number) {
    StepReport step;
    step.step = number;
    step.plan_version = 1;
    step.loss = 2.0;
    ledger_.write([&](LedgerTransaction& transaction) {
      report_steps({*runs_, transaction}, run_, {{step}});
    });
  }
  // What the daemon's timer does once a second.
  void look() {
    for (int64_t run : runs_->deadlines().due(runs_->now())) {
      ledger_.write([&](LedgerTransaction& transaction) { runs_->tick(transaction, run); });
    }
  }
  void pause() {
    ledger_.write([&](LedgerTransaction& transaction) {
      override_run({*runs_, transaction}, run_, {"pause", "", "", "ann", "to look", 0});
    });
  }
  // The trainer trains on and does not listen until the directive's time is over.
  void pause_unheard() {
    pause();
    train(2);
    clock_ = 101;
    look();
  }
  Directive directive() {
    std::optional<Directive> found;
    ledger_.read(
        [&](Connection& connection) { found = ledger::find_directive(connection, run_, 1); });
    return found.value();
  }
  Directive ack(const std::string& state) {
    Directive answer;
    ledger_.write([&](LedgerTransaction& transaction) {
      answer = acknowledge_directive({*runs_, transaction}, run_, 1,
                                     {test::any_word(state), 1, 1, "late", 0});
    });
    return answer;
  }
  size_t delivered() {
    size_t count = 0;
    ledger_.write([&](LedgerTransaction& transaction) {
      count = deliver_directives({*runs_, transaction}, run_, 0).directives.size();
    });
    return count;
  }
  int64_t ticks() { return number(ledger_, "SELECT count(*) FROM events WHERE type = 'tick'"); }

  Ledger ledger_;
  ReplayQueue queue_;
  ChangeNotifiers notifiers_;
  double clock_ = 0;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<RunCache> runs_;
  int64_t run_ = 0;
};

TEST_F(TickTest, ADirectiveThatIsNeverAnsweredExpiresAndIsNotDeliveredAnyMore) {
  pause();
  EXPECT_EQ(delivered(), 1u);
  train(2);
  clock_ = 99;
  look();
  EXPECT_EQ(directive().state, "delivered");
  EXPECT_EQ(ticks(), 0);
  clock_ = 101;
  look();
  EXPECT_EQ(directive().state, "expired");
  EXPECT_EQ(ticks(), 1);
  EXPECT_EQ(delivered(), 0u);
  EXPECT_EQ(number(ledger_,
                   "SELECT count(*) FROM directives WHERE ended_at = 1000000101.0 AND "
                   "reject_reason <> ''"),
            1);
  EXPECT_EQ(number(ledger_,
                   "SELECT count(*) FROM stream WHERE type = 'directive' AND body ->> "
                   "'$.state' = 'expired'"),
            1);
}

TEST_F(TickTest, WithoutADeadlineTimeLeavesNoRows) {
  int64_t rows = number(ledger_, "SELECT count(*) FROM events");
  for (int second = 0; second < 1000; ++second) {
    clock_ += 1;
    look();
  }
  EXPECT_THAT(runs_->deadlines().due(runs_->now()), IsEmpty());
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM events"), rows);
}

TEST_F(TickTest, ADirectiveToASilentTrainerStaysReadyAndIsSpokenOfOnce) {
  pause();
  for (clock_ = 50; clock_ < 1000; clock_ += 1) {
    look();
  }
  EXPECT_EQ(delivered(), 1u);
  EXPECT_LE(ticks(), 10) << "one for each time-out, not one for each look";
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM decisions WHERE kind = 'directive'"), 1);
}

TEST_F(TickTest, AfterItsDeadlineARunIsNotDueAgain) {
  pause_unheard();
  EXPECT_THAT(runs_->deadlines().due(runs_->now()), IsEmpty());
  int64_t before = ticks();
  clock_ = 100'000;
  look();
  EXPECT_EQ(ticks(), before);
}

TEST_F(TickTest, DeadlinesOutliveTheDaemon) {
  pause();
  train(2);
  make_runs();
  clock_ = 101;
  EXPECT_THAT(runs_->deadlines().due(runs_->now()), ElementsAre(run_));
  look();
  EXPECT_EQ(directive().state, "expired");
}

TEST_F(TickTest, ADirectiveThatIsAnsweredInTimeDoesNotExpire) {
  pause();
  ack("applied");
  train(2);
  clock_ = 101;
  look();
  EXPECT_EQ(directive().state, "applied");
}

TEST_F(TickTest, ALateApplicationIsBelievedAndOnRecord) {
  pause_unheard();
  EXPECT_EQ(ack("acknowledged").state, "expired") << "it is told not to carry it out";
  EXPECT_EQ(ack("applied").state, "applied");
  EXPECT_EQ(directive().state, "applied");
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM audit WHERE what = 'late_ack'"), 1);
  EXPECT_EQ(number(ledger_,
                   "SELECT count(*) FROM events WHERE type = 'directive_changed' AND "
                   "body ->> '$.state' = 'applied'"),
            1);
  EXPECT_EQ(ack("applied").state, "applied") << "a repeat";
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM audit WHERE what = 'late_ack'"), 1);
  EXPECT_THROW(ack("rejected"), HttpError);
}

TEST_F(TickTest, ALateRejectionIsOnRecord) {
  pause_unheard();
  EXPECT_EQ(ack("rejected").state, "rejected");
  EXPECT_EQ(directive().state, "rejected");
}

TEST_F(TickTest, AnOverrideEndsWithoutAnyReport) {
  ledger_.write([&](LedgerTransaction& transaction) {
    override_run({*runs_, transaction}, run_, {"silence", "", "", "ann", "a test", 50});
  });
  clock_ = 49;
  look();
  EXPECT_EQ(ticks(), 0);
  clock_ = 51;
  look();
  EXPECT_EQ(ticks(), 1);
}

}  // namespace
}  // namespace gnomon

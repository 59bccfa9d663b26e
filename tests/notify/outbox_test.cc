// A message is in the ledger exactly when what it tells of is.
#include "controller/notify/outbox.h"

#include <gmock/gmock.h>

#include "controller/auth/http_error.h"
#include "controller/supervisor/attempts.h"
#include "controller/supervisor/directives.h"
#include "controller/supervisor/ending.h"
#include "controller/supervisor/notices.h"
#include "controller/supervisor/overrides.h"
#include "controller/supervisor/registration.h"
#include "controller/supervisor/reports.h"
#include "controller/supervisor/run_cache.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_outbox.h"
#include "tests/controller/registration.h"
#include "tests/storage/ledger_fixture.h"
#include "tests/support/words.h"

namespace gnomon::notify {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OutboxTest : public LedgerTest {
 protected:
  OutboxTest() : ledger_(options()) { make_runs(); }
  // As after a restart: nothing but the ledger is left.
  void make_runs(int64_t waiting_max = kWaitingMax) {
    metrics_ = std::make_unique<Metrics>();
    outbox_ = std::make_unique<Outbox>(*metrics_, waiting_max);
    runs_ = std::make_unique<RunCache>(
        *metrics_, queue_, notifiers_,
        RunCacheOptions{"[directives]\ntimeout_seconds = 100.0\n", 3600, {}, outbox_.get()},
        [this] { return 1e9 + clock_; }, [this] { return clock_; });
  }
  static Receiver receiver(const std::string& name) {
    Receiver made;
    made.name = name;
    made.url = "http://127.0.0.1:1/";
    return made;
  }
  void set_receivers(const std::vector<Receiver>& receivers) {
    ledger_.write([&](LedgerTransaction& transaction) {
      outbox_->set_receivers(transaction, receivers, 1e9 + clock_);
    });
  }
  void begin() {
    ledger_.write([&](LedgerTransaction& transaction) {
      run_ = parse_run_id(register_run({*runs_, transaction}, small_registration()).run);
      start_attempt({*runs_, transaction}, run_, {1, 0, "start", 1, 0, {}});
    });
  }
  void notice(LedgerTransaction& transaction, double time) {
    TrainerNotice notice;
    notice.kind = "checkpoint_failed";
    notice.attempt = 1;
    notice.text = "no space";
    notice.time = time;
    report_notice({*runs_, transaction}, run_, notice);
  }
  void write_notice(double time) {
    ledger_.write([&](LedgerTransaction& transaction) { notice(transaction, time); });
  }
  void override_run(const std::string& kind) {
    ledger_.write([&](LedgerTransaction& transaction) {
      gnomon::override_run({*runs_, transaction}, run_,
                           {test::any_word(kind), "", "", "ann", "to look", 0});
    });
  }
  void acknowledge(int64_t number) {
    ledger_.write([&](LedgerTransaction& transaction) {
      acknowledge_directive({*runs_, transaction}, run_, number, {"applied", 1, 0, ""});
    });
  }
  // "receiver kind", and "-" behind what has ended, in order.
  std::vector<std::string> messages() {
    std::vector<std::string> lines;
    ledger_.read([&](Connection& connection) {
      Query rows = connection.query("SELECT receiver, kind, alert FROM outbox ORDER BY id");
      while (rows.next()) {
        const bool ended = alert_from_json(rows.text(2)).resolved();
        lines.push_back(rows.text(0) + " " + rows.text(1) + (ended ? " -" : ""));
      }
    });
    return lines;
  }

  Ledger ledger_;
  ReplayQueue queue_;
  ChangeNotifiers notifiers_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Outbox> outbox_;
  std::unique_ptr<RunCache> runs_;
  double clock_ = 0;
  int64_t run_ = 0;
};

TEST_F(OutboxTest, WithoutReceiversNothingIsWritten) {
  begin();
  write_notice(1);
  override_run("pause");
  acknowledge(1);
  EXPECT_THAT(messages(), IsEmpty());
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM conditions"), 0);
}

TEST_F(OutboxTest, EachReceiverIsToldWhatItWantsInOrder) {
  Receiver few = receiver("few");
  few.kinds = {"checkpoint_failed"};
  set_receivers({receiver("all"), few});
  begin();
  write_notice(1);
  write_notice(1);  // the very same one
  write_notice(2);
  EXPECT_THAT(messages(),
              ElementsAre("all attempt", "all checkpoint_failed", "few checkpoint_failed",
                          "all checkpoint_failed", "few checkpoint_failed"));
  EXPECT_EQ(number(ledger_, "SELECT count(DISTINCT delivery) FROM outbox"), 5);
}

TEST_F(OutboxTest, AWriteThatIsUndoneLeavesNoMessage) {
  set_receivers({receiver("a")});
  begin();
  ASSERT_EQ(number(ledger_, "SELECT count(*) FROM outbox"), 1);
  int woken = 0;
  outbox_->on_message([&] { ++woken; });
  EXPECT_THROW(ledger_.write([&](LedgerTransaction& transaction) {
    notice(transaction, 1);
    gnomon::override_run({*runs_, transaction}, run_, {"pause", "", "", "ann", "to look", 0});
    acknowledge_directive({*runs_, transaction}, run_, 1, {"applied", 1, 0, ""});
    throw Error("undone");
  }),
               Error);
  EXPECT_EQ(woken, 0);
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM outbox"), 1);
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM conditions"), 0);
  // The very same again: what was undone is forgotten in memory too.
  override_run("pause");
  acknowledge(1);
  EXPECT_THAT(messages(), ElementsAre("a attempt", "a override", "a paused"));
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM conditions"), 1);
  // Nor is an end that was undone followed by a second beginning.
  EXPECT_THROW(ledger_.write([&](LedgerTransaction& transaction) {
    RunFinished finished;
    finished.outcome = "stopped";
    finish_run({*runs_, transaction}, run_, finished);
    throw Error("undone");
  }),
               Error);
  override_run("checkpoint_now");
  EXPECT_THAT(messages(), ElementsAre("a attempt", "a override", "a paused", "a override"));
}

TEST_F(OutboxTest, WhatBeginsEndsUnderTheSameLabelsAlsoAfterARestart) {
  set_receivers({receiver("a")});
  begin();
  override_run("pause");
  acknowledge(1);
  make_runs();
  set_receivers({receiver("a")});
  clock_ = 60;
  override_run("resume");
  acknowledge(2);
  ledger_.write([&](LedgerTransaction& transaction) {
    report_steps({*runs_, transaction}, run_, {{[] {
                   StepReport step;
                   step.step = 1;
                   step.plan_version = 1;
                   step.loss = 2;
                   return step;
                 }()}});
  });
  EXPECT_THAT(messages(),
              ElementsAre("a attempt", "a override", "a paused", "a override", "a paused -"));
  std::vector<Alert> alerts;
  ledger_.read([&](Connection& connection) {
    Query rows = connection.query("SELECT alert FROM outbox WHERE kind = 'paused' ORDER BY id");
    while (rows.next()) alerts.push_back(alert_from_json(rows.text(0)));
  });
  ASSERT_EQ(alerts.size(), 2u);
  EXPECT_EQ(alerts[0].labels, alerts[1].labels);
  EXPECT_EQ(alerts[0].starts_at, alerts[1].starts_at);
  EXPECT_EQ(alerts[1].ends_at, 1e9 + 60);
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM conditions"), 0);
}

TEST_F(OutboxTest, TheEndOfTheRunEndsWhatLastsAndIsToldLast) {
  set_receivers({receiver("a")});
  begin();
  override_run("pause");
  acknowledge(1);
  ledger_.write([&](LedgerTransaction& transaction) {
    RunFinished finished;
    finished.outcome = "failed";
    finished.step = 7;
    finish_run({*runs_, transaction}, run_, finished);
  });
  EXPECT_THAT(messages(),
              ElementsAre("a attempt", "a override", "a paused", "a paused -", "a ended"));
}

TEST_F(OutboxTest, WhenNobodyWasToldWhatLastsIsToldWithTheNextReport) {
  begin();
  override_run("pause");
  acknowledge(1);
  set_receivers({receiver("a")});
  EXPECT_THAT(messages(), IsEmpty()) << "nobody has kept what lasts";
  write_notice(1);
  override_run("checkpoint_now");
  EXPECT_THAT(messages(), ElementsAre("a checkpoint_failed", "a override", "a paused"));
}

TEST_F(OutboxTest, WhoIsAddedHearsOnceOfWhatLastsAndThenOfItsEnd) {
  set_receivers({receiver("a")});
  begin();
  override_run("pause");
  acknowledge(1);
  Receiver deaf = receiver("deaf");
  deaf.kinds = {"attempt"};
  clock_ = 60;
  set_receivers({receiver("a"), receiver("b"), deaf});
  const auto sent_lines = [&] {
    std::vector<std::string> lines;
    for (const std::string& line : messages()) {
      if (!line.starts_with("a ")) lines.push_back(line);
    }
    return lines;
  };
  EXPECT_THAT(sent_lines(), ElementsAre("b paused"));
  EXPECT_EQ(number(ledger_,
                   "SELECT count(DISTINCT json_extract(alert, '$.starts_at')) FROM outbox "
                   "WHERE kind = 'paused'"),
            1)
      << "it began when it began";
  set_receivers({receiver("a"), receiver("b"), deaf});
  make_runs();
  set_receivers({receiver("a"), receiver("b"), deaf});
  EXPECT_THAT(sent_lines(), ElementsAre("b paused")) << "once, also after a restart";
  deaf.kinds = {"paused"};
  set_receivers({receiver("a"), deaf, receiver("b")});
  EXPECT_THAT(sent_lines(), ElementsAre("b paused", "deaf paused"))
      << "who wants more hears it too";
  set_receivers({receiver("a"), deaf});
  set_receivers({receiver("a"), receiver("b"), deaf});
  EXPECT_THAT(sent_lines(), ElementsAre("deaf paused", "b paused"))
      << "who was removed is another one";
  ledger_.write([&](LedgerTransaction& transaction) {
    RunFinished finished;
    finished.outcome = "stopped";
    finish_run({*runs_, transaction}, run_, finished);
  });
  EXPECT_THAT(sent_lines(),
              ElementsAre("deaf paused", "b paused", "b paused -", "deaf paused -", "b ended"));
}

TEST_F(OutboxTest, WhoWantsLessByNowStillHearsTheEndOfWhatItWasTold) {
  Receiver narrowed = receiver("a");
  set_receivers({narrowed});
  begin();
  override_run("pause");
  acknowledge(1);
  narrowed.kinds = {"ended"};
  set_receivers({narrowed});
  override_run("resume");
  acknowledge(2);
  narrowed.kinds = {"*"};
  set_receivers({narrowed});
  override_run("pause");
  acknowledge(3);
  std::vector<std::string> sent_lines = messages();
  std::erase_if(sent_lines, [](const std::string& line) { return line == "a override"; });
  EXPECT_THAT(sent_lines, ElementsAre("a attempt", "a paused", "a paused -", "a paused"));
}

TEST_F(OutboxTest, WhoIsAddedInAWriteThatIsUndoneIsNotToldYet) {
  set_receivers({receiver("a")});
  begin();
  override_run("pause");
  acknowledge(1);
  EXPECT_THROW(ledger_.write([&](LedgerTransaction& transaction) {
    outbox_->set_receivers(transaction, {receiver("a"), receiver("b")}, 1e9);
    throw Error("undone");
  }),
               Error);
  write_notice(1);
  EXPECT_THAT(messages(),
              ElementsAre("a attempt", "a override", "a paused", "a checkpoint_failed"));
  set_receivers({receiver("a"), receiver("b")});
  EXPECT_THAT(messages(), ::testing::Contains("b paused"));
}

TEST_F(OutboxTest, WhoIsRemovedLosesWhatWaitsAndTheAuditSaysSo) {
  set_receivers({receiver("a"), receiver("b")});
  begin();
  set_receivers({receiver("b")});
  EXPECT_THAT(messages(), ElementsAre("b attempt"));
  EXPECT_EQ(number(ledger_,
                   "SELECT count(*) FROM audit WHERE what = 'notifications_dropped' AND "
                   "detail LIKE '1 of a,%'"),
            1);
  override_run("pause");
  acknowledge(1);
  ASSERT_EQ(number(ledger_, "SELECT count(*) FROM conditions"), 1);
  set_receivers({});
  EXPECT_THAT(messages(), IsEmpty());
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM conditions"), 0);
}

TEST_F(OutboxTest, BeyondTheBoundTheOldestGoWithOneRowOfTheAuditForMany) {
  make_runs(250);
  set_receivers({receiver("a")});
  begin();
  ledger_.write([&](LedgerTransaction& transaction) {
    for (int i = 1; i <= 300; ++i) notice(transaction, i);
  });
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM outbox"), 200) << "101 went when 251 waited";
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM audit WHERE what = 'notifications_dropped'"), 1);
  EXPECT_EQ(number(ledger_, "SELECT min(id) FROM outbox"), 102);
  EXPECT_THAT(metrics_->serialize(0),
              HasSubstr("gnomon_notifications_total{outcome=\"dropped\",receiver=\"a\"} 101"));
}

TEST_F(OutboxTest, WhatTheDaemonNoticesItselfIsToldToo) {
  begin();
  set_receivers({receiver("all")});
  ledger_.write([&](LedgerTransaction& transaction) {
    add_own_notice({*runs_, transaction}, run_, "no_verifier_fits", "1 replay waits");
    add_own_notice({*runs_, transaction}, run_, "ecc_errors", "3 errors");
  });
  EXPECT_THAT(messages(), ElementsAre("all no_verifier_fits", "all ecc_errors"));
}

}  // namespace
}  // namespace gnomon::notify

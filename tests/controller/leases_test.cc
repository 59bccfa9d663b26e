// Leases: heartbeats, tokens, ends, restarts.
#include "tests/controller/leases_fixture.h"

namespace gnomon {
namespace {

TEST_F(LeasesTest, AnEmptyQueueGrantsNothing) { EXPECT_FALSE(grant().has_value()); }

TEST_F(LeasesTest, ALeaseSaysWhatToReplay) {
  order(1);
  Lease lease = grant().value();
  EXPECT_EQ(lease.token, 1);
  EXPECT_EQ(lease.ttl_seconds, 10.0);
  EXPECT_EQ(lease.task.run, run_name(run_));
  EXPECT_EQ(lease.task.checkpoint_uri, "start");
  EXPECT_EQ(lease.task.end_checkpoint_uri, "end");
  EXPECT_EQ(lease.task.start_step, 10);
  EXPECT_EQ(lease.task.steps, 5);
  EXPECT_TRUE(lease.task.evaluate_endpoints);
  EXPECT_FALSE(grant().has_value()) << "one replay was leased twice";
}

TEST_F(LeasesTest, HeartbeatsKeepALeaseForAsLongAsTheyCome) {
  order(1);
  Lease lease = grant().value();
  for (int i = 0; i < 10; ++i) {
    clock_ += 9;
    heartbeat(lease);
    expire();
  }
  EXPECT_EQ(replay_state(1), "leased");
}

TEST_F(LeasesTest, ASilentLeaseGoesBackToTheQueueAndItsTokenIsStale) {
  order(1);
  Lease lost = grant("v:1").value();
  clock_ += 9.9;
  expire();
  EXPECT_EQ(replay_state(1), "leased");
  clock_ += 0.2;
  expire();
  EXPECT_EQ(replay_state(1), "queued");
  Lease next = grant("v:2").value();
  EXPECT_EQ(next.task.replay, 1);
  EXPECT_GT(next.token, lost.token);
  EXPECT_EQ(status_of([&] { heartbeat(lost); }), 409);
  EXPECT_EQ(status_of([&] { complete(lost.lease, lost.token); }), 409);
  EXPECT_EQ(status_of([&] { complete(next.lease, lost.token); }), 409);
  EXPECT_EQ(status_of([&] { fail(lost, true); }), 409);
  EXPECT_EQ(replay_state(1), "leased");
  EXPECT_EQ(status_of([&] { complete(next.lease, next.token); }), 200);
  EXPECT_EQ(replay_state(1), "done");
}

TEST_F(LeasesTest, AHeartbeatThatCameBeforeTheExpiryIsLookedAtAgainWins) {
  order(1);
  Lease lease = grant().value();
  clock_ += 11;
  std::vector<int64_t> overdue = leases_->held().overdue();
  ASSERT_EQ(overdue.size(), 1u);
  heartbeat(lease);
  write([&](LedgerTransaction& transaction) { leases_->expire(transaction, overdue[0]); });
  EXPECT_EQ(replay_state(1), "leased");
}

TEST_F(LeasesTest, ALeaseDoesNotRunOutWhileARequestAboutItWaits) {
  order(1);
  const Lease lease = grant().value();
  {
    const HeldLeases::Arrival waits(leases_->held(), lease.lease, lease.token, nullptr);
    EXPECT_FALSE(waits.another_waits());
    clock_ += 1000;
    EXPECT_TRUE(leases_->held().overdue().empty());
    write([&](LedgerTransaction& transaction) { leases_->expire(transaction, lease.lease); });
    EXPECT_EQ(replay_state(1), "leased");
    const HeldLeases::Arrival second(leases_->held(), lease.lease, lease.token, nullptr);
    EXPECT_TRUE(second.another_waits());
  }
  clock_ += 9;
  EXPECT_TRUE(leases_->held().overdue().empty()) << "its time begins anew with the answer";
  clock_ += 2;
  EXPECT_EQ(leases_->held().overdue().size(), 1u);
  // Another token prolongs nothing.
  const HeldLeases::Arrival foreign(leases_->held(), lease.lease, lease.token + 1, nullptr);
  EXPECT_EQ(leases_->held().overdue().size(), 1u);
}

TEST_F(LeasesTest, AReplayIsGivenUpAfterThePolicysNumberOfLeases) {
  order(1);
  for (int i = 0; i < 2; ++i) {
    grant().value();
    clock_ += 11;
    expire();
  }
  EXPECT_EQ(replay_state(1), "failed");
  EXPECT_FALSE(grant().has_value());
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM events WHERE type = 'replay_failed'"), 1);
}

TEST_F(LeasesTest, AFailureIsTriedAgainOnlyWhenTheVerifierSaysItMayHelp) {
  order(1);
  order(2);
  fail(grant().value(), true);
  EXPECT_EQ(replay_state(1), "queued");
  Lease again = grant().value();
  fail(again, false);
  EXPECT_EQ(replay_state(1), "failed");
  EXPECT_EQ(replay_state(2), "queued");
}

// A verifier that measures no loss at the end would blind the run, though others could.
TEST_F(LeasesTest, AnAnswerThatLeavesOutWhatWasAskedGoesToAnother) {
  order(1);
  grant("w:1");  // who speaks
  order(2);
  Lease lease = grant("v:1").value();
  complete(lease.lease, lease.token);
  EXPECT_EQ(replay_state(lease.task.replay), "queued");
  EXPECT_EQ(status_of([&] { complete(lease.lease, lease.token); }), 200) << "said twice";
  EXPECT_FALSE(grant("v:1").has_value()) << "it has failed that";
  Lease other = grant("w:1").value();
  EXPECT_EQ(other.task.replay, lease.task.replay);
  complete(other.lease, other.token);
  EXPECT_EQ(replay_state(lease.task.replay), "done") << "nobody measures it: the core is told so";
}

TEST_F(LeasesTest, AResultRepeatedByTheSameLeaseIsTakenOnce) {
  order(1);
  Lease lease = grant().value();
  complete(lease.lease, lease.token);
  EXPECT_EQ(status_of([&] { complete(lease.lease, lease.token); }), 200);
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM results"), 1);
  EXPECT_EQ(number(ledger_, "SELECT count(*) FROM events WHERE type = 'replay_finished'"), 1);
}

TEST_F(LeasesTest, AnUnknownLeaseIs404) {
  EXPECT_EQ(status_of([&] { complete(77, 1); }), 404);
}

TEST_F(LeasesTest, AClosedWindowsLeaseIsNotQueuedAgain) {
  order(1);
  Lease lease = grant().value();
  write([&](LedgerTransaction& transaction) {
    ledger::close_window(transaction.connection(), run_, 1, "skipped", {}, 0);
  });
  fail(lease, true);
  EXPECT_EQ(replay_state(1), "cancelled");
}

TEST_F(LeasesTest, AfterARestartALiveLeaseHasAFreshTimeAndStillItsToken) {
  order(1);
  Lease lease = grant().value();
  clock_ = 5;  // another boot, another steady clock
  make_controller();
  clock_ += 9;
  expire();
  EXPECT_EQ(replay_state(1), "leased");
  heartbeat(lease);
  clock_ += 9;
  expire();
  EXPECT_EQ(status_of([&] { complete(lease.lease, lease.token); }), 200);
}

TEST_F(LeasesTest, AfterARestartALeaseWhoseVerifierDiedMeanwhileExpires) {
  order(1);
  grant().value();
  make_controller();
  clock_ += 11;
  expire();
  EXPECT_EQ(replay_state(1), "queued");
}

TEST_F(LeasesTest, TheOldestOfEqualPriorityGoesFirstWhicheverRunItIsOf) {
  const int64_t other = add_run("2");
  write([&](LedgerTransaction& transaction) {
    order(transaction, run_, 1, 0, 20);
    order(transaction, other, 1, 0, 10);
  });
  EXPECT_EQ(grant().value().task.checkpoint_uri, "other");
}

TEST_F(LeasesTest, ATrainerDoesItsOwnRunsReplaysWhileThereAreNoVerifiers) {
  verify_inline();
  order(1);
  EXPECT_FALSE(grant_trainer(run_name(run_ + 1)).has_value()) << "another run's";
  EXPECT_EQ(grant_trainer(run_name(run_)).value().task.replay, 1);
}

TEST_F(LeasesTest, WhileThereAreVerifiersATrainerLeavesReplaysToThem) {
  verify_inline();
  EXPECT_FALSE(grant("v:1").has_value());  // has asked, so it is there
  order(1);
  EXPECT_FALSE(grant_trainer(run_name(run_)).has_value());
  clock_ += 3600;  // it has not been heard of since
  EXPECT_EQ(grant_trainer(run_name(run_)).value().task.replay, 1);
}

TEST_F(LeasesTest, VerifiersGetNoReplayThatOnlyTheTrainerCanDo) {
  EXPECT_FALSE(grant("v:1").has_value());
  write([&](LedgerTransaction& transaction) { order(transaction, run_, 1, 0, 0, true); });
  EXPECT_FALSE(grant("v:1").has_value());
  EXPECT_EQ(grant_trainer(run_name(run_)).value().task.replay, 1) << "though there is a verifier";
}

TEST_F(LeasesTest, ANameSaysWhetherItIsATrainer) {
  order(1);
  EXPECT_EQ(status_of([&] { grant(LeaseRequest{"trainer:host:7", {}}); }), 400);
  EXPECT_EQ(status_of([&] { grant(LeaseRequest{"v:1", {}, run_name(run_), true}); }), 400);
  EXPECT_EQ(replay_state(1), "queued");
}

TEST_F(LeasesTest, AQuarantinedVerifierGetsNothingMoreOfTheRun) {
  order(1);
  write([&](LedgerTransaction& transaction) {
    ledger::insert_quarantine(transaction.connection(), run_, "v:1", "computes wrongly", 0);
  });
  EXPECT_FALSE(grant("v:1").has_value());
  EXPECT_TRUE(grant("v:2").has_value());
}

TEST_F(LeasesTest, AQuarantinedVerifierDoesNotBlockOthers) {
  verify_inline();
  EXPECT_FALSE(grant("broken").has_value());  // has asked, so it is there
  order(1);
  order(2);
  EXPECT_FALSE(grant_trainer(run_name(run_)).has_value()) << "there is a verifier";
  quarantine("broken");
  EXPECT_TRUE(grant_trainer(run_name(run_)).has_value());
  fail(grant("v:2").value(), true);
  EXPECT_FALSE(grant("v:2").has_value()) << "the trainer asks, too";
  clock_ += 3600;
  EXPECT_EQ(grant("v:2").value().task.replay, 2) << "nobody else may try again";
}

// A verifier that cannot read the checkpoints may not use up the tries of what the trainer could
// do.
TEST_F(LeasesTest, WhatTheOnlyVerifierHasFailedTheTrainerDoes) {
  verify_inline();
  EXPECT_FALSE(grant("broken").has_value());  // has asked, so it is there
  order(1);
  EXPECT_FALSE(grant_trainer(run_name(run_)).has_value()) << "there is a verifier";
  fail(grant("broken").value(), true);
  EXPECT_FALSE(grant("broken").has_value());
  EXPECT_EQ(grant_trainer(run_name(run_)).value().task.replay, 1);
}

TEST_F(LeasesTest, ATrainerThatOnlyConfirmsDoesNothingThatAVerifierCould) {
  const int64_t run = add_run("confirms");
  write([&](LedgerTransaction& transaction) { order(transaction, run, 1); });
  EXPECT_FALSE(grant_trainer(run_name(run)).has_value()) << "though there is no verifier";
  write([&](LedgerTransaction& transaction) { order(transaction, run, 2, 0, 0, true); });
  EXPECT_EQ(grant_trainer(run_name(run)).value().task.replay, 2);
}

// Its answer is not believed whenever it comes, and nobody waits until its lease runs out.
TEST_F(LeasesTest, AQuarantinedVerifiersReplayGoesToAnother) {
  EXPECT_FALSE(grant("sound").has_value());  // has asked, so it is there
  order(1);
  const Lease lease = grant("broken").value();
  const Lease other = grant_of_another_run("broken");
  quarantine("broken");
  EXPECT_EQ(status_of([&] { complete(lease.lease, lease.token); }), 409);
  EXPECT_EQ(status_of([&] { heartbeat(lease); }), 409);
  EXPECT_EQ(status_of([&] { fail(lease, true); }), 409);
  expire();
  EXPECT_EQ(replay_state(1), "queued");
  const Lease again = grant("sound").value();
  EXPECT_EQ(again.task.replay, 1);
  EXPECT_EQ(status_of([&] { complete(again.lease, again.token); }), 200);
  EXPECT_EQ(status_of([&] { heartbeat(other); }), 200) << "the other run believes it";
}

TEST_F(LeasesTest, AQuarantineOutlivesARestart) {
  verify_inline();
  quarantine("broken");
  order(1);
  make_controller();
  EXPECT_FALSE(grant("broken").has_value());
  EXPECT_TRUE(grant_trainer(run_name(run_)).has_value());
}

TEST_F(LeasesTest, AReplayIsDoneThoughOneVerifierAvoidsItAndTheOtherFailedIt) {
  EXPECT_FALSE(grant("first").has_value());
  EXPECT_FALSE(grant("second").has_value());
  write([&](LedgerTransaction& transaction) {
    decide::OrderReplay effect{1, 1, "plan", "", "probe", true};
    effect.avoid = "first";
    apply_effect({transaction, *metrics_, *queue_, *notifiers_, run_, 1, 0}, effect);
  });
  EXPECT_FALSE(grant("first").has_value()) << "there is another one";
  fail(grant("second").value(), true);
  EXPECT_TRUE(grant("first").has_value()) << "there is no better one";
}

TEST_F(LeasesTest, AReplayThatAVerifierFailedIsLeftToTheOthers) {
  EXPECT_FALSE(grant("sound").has_value());  // has asked, so it is there
  order(1);
  order(2);
  fail(grant("broken").value(), true);
  EXPECT_EQ(grant("broken").value().task.replay, 2) << "it may still do others";
  EXPECT_FALSE(grant("broken").has_value());
  EXPECT_EQ(replay_state(1), "queued") << "one broken verifier must not use up a replay's leases";
  EXPECT_EQ(grant("sound").value().task.replay, 1);
}

TEST_F(LeasesTest, AfterARestartAReplayIsStillLeftToVerifiersOfBefore) {
  order(1);
  const Lease done = grant("sound").value();
  complete(done.lease, done.token);
  order(2);
  fail(grant("broken").value(), true);
  make_controller();
  EXPECT_FALSE(grant("broken").has_value()) << "the other one may be about to ask";
  clock_ += 61;
  EXPECT_EQ(grant("broken").value().task.replay, 2);
}

TEST_F(LeasesTest, AReplayThatAllVerifiersFailedIsTriedUntilItsLeasesAreUsedUp) {
  EXPECT_FALSE(grant("second").has_value());
  order(1);
  fail(grant("first").value(), true);
  fail(grant("second").value(), true);
  EXPECT_EQ(replay_state(1), "failed");
}

TEST_F(LeasesTest, TheLastActiveVerifierRetriesItsFailedReplay) {
  EXPECT_FALSE(grant("gone").has_value());
  order(1);
  fail(grant("left").value(), true);
  EXPECT_FALSE(grant("left").has_value());
  clock_ += 61;
  EXPECT_EQ(grant("left").value().task.replay, 1);
}

TEST_F(LeasesTest, AResultOfAnotherWindowIsRejectedAndTheLeaseStays) {
  order(1);  // steps 11–15
  const Lease lease = grant().value();
  const auto status = [&](const std::vector<int64_t>& steps) {
    ReplayResult result;
    result.token = lease.token;
    for (int64_t step : steps) result.steps.push_back({step, 1.0, 1.0, "hash"});
    return status_of([&] {
      write([&](LedgerTransaction& transaction) {
        leases_->complete(transaction, lease.lease, result);
      });
    });
  };
  EXPECT_EQ(status({11, 11}), 400);
  EXPECT_EQ(status({12}), 400);
  EXPECT_EQ(status({11, 12, 13, 14, 15, 16}), 400);
  EXPECT_EQ(replay_state(1), "leased");
  EXPECT_EQ(status({11, 12, 13}), 200) << "shorter: it turned non-finite";
}

}  // namespace
}  // namespace gnomon

// Leases against a clock that the test moves.
#include "controller/leases.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <future>

#include "controller/effects.h"
#include "controller/refusal.h"
#include "storage/ledger_runs.h"
#include "tests/controller/registration.h"
#include "tests/storage/ledger_fixture.h"

namespace gnomon {
namespace {

class LeasesTest : public LedgerTest {
 protected:
  LeasesTest() : ledger_(options()) {
    make_controller();
    write([&](LedgerTransaction& transaction) {
      run_ = parse_run_id(supervisor_->register_run(transaction, small_registration()).run);
      ledger::insert_window(transaction.connection(), run_,
                            {1, "shadow", 1, 10, 5, "start", "end", 1, "open"}, 0);
    });
  }

  // As after a restart: nothing but the ledger is left.
  void make_controller() {
    metrics_ = std::make_unique<Metrics>([] { return size_t{0}; });
    bells_ = std::make_unique<Bells>();
    supervisor_ = std::make_unique<Supervisor>(
        *metrics_, *bells_,
        SupervisorOptions{"[verifier]\nlease_ttl_seconds = 10.0\nattempts_max = 2\n", 3600},
        [this] { return 1e9 + clock_; }, [this] { return clock_; });
    leases_ = std::make_unique<Leases>(*supervisor_, *metrics_, *bells_);
    write([&](LedgerTransaction& transaction) { leases_->restore(transaction); });
  }
  void write(const Ledger::Write& action) { ledger_.write(action); }

  // As the core does.
  void order(LedgerTransaction& transaction, int64_t run, int64_t replay, int64_t priority = 0,
             double time = 0, bool on_trainer = false) {
    decide::OrderReplay effect{replay, 1, "bf16", "", "shadow", true};
    effect.priority = static_cast<int>(priority);
    effect.on_trainer = on_trainer;
    apply_effect({transaction, *metrics_, *bells_, run, 1, time}, effect);
  }
  void order(int64_t replay, int64_t priority = 0) {
    write([&](LedgerTransaction& transaction) { order(transaction, run_, replay, priority); });
  }
  // Another run with an open window.
  int64_t add_run(const std::string& job, const std::string& start_uri = "other",
                  const std::string& backend = "") {
    int64_t run = 0;
    write([&](LedgerTransaction& transaction) {
      RunRegistration other = small_registration();
      other.job_id = job;
      other.fingerprint.backend = backend;
      run = parse_run_id(supervisor_->register_run(transaction, other).run);
      ledger::insert_window(transaction.connection(), run,
                            {1, "shadow", 1, 10, 5, start_uri, "end", 1, "open"}, 0);
    });
    return run;
  }
  std::optional<Lease> grant(const LeaseRequest& request) {
    WorkBoard::Worker worker = leases_->asks(request, 0);
    std::optional<Lease> lease;
    write([&](LedgerTransaction& transaction) { lease = leases_->grant(transaction, worker); });
    return lease;
  }
  std::optional<Lease> grant(const std::string& verifier = "v:1") {
    return grant(LeaseRequest{verifier, {}});
  }
  std::optional<Lease> grant_trainer(const std::string& run) {
    return grant(LeaseRequest{std::string(kTrainerPrefix) + "host:7", {}, run, true});
  }
  void heartbeat(const Lease& lease) {
    write([&](LedgerTransaction& transaction) {
      leases_->heartbeat(transaction, lease.lease, {lease.token, 1});
    });
  }
  void complete(int64_t lease, int64_t token) {
    ReplayResult result;
    result.token = token;
    write([&](LedgerTransaction& transaction) { leases_->complete(transaction, lease, result); });
  }
  void fail(const Lease& lease, bool retryable) {
    write([&](LedgerTransaction& transaction) {
      leases_->fail(transaction, lease.lease, {lease.token, "no device", retryable});
    });
  }
  void expire() {
    for (int64_t lease : leases_->overdue()) {
      write([&](LedgerTransaction& transaction) { leases_->expire(transaction, lease); });
    }
  }
  std::string replay_state(int64_t replay) {
    std::string state;
    ledger_.read([&](Connection& connection) {
      state = ledger::find_replay(connection, run_, replay).value().state;
    });
    return state;
  }
  int status_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const Refusal& refusal) {
      return refusal.problem().status;
    }
    return 200;
  }

  double clock_ = 1000;
  Ledger ledger_;
  std::unique_ptr<Bells> bells_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<Leases> leases_;
  int64_t run_ = 0;
};

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
  std::vector<int64_t> overdue = leases_->overdue();
  ASSERT_EQ(overdue.size(), 1u);
  heartbeat(lease);
  write([&](LedgerTransaction& transaction) { leases_->expire(transaction, overdue[0]); });
  EXPECT_EQ(replay_state(1), "leased");
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
    ledger::close_window(transaction.connection(), run_, {1, "skipped", {}, {}, {}, 0}, 0);
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
  order(1);
  EXPECT_FALSE(grant_trainer(run_name(run_ + 1)).has_value()) << "another run's";
  EXPECT_EQ(grant_trainer(run_name(run_)).value().task.replay, 1);
}

TEST_F(LeasesTest, WhileThereAreVerifiersATrainerLeavesReplaysToThem) {
  EXPECT_FALSE(grant("v:1").has_value());  // has asked, so it is there
  order(1);
  EXPECT_FALSE(grant_trainer(run_name(run_)).has_value());
  clock_ += 3600;  // it has not been heard of since
  EXPECT_EQ(grant_trainer(run_name(run_)).value().task.replay, 1);
}

TEST_F(LeasesTest, WhatOnlyTheTrainerCanDoNobodyElseDoes) {
  EXPECT_FALSE(grant("v:1").has_value());
  write([&](LedgerTransaction& transaction) { order(transaction, run_, 1, 0, 0, true); });
  EXPECT_FALSE(grant("v:1").has_value());
  EXPECT_EQ(grant_trainer(run_name(run_)).value().task.replay, 1) << "though there is a verifier";
}

TEST_F(LeasesTest, ANameSaysWhetherItIsATrainer) {
  order(1);
  EXPECT_EQ(status_of([&] { grant(LeaseRequest{"trainer:host:7", {}}); }), 400);
  EXPECT_EQ(status_of([&] { grant(LeaseRequest{"v:1", {}, run_name(run_), true}); }), 400);
  EXPECT_EQ(status_of([&] { grant(LeaseRequest{"", {}}); }), 400);
  EXPECT_EQ(status_of([&] { grant(LeaseRequest{std::string(201, 'v'), {}}); }), 400);
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

TEST_F(LeasesTest, AReplayThatAllVerifiersFailedIsTriedUntilItsLeasesAreUsedUp) {
  EXPECT_FALSE(grant("second").has_value());
  order(1);
  fail(grant("first").value(), true);
  fail(grant("second").value(), true);
  EXPECT_EQ(replay_state(1), "failed");
}

TEST_F(LeasesTest, AVerifierThatIsTheLastToSpeakTriesAgainWhatItFailed) {
  EXPECT_FALSE(grant("gone").has_value());
  order(1);
  fail(grant("left").value(), true);
  EXPECT_FALSE(grant("left").has_value());
  clock_ += 61;
  EXPECT_EQ(grant("left").value().task.replay, 1);
}

TEST_F(LeasesTest, AResultThatDoesNotFitItsWindowIsRefusedAndTheLeaseGoesOn) {
  order(1);  // steps 11–15
  const Lease lease = grant().value();
  const auto status = [&](const std::vector<int64_t>& steps, double seconds) {
    ReplayResult result;
    result.token = lease.token;
    for (int64_t step : steps) result.steps.push_back({step, 1.0, 1.0, "hash"});
    result.replay_seconds = seconds;
    return status_of([&] {
      write([&](LedgerTransaction& transaction) {
        leases_->complete(transaction, lease.lease, result);
      });
    });
  };
  EXPECT_EQ(status({11, 11}, 1), 400);
  EXPECT_EQ(status({12}, 1), 400);
  EXPECT_EQ(status({11, 12, 13, 14, 15, 16}, 1), 400);
  EXPECT_EQ(status({11}, std::numeric_limits<double>::quiet_NaN()), 400);
  EXPECT_EQ(status({11}, -1), 400);
  EXPECT_EQ(replay_state(1), "leased");
  EXPECT_EQ(status({11, 12, 13}, 1), 200) << "shorter: it turned non-finite";
}

LeaseRequest asker(const std::string& name, const std::string& backend, const Labels& labels = {}) {
  LeaseRequest request{name, {}};
  request.fingerprint.backend = backend;
  request.labels = labels;
  return request;
}

TEST_F(LeasesTest, LabelsOutsideTheirBoundsAreRefused) {
  const auto status = [&](const Labels& labels) {
    return status_of([&] { grant(asker("v:1", "cpu", labels)); });
  };
  Labels sixteen;
  for (int i = 0; i < 16; ++i) sixteen[fmt::format("k{}", i)] = "v";
  EXPECT_EQ(status(sixteen), 200);
  Labels seventeen = sixteen;
  seventeen["one-more"] = "v";
  EXPECT_EQ(status(seventeen), 400);
  EXPECT_EQ(status({{"", "v"}}), 400);
  EXPECT_EQ(status({{"Pool", "v"}}), 400);
  EXPECT_EQ(status({{std::string(65, 'k'), "v"}}), 400);
  EXPECT_EQ(status({{"pool", std::string(201, 'v')}}), 400);
  EXPECT_EQ(status({{"pool", "a\nb"}}), 400);
  EXPECT_EQ(status({{"backend", "cuda"}}), 400) << "the fingerprint says it";
}

TEST_F(LeasesTest, ARunOnCudaIsLeftToVerifiersWithCuda) {
  const int64_t run = add_run("cuda", "start", "cuda");
  write([&](LedgerTransaction& transaction) { order(transaction, run, 1); });
  EXPECT_FALSE(grant(asker("v:cpu", "cpu")).has_value());
  EXPECT_TRUE(grant(asker("v:gpu", "cuda")).has_value());
}

TEST_F(LeasesTest, ARunOnACpuIsForEverybody) {
  const int64_t run = add_run("cpu", "start", "cpu");
  write([&](LedgerTransaction& transaction) { order(transaction, run, 1); });
  EXPECT_TRUE(grant(asker("v:gpu", "cuda")).has_value());
}

TEST_F(LeasesTest, TheBackendOfTheNewestAttemptCounts) {
  const int64_t run = add_run("moved", "start", "cpu");
  write([&](LedgerTransaction& transaction) {
    AttemptStart attempt{1, 0, "start", 1};
    attempt.fingerprint = Fingerprint{};
    attempt.fingerprint->backend = "cuda";
    supervisor_->start_attempt(transaction, run, attempt);
    order(transaction, run, 1);
  });
  EXPECT_FALSE(grant(asker("v:cpu", "cpu")).has_value());
  make_controller();
  EXPECT_FALSE(grant(asker("v:cpu", "cpu")).has_value()) << "after a restart";
  EXPECT_TRUE(grant(asker("v:gpu", "cuda")).has_value());
}

TEST_F(LeasesTest, APolicysRequirementsHoldFromTheMomentItIsPutInForce) {
  const int64_t run = add_run("picky", "start", "cuda");
  const auto put = [&](const std::string& toml) {
    write([&](LedgerTransaction& transaction) {
      supervisor_->set_policy(transaction, run, "[verifier]\n" + toml);
    });
  };
  write([&](LedgerTransaction& transaction) { order(transaction, run, 1); });
  put("requires = [\"pool=team-a*\"]\n");
  EXPECT_FALSE(grant(asker("v:1", "cuda", {{"pool", "team-b"}})).has_value());
  EXPECT_FALSE(grant(asker("v:1", "cpu", {{"pool", "team-a"}})).has_value()) << "not CUDA";
  put("requires = [\"pool=team-a*\", \"backend=*\"]\n");
  EXPECT_TRUE(grant(asker("v:1", "cpu", {{"pool", "team-a1"}})).has_value())
      << "the policy says itself what backend it wants";
}

TEST_F(LeasesTest, ARunWithAThousandReplaysDoesNotKeepAnotherWaiting) {
  const int64_t other = add_run("2");
  write([&](LedgerTransaction& transaction) {
    for (int64_t replay = 1; replay <= 1000; ++replay) order(transaction, run_, replay, 9);
  });
  for (int i = 0; i < 5; ++i) grant(fmt::format("v:{}", i)).value();
  write([&](LedgerTransaction& transaction) { order(transaction, other, 1, 0, 1e6); });
  EXPECT_EQ(grant("v:9").value().task.run, run_name(other));
  EXPECT_EQ(grant("v:9").value().task.run, run_name(run_));
}

// Four verifiers, replays of ten seconds, an hour; both runs always have work, one with urgent work
// and three times the share of the other.
TEST_F(LeasesTest, GrantsGoByThePoliciesShares) {
  const int64_t other = add_run("2");
  write([&](LedgerTransaction& transaction) {
    supervisor_->set_policy(transaction, other, "[verifier]\nshare = 3.0\n");
    for (int64_t replay = 1; replay <= 2000; ++replay) {
      order(transaction, run_, replay, 9);
      order(transaction, other, replay);
    }
  });
  std::map<std::string, int> granted;
  for (int round = 0; round < 50; ++round) {
    std::vector<Lease> held;
    for (int i = 0; i < 4; ++i) held.push_back(grant(fmt::format("v:{}", i)).value());
    clock_ += 9;
    write([&](LedgerTransaction& transaction) {
      for (const Lease& lease : held) {
        ++granted[lease.task.run];
        leases_->fail(transaction, lease.lease, {lease.token, "for the test", false});
      }
    });
  }
  EXPECT_EQ(granted[run_name(run_)] + granted[run_name(other)], 200);
  EXPECT_NEAR(granted[run_name(other)], 150, 4);
}

TEST_F(LeasesTest, WritesOfOneGroupNeverGrantAReplayTwice) {
  order(1);
  std::promise<void> all_posted;
  std::future<void> gate = all_posted.get_future();
  ASSERT_TRUE(ledger_.post([&](LedgerTransaction&) { gate.wait(); }, [](std::exception_ptr) {}));
  std::vector<WorkBoard::Worker> workers;
  for (int i = 0; i < 3; ++i) {
    workers.push_back(leases_->asks(LeaseRequest{fmt::format("v:{}", i), {}}, 0));
  }
  std::vector<std::optional<Lease>> leases(3);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(ledger_.post(
        [&, i](LedgerTransaction& transaction) {
          leases[i] = leases_->grant(transaction, workers[i]);
        },
        [](std::exception_ptr) {}));
  }
  all_posted.set_value();
  write([](LedgerTransaction&) {});
  EXPECT_TRUE(leases[0].has_value());
  EXPECT_FALSE(leases[1].has_value());
  EXPECT_FALSE(leases[2].has_value());
}

// However a grant is undone: by itself, or with the group of writes that it is in.
TEST_F(LeasesTest, AGrantThatIsUndoneLeavesTheReplayToTheNext) {
  order(1);
  const auto grant_and = [&](const std::function<void(Connection&)>& harm) {
    WorkBoard::Worker worker = leases_->asks(LeaseRequest{"v:1", {}}, 0);
    EXPECT_ANY_THROW(write([&](LedgerTransaction& transaction) {
      EXPECT_TRUE(leases_->grant(transaction, worker).has_value());
      EXPECT_EQ(bells_->work.queued(), 0);
      harm(transaction.connection());
    }));
    EXPECT_EQ(bells_->work.queued(), 1);
    EXPECT_EQ(replay_state(1), "queued");
  };
  grant_and([](Connection&) { throw Error("no"); });
  grant_and([](Connection& connection) { connection.execute("ROLLBACK"); });
  EXPECT_EQ(grant().value().token, 1);
}

TEST_F(LeasesTest, AReplayWhoseOrderIsUndoneIsNeverOnTheBoard) {
  EXPECT_ANY_THROW(write([&](LedgerTransaction& transaction) {
    order(transaction, run_, 1);
    throw Error("no");
  }));
  EXPECT_EQ(bells_->work.queued(), 0);
}

TEST_F(LeasesTest, AClosedWindowTakesItsReplaysOffTheBoard) {
  order(1);
  write([&](LedgerTransaction& transaction) {
    apply_effect({transaction, *metrics_, *bells_, run_, 2, 0},
                 decide::CloseWindow{1, "skipped", {}, {}, {}, 0});
  });
  EXPECT_EQ(replay_state(1), "cancelled");
  EXPECT_EQ(bells_->work.queued(), 0);
}

TEST_F(LeasesTest, AfterARestartTheBoardHasWhatIsQueuedAndNothingElse) {
  for (int64_t replay = 1; replay <= 4; ++replay) order(replay, replay);
  grant().value();                     // 4
  const Lease done = grant().value();  // 3
  complete(done.lease, done.token);
  fail(grant("v:7").value(), true);  // 2, queued again
  make_controller();
  EXPECT_EQ(bells_->work.queued(), 2);
  const Lease next = grant("v:8").value();
  EXPECT_EQ(next.task.replay, 2);
  EXPECT_EQ(next.token, 2);
  EXPECT_EQ(grant("v:8").value().task.replay, 1);
  EXPECT_FALSE(grant("v:8").has_value());
}

TEST_F(LeasesTest, ReplaysOfARunThatCannotBeReadAreLeftOutAndTheOthersAreLeased) {
  const int64_t other = add_run("2");
  write([&](LedgerTransaction& transaction) {
    order(transaction, other, 1, 9);
    order(transaction, run_, 1);
    transaction.connection().execute("UPDATE runs SET policy = 'nonsense' WHERE id = ?", other);
  });
  make_controller();
  EXPECT_EQ(grant().value().task.run, run_name(run_));
  EXPECT_FALSE(grant().has_value());
}

TEST_F(LeasesTest, ATrainerDoesWhatNoVerifierThatSpeaksIsFitFor) {
  write([&](LedgerTransaction& transaction) {
    supervisor_->set_policy(transaction, run_, "[verifier]\nrequires = [\"pool=a\"]\n");
    order(transaction, run_, 1);
    order(transaction, run_, 2);
  });
  EXPECT_FALSE(grant(asker("v:1", "", {{"pool", "b"}})).has_value());
  EXPECT_TRUE(grant_trainer(run_name(run_)).has_value());
  EXPECT_TRUE(grant(asker("v:2", "", {{"pool", "a"}})).has_value());
  order(3);
  EXPECT_FALSE(grant_trainer(run_name(run_)).has_value());
}

TEST_F(LeasesTest, WhatNobodyCanDoIsToldOnceWhileItLasts) {
  const auto watch = [&](double seconds) {
    clock_ += seconds;
    leases_->watch_unserved(ledger_);
    write([](LedgerTransaction&) {});  // behind what it posted
  };
  const auto notices = [&] {
    return number(ledger_, "SELECT count(*) FROM notices WHERE kind = 'no_verifier_fits'");
  };
  const auto unserved = [&](const std::string& reason) {
    const std::string text = metrics_->serialize(clock_);
    const std::string name = fmt::format("gnomon_replays_unserved{{reason=\"{}\"}} ", reason);
    return std::stoi(text.substr(text.find(name) + name.size()));
  };
  write([&](LedgerTransaction& transaction) {
    supervisor_->set_policy(transaction, run_, "[verifier]\nrequires = [\"pool=a\"]\n");
    order(transaction, run_, 1);
    order(transaction, run_, 2);
  });
  watch(0);
  EXPECT_EQ(unserved("no_verifier"), 2);
  EXPECT_FALSE(grant(asker("v:1", "cpu", {{"pool", "b"}})).has_value());
  watch(30);
  EXPECT_EQ(unserved("no_verifier"), 0);
  EXPECT_EQ(unserved("labels"), 2);
  EXPECT_EQ(notices(), 0) << "verifiers come and go";
  watch(30);
  EXPECT_EQ(notices(), 1);
  EXPECT_EQ(number(ledger_,
                   "SELECT count(*) FROM notices WHERE text LIKE '2 replays wait for a verifier "
                   "with pool=a, and none of those that speak has these labels%'"),
            1);
  watch(100);
  EXPECT_EQ(notices(), 1) << "it was told";
  EXPECT_TRUE(grant(asker("v:2", "cpu", {{"pool", "a"}})).has_value());
  watch(1);
  EXPECT_EQ(unserved("labels"), 0);
  watch(100);
  watch(60);
  EXPECT_EQ(notices(), 2) << "it lasted again, after it was over";
}

}  // namespace
}  // namespace gnomon

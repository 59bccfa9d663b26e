// Who is given what: labels, shares, the replay queue beside the ledger.
#include <future>
#include <map>

#include "controller/decide/windows.h"
#include "controller/supervisor/attempts.h"
#include "controller/supervisor/overrides.h"
#include "tests/controller/leases_fixture.h"

namespace gnomon {
namespace {

class LeaseTurnsTest : public LeasesTest {};

LeaseRequest asker(const std::string& name, const std::string& backend, const Labels& labels = {}) {
  LeaseRequest request{name, {}};
  request.fingerprint.backend = backend;
  request.labels = labels;
  return request;
}

TEST_F(LeaseTurnsTest, LabelsOutsideTheirBoundsAreRefused) {
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

TEST_F(LeaseTurnsTest, ARunOnCudaIsLeftToVerifiersWithCuda) {
  const int64_t run = add_run("cuda", "start", "cuda");
  write([&](LedgerTransaction& transaction) { order(transaction, run, 1); });
  EXPECT_FALSE(grant(asker("v:cpu", "cpu")).has_value());
  EXPECT_TRUE(grant(asker("v:gpu", "cuda")).has_value());
}

TEST_F(LeaseTurnsTest, ARunOnACpuIsForEverybody) {
  const int64_t run = add_run("cpu", "start", "cpu");
  write([&](LedgerTransaction& transaction) { order(transaction, run, 1); });
  EXPECT_TRUE(grant(asker("v:gpu", "cuda")).has_value());
}

TEST_F(LeaseTurnsTest, TheBackendOfTheNewestAttemptCounts) {
  const int64_t run = add_run("moved", "start", "cpu");
  write([&](LedgerTransaction& transaction) {
    AttemptStart attempt{1, 0, "start", 1};
    attempt.fingerprint = Fingerprint{};
    attempt.fingerprint->backend = "cuda";
    start_attempt({*runs_, transaction}, run, attempt);
    order(transaction, run, 1);
  });
  EXPECT_FALSE(grant(asker("v:cpu", "cpu")).has_value());
  make_controller();
  EXPECT_FALSE(grant(asker("v:cpu", "cpu")).has_value()) << "after a restart";
  EXPECT_TRUE(grant(asker("v:gpu", "cuda")).has_value());
}

TEST_F(LeaseTurnsTest, APolicysRequirementsHoldFromTheMomentItIsPutInForce) {
  const int64_t run = add_run("picky", "start", "cuda");
  const auto put = [&](const std::string& toml) {
    write([&](LedgerTransaction& transaction) {
      set_policy({*runs_, transaction}, run, "[verifier]\n" + toml);
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

TEST_F(LeaseTurnsTest, ARunWithAThousandReplaysDoesNotKeepAnotherWaiting) {
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
TEST_F(LeaseTurnsTest, GrantsGoByThePoliciesShares) {
  const int64_t other = add_run("2");
  write([&](LedgerTransaction& transaction) {
    set_policy({*runs_, transaction}, other, "[verifier]\nshare = 3.0\n");
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

TEST_F(LeaseTurnsTest, WritesOfOneGroupNeverGrantAReplayTwice) {
  order(1);
  std::promise<void> all_posted;
  std::future<void> gate = all_posted.get_future();
  ASSERT_TRUE(ledger_.post([&](LedgerTransaction&) { gate.wait(); }, [](std::exception_ptr) {}));
  std::vector<ReplayQueue::Worker> workers;
  for (int i = 0; i < 3; ++i) {
    workers.push_back(leases_->register_request(LeaseRequest{fmt::format("v:{}", i), {}}, 0));
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
TEST_F(LeaseTurnsTest, AGrantThatIsUndoneLeavesTheReplayToTheNext) {
  order(1);
  const auto grant_and = [&](const std::function<void(Connection&)>& harm) {
    ReplayQueue::Worker worker = leases_->register_request(LeaseRequest{"v:1", {}}, 0);
    EXPECT_ANY_THROW(write([&](LedgerTransaction& transaction) {
      EXPECT_TRUE(leases_->grant(transaction, worker).has_value());
      EXPECT_EQ(queue_->queued(), 0);
      harm(transaction.connection());
    }));
    EXPECT_EQ(queue_->queued(), 1);
    EXPECT_EQ(replay_state(1), "queued");
  };
  grant_and([](Connection&) { throw Error("no"); });
  grant_and([](Connection& connection) { connection.execute("ROLLBACK"); });
  EXPECT_EQ(grant().value().token, 1);
}

TEST_F(LeaseTurnsTest, ARolledBackOrderIsNeverQueued) {
  EXPECT_ANY_THROW(write([&](LedgerTransaction& transaction) {
    order(transaction, run_, 1);
    throw Error("no");
  }));
  EXPECT_EQ(queue_->queued(), 0);
}

TEST_F(LeaseTurnsTest, AClosedWindowTakesItsReplaysOffTheBoard) {
  order(1);
  write([&](LedgerTransaction& transaction) {
    apply_effect({transaction, *metrics_, *queue_, *notifiers_, run_, 2, 0},
                 decide::CloseWindow{{}, 1, "skipped"});
  });
  EXPECT_EQ(replay_state(1), "cancelled");
  EXPECT_EQ(queue_->queued(), 0);
}

TEST_F(LeaseTurnsTest, ARestartQueuesExactlyTheReplaysOnRecord) {
  for (int64_t replay = 1; replay <= 4; ++replay) order(replay, replay);
  grant().value();                     // 4
  const Lease done = grant().value();  // 3
  complete(done.lease, done.token);
  fail(grant("v:7").value(), true);  // 2, queued again
  make_controller();
  EXPECT_EQ(queue_->queued(), 2);
  const Lease next = grant("v:8").value();
  EXPECT_EQ(next.task.replay, 2);
  EXPECT_EQ(next.token, 2);
  EXPECT_EQ(grant("v:8").value().task.replay, 1);
  EXPECT_FALSE(grant("v:8").has_value());
}

// Cases and shadows take turns, and a restart begins no new round.
TEST_F(LeaseTurnsTest, AfterARestartTheTurnIsTheSame) {
  for (int64_t replay = 1; replay <= 3; ++replay) order(replay, decide::kPriorityTriage);
  for (int64_t shadow = 4; shadow <= 13; ++shadow) order(shadow, decide::kPriorityShadow);
  const auto complete_next = [this](int64_t replay) {
    clock_ += 1;
    const Lease lease = grant().value();
    EXPECT_EQ(lease.task.replay, replay);
    complete(lease.lease, lease.token);
  };
  for (const int64_t replay : {1, 2, 4, 3}) complete_next(replay);
  // Leases have no order but that in which they were granted.
  for (int64_t shadow = 5; shadow <= 12; ++shadow) complete_next(shadow);
  for (int64_t replay = 14; replay <= 16; ++replay) order(replay, decide::kPriorityTriage);
  for (const int64_t replay : {14, 15}) complete_next(replay);
  make_controller();
  EXPECT_EQ(grant().value().task.replay, 13) << "two of a case came before";
}

TEST_F(LeaseTurnsTest, ReplaysOfARunThatCannotBeReadAreLeftOutAndTheOthersAreLeased) {
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

TEST_F(LeaseTurnsTest, ATrainerDoesReplaysThatNoActiveVerifierFits) {
  verify_inline();
  write([&](LedgerTransaction& transaction) {
    set_policy({*runs_, transaction}, run_, "[verifier]\nrequires = [\"pool=a\"]\n");
    order(transaction, run_, 1);
    order(transaction, run_, 2);
  });
  EXPECT_FALSE(grant(asker("v:1", "", {{"pool", "b"}})).has_value());
  EXPECT_TRUE(grant_trainer(run_name(run_)).has_value());
  EXPECT_TRUE(grant(asker("v:2", "", {{"pool", "a"}})).has_value());
  order(3);
  EXPECT_FALSE(grant_trainer(run_name(run_)).has_value());
}

TEST_F(LeaseTurnsTest, AnUnschedulableReplayIsReportedOnce) {
  const auto watch = [&](double seconds) {
    clock_ += seconds;
    leases_->watch_unschedulable(ledger_);
    write([](LedgerTransaction&) {});  // behind what it posted
  };
  const auto notices = [&] {
    return number(ledger_, "SELECT count(*) FROM notices WHERE kind = 'no_verifier_fits'");
  };
  const auto unschedulable = [&](const std::string& reason) {
    const std::string text = metrics_->serialize(clock_);
    const std::string name = fmt::format("gnomon_replays_unserved{{reason=\"{}\"}} ", reason);
    return std::stoi(text.substr(text.find(name) + name.size()));
  };
  write([&](LedgerTransaction& transaction) {
    set_policy({*runs_, transaction}, run_, "[verifier]\nrequires = [\"pool=a\"]\n");
    order(transaction, run_, 1);
    order(transaction, run_, 2);
  });
  watch(0);
  EXPECT_EQ(unschedulable("no_verifier"), 2);
  EXPECT_FALSE(grant(asker("v:1", "cpu", {{"pool", "b"}})).has_value());
  watch(30);
  EXPECT_EQ(unschedulable("no_verifier"), 0);
  EXPECT_EQ(unschedulable("labels"), 2);
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
  EXPECT_EQ(unschedulable("labels"), 0);
  watch(100);
  watch(60);
  EXPECT_EQ(notices(), 2) << "it lasted again, after it was over";
  EXPECT_TRUE(grant(asker("v:2", "cpu", {{"pool", "a"}})).has_value());
  watch(1);
  order(3);
  quarantine("v:2");
  watch(1);
  EXPECT_EQ(unschedulable("labels"), 0);
  EXPECT_EQ(unschedulable("quarantine"), 1);
  watch(30);
  EXPECT_FALSE(grant(asker("v:2", "cpu", {{"pool", "a"}})).has_value());
  watch(30);
  EXPECT_EQ(number(ledger_,
                   "SELECT count(*) FROM notices WHERE text LIKE '1 replay waits, and every "
                   "verifier that speaks and has what the run requires is in quarantine%v:2%'"),
            1);
}

}  // namespace
}  // namespace gnomon

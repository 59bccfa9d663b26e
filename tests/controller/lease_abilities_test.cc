// Verifiers that cannot do everything: arms, checkpoint formats, frameworks.
#include "controller/supervisor/registration.h"
#include "tests/controller/leases_fixture.h"
#include "tests/support/words.h"

namespace gnomon {
namespace {

class LeaseAbilitiesTest : public LeasesTest {
 protected:
  static LeaseRequest asker(const std::string& name, Abilities can) {
    LeaseRequest request{name, {}};
    request.can = std::move(can);
    return request;
  }
  int64_t add_torch_run() {
    int64_t run = 0;
    write([&](LedgerTransaction& transaction) {
      RunRegistration other = small_registration();
      other.job_id = "torch";
      other.framework = "pytorch";
      other.checkpoint_format = "torch";
      run = parse_run_id(register_run({*runs_, transaction}, other).run);
      ledger::insert(transaction.connection(),
                     WindowRow{{1, "shadow", 1, 10, 5, "start", "end", 1}, {}, run});
      order(transaction, run, 1);
    });
    return run;
  }
  void order_arm(int64_t replay, const std::string& arm) {
    write([&](LedgerTransaction& transaction) {
      decide::OrderReplay effect{{replay, 1, test::any_word(arm), "", "triage", true}};
      apply_effect({transaction, *metrics_, *queue_, *notifiers_, run_, 1, 0}, effect);
    });
  }
  void refuse(const Lease& lease, const std::string& reason) {
    write([&](LedgerTransaction& transaction) {
      LeaseFailure failure{lease.token, reason, false};
      failure.unsupported = true;
      leases_->fail(transaction, lease.lease, failure);
    });
  }
  void watch(double seconds) {
    clock_ += seconds;
    leases_->watch_unschedulable(ledger_);
    write([](LedgerTransaction&) {});  // behind what it posted
  }
  std::string fail_reason(int64_t replay) {
    std::string reason;
    ledger_.read([&](Connection& connection) {
      reason = ledger::find_replay(connection, run_, replay).value().fail_reason.value_or("");
    });
    return reason;
  }
};

TEST_F(LeaseAbilitiesTest, OnlyVerifiersThatReadTheFormatGetTheReplay) {
  add_torch_run();
  EXPECT_FALSE(grant(asker("c:1", {.checkpoint_formats = {"gnomon"}})));
  EXPECT_FALSE(grant(asker("c:2", {.frameworks = {"gnomon", "jax"}})));
  EXPECT_TRUE(
      grant(asker("p:1", {.checkpoint_formats = {"gnomon", "torch"}, .frameworks = {"pytorch"}})));
}

TEST_F(LeaseAbilitiesTest, AVerifierWithoutAbilitiesCanDoEveryArm) {
  add_torch_run();
  EXPECT_TRUE(grant(asker("old", {})));
}

TEST_F(LeaseAbilitiesTest, ARunWithoutAFormatFitsEveryVerifier) {
  order(1);
  EXPECT_TRUE(grant(asker("c:1", {{}, {"gnomon"}, {"gnomon"}})));
}

TEST_F(LeaseAbilitiesTest, OnlyVerifiersThatKnowTheArmGetTheReplay) {
  order_arm(1, "scores");
  EXPECT_FALSE(grant(asker("p:1", {.arms = {"bf16", "same"}})));
  EXPECT_TRUE(grant(asker("c:1", {.arms = {"bf16", "same", "scores"}})));
}

TEST_F(LeaseAbilitiesTest, AWaitingVerifierIsWokenOnlyForArmsItKnows) {
  const ReplayQueue::Worker worker =
      leases_->register_request(asker("p:1", {.arms = {"bf16"}}), 30);
  int woken = 0;
  ASSERT_NE(queue_->wait(worker, [&] { ++woken; }), 0u);
  order_arm(1, "scores");
  EXPECT_EQ(woken, 0);
  order_arm(2, "bf16");
  EXPECT_EQ(woken, 1);
}

TEST_F(LeaseAbilitiesTest, AnUnsupportedReplayCostsNoAttemptAndIsNotOfferedAgain) {
  order(1);
  for (int i = 0; i < 5; ++i) {
    const std::string name = "c:" + std::to_string(i);
    refuse(grant(name).value(), "manifest.json is missing");
    EXPECT_FALSE(grant(name)) << "it has said that it cannot";
  }
  EXPECT_EQ(replay_state(1), "queued") << "attempts_max is 2";
  make_controller();
  EXPECT_FALSE(grant("c:1")) << "after a restart, too";
  const Lease lease = grant("p:1").value();
  complete(lease.lease, lease.token);
  EXPECT_EQ(replay_state(1), "done");
}

TEST_F(LeaseAbilitiesTest, ItsRealTriesAreCountedAllTheSame) {
  order(1);
  refuse(grant("c:1").value(), "manifest.json is missing");
  fail(grant("p:1").value(), true);
  EXPECT_EQ(replay_state(1), "queued");
  fail(grant("p:2").value(), true);
  EXPECT_EQ(replay_state(1), "failed");
}

TEST_F(LeaseAbilitiesTest, ARepeatedFailureIsAcceptedAndAnotherOneRejected) {
  order(1);
  const Lease lease = grant("c:1").value();
  refuse(lease, "cannot");
  EXPECT_EQ(status_of([&] { refuse(lease, "cannot"); }), 200);
  EXPECT_EQ(status_of([&] { refuse(lease, "will not"); }), 409);
}

TEST_F(LeaseAbilitiesTest, AnArmThatNoVerifierKnowsFailsSoon) {
  order_arm(1, "scores");
  EXPECT_FALSE(grant(asker("p:1", {.arms = {"bf16"}})));
  watch(1);
  watch(8);
  EXPECT_EQ(replay_state(1), "queued") << "another one may come";
  watch(3);
  EXPECT_EQ(replay_state(1), "failed");
  EXPECT_EQ(fail_reason(1), "no verifier that speaks can do the arm scores");
  EXPECT_EQ(queue_->queued(), 0);
}

TEST_F(LeaseAbilitiesTest, AReplayThatAllVerifiersRefuseFailsWithTheReason) {
  order(1);
  refuse(grant("c:1").value(), "manifest.json is missing");
  watch(1);
  watch(11);
  EXPECT_EQ(replay_state(1), "failed");
  EXPECT_EQ(fail_reason(1), "no verifier that speaks can do it: manifest.json is missing");
}

TEST_F(LeaseAbilitiesTest, WithoutActiveVerifiersNoReplayFails) {
  order_arm(1, "scores");
  watch(1);
  watch(1000);
  EXPECT_EQ(replay_state(1), "queued");
}

TEST_F(LeaseAbilitiesTest, AVerifierOfTheRightKindIsWaitedForAndAskedForByName) {
  const int64_t run = add_torch_run();
  EXPECT_FALSE(grant(asker("c:1", {.checkpoint_formats = {"gnomon"}})));
  watch(1);
  EXPECT_THAT(metrics_->serialize(clock_),
              ::testing::HasSubstr("gnomon_replays_unserved{reason=\"unsupported\"} 1"));
  for (int i = 0; i < 2; ++i) {  // it goes on asking
    EXPECT_FALSE(grant(asker("c:1", {.checkpoint_formats = {"gnomon"}})));
    watch(40);
  }
  EXPECT_EQ(number(ledger_, fmt::format("SELECT count(*) FROM notices WHERE run = {} AND text LIKE "
                                        "'%the framework pytorch%(format torch)%'",
                                        run)
                                .c_str()),
            1);
  EXPECT_TRUE(grant(asker("p:1", {.checkpoint_formats = {"torch"}}))) << "it was not given up";
}

TEST_F(LeaseAbilitiesTest, ATrainerThatReplaysIsNotWaitedForWhereItCannot) {
  verify_inline();
  LeaseRequest trainer{std::string(kTrainerPrefix) + "host:7", {}, run_name(run_), true};
  trainer.can.arms = {"bf16"};
  order_arm(1, "scores");
  EXPECT_FALSE(grant(trainer));
  watch(1);
  watch(11);
  EXPECT_EQ(replay_state(1), "failed");
  order(2);
  EXPECT_TRUE(grant(trainer));
}

// Nobody else could be asked, so nobody is waited for.
TEST_F(LeaseAbilitiesTest, ATrainersRefusalFailsItsOwnReplay) {
  verify_inline();
  write([&](LedgerTransaction& transaction) { order(transaction, run_, 1, 0, 0, true); });
  refuse(grant_trainer(run_name(run_)).value(), "arm bf16 is not known");
  EXPECT_EQ(replay_state(1), "failed");
  EXPECT_EQ(fail_reason(1), "arm bf16 is not known");
  // And where it says so before it is asked.
  LeaseRequest trainer{std::string(kTrainerPrefix) + "host:7", {}, run_name(run_), true};
  trainer.can.arms = {"same"};
  write([&](LedgerTransaction& transaction) { order(transaction, run_, 2, 0, 0, true); });
  EXPECT_FALSE(grant(trainer));
  watch(1);
  EXPECT_EQ(replay_state(2), "failed");
}

TEST_F(LeaseAbilitiesTest, ATrainerDoesReplaysThatAllVerifiersRefused) {
  verify_inline();
  order(1);
  refuse(grant("c:1").value(), "manifest.json is missing");
  EXPECT_TRUE(grant_trainer(run_name(run_))) << "the verifier that speaks cannot do it";
}

TEST_F(LeaseAbilitiesTest, ATrainersRefusalFailsTheReplayWithoutActiveVerifiers) {
  verify_inline();
  order(1);
  refuse(grant_trainer(run_name(run_)).value(), "arm bf16 is not known");
  EXPECT_EQ(replay_state(1), "queued") << "a verifier may come";
  watch(1);
  watch(11);
  EXPECT_EQ(replay_state(1), "failed");
}

}  // namespace
}  // namespace gnomon

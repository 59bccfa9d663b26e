// A trainer that goes on at a controller whose ledger is new: it registers again, sends all its
// attempts, and then only what it still has.
#include <fmt/format.h>

#include "tests/controller/api_fixture.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;

class LostLedgerTest : public ApiTest {
 protected:
  // What a trainer sends that was rolled back once and is at step 42 of its third attempt.
  void continue_run() {
    RunRegistration registration = test_registration();
    registration.last_directive = 7;
    registration.newest_plan_version = 4;
    trainer.run = from_json<RunRegistered>(
                      trainer.client().checked("POST", "/v1/runs", to_json(registration)).body)
                      .run;
    for (const AttemptStart& attempt :
         {AttemptStart{1, 0, "start", 1, 1.0}, AttemptStart{2, 20, "rollback", 1, 2.0},
          AttemptStart{3, 30, "restart", 1, 3.0}}) {
      trainer.client().checked("POST", trainer.path("/attempts"), to_json(attempt));
    }
  }
  static StepReport late_step(int64_t step) {
    StepReport report = test_step(step, 3);
    report.plan_version = 1;
    return report;
  }
  CheckpointReport checkpoint(int64_t step) { return test_checkpoint(step, 3); }
  void report_checkpoint(int64_t step) {
    trainer.client().checked("POST", trainer.path("/checkpoints"), to_json(checkpoint(step)));
  }
  FakeTrainer trainer{daemon.url()};
  FakeVerifier verifier{daemon.url()};
};

TEST_F(LostLedgerTest, AllAttemptsAreTakenAgainAndStepsGoOnWithoutTheEarlierOnes) {
  continue_run();
  continue_run();  // everything may be sent twice
  EXPECT_EQ(trainer.post_steps({{late_step(42), late_step(43)}}).accepted, 2);
  boost::json::value run = get(trainer.path(""));
  EXPECT_EQ(run.at("attempts").as_array().size(), 3u);
  EXPECT_EQ(run.at("attempt").as_int64(), 3);
  EXPECT_EQ(run.at("step").as_int64(), 43);
  EXPECT_EQ(get(trainer.path("/steps")).as_array().size(), 2u);
}

TEST_F(LostLedgerTest, DirectivesAreNumberedAboveWhatTheTrainerKnows) {
  continue_run();
  HttpClient client = daemon.client();
  OverrideAccepted accepted = from_json<OverrideAccepted>(
      client
          .checked("POST", trainer.path("/overrides"),
                   to_json(OverrideRequest{"pause", "", "", "ann", "to look", 0}))
          .body);
  EXPECT_EQ(accepted.directive, 8);
  ASSERT_EQ(trainer.poll(7).directives.size(), 1u);
  EXPECT_EQ(trainer.poll(7).directives[0].number, 8);
}

TEST_F(LostLedgerTest, AWindowSomeOfWhoseStepsWereNeverReportedIsJudgedByItsEnds) {
  continue_run();
  report_checkpoint(40);
  trainer.post_steps({{late_step(41), late_step(44)}});  // 42, 43 and 45 are lost
  report_checkpoint(45);
  std::optional<Lease> lease = verifier.lease();
  ASSERT_TRUE(lease.has_value());
  EXPECT_EQ(lease->task.start_step, 40);
  EXPECT_EQ(lease->task.attempt, 3);
  verifier.complete_twice(*lease, 0.001);
  boost::json::value window = get(trainer.path("/windows")).at(0);
  EXPECT_EQ(window.at("state").as_string(), "quiet");
  EXPECT_NEAR(window.at("gap").as_double(), 0.001, 1e-12);
  EXPECT_EQ(metric("gnomon_run_paired_loss{run=\"test/1\"}"), -1)
      << "the run's loss at the window's end is not known, and no number is made up";
  EXPECT_EQ(metric("gnomon_run_verified_step{run=\"test/1\"}"), 45);
}

TEST_F(LostLedgerTest, AWindowWhoseFirstStepsWereNeverReportedIsNotJudged) {
  continue_run();
  report_checkpoint(40);
  trainer.post_steps({{late_step(43), late_step(44), late_step(45)}});
  report_checkpoint(45);
  EXPECT_FALSE(verifier.lease().has_value()) << "nobody knows under which plan 41 and 42 ran";
  for (int64_t step = 46; step <= 50; ++step) {
    trainer.post_steps({{late_step(step)}});
  }
  report_checkpoint(50);
  std::optional<Lease> lease = verifier.lease();
  ASSERT_TRUE(lease.has_value());
  EXPECT_EQ(lease->task.start_step, 45);
}

TEST_F(LostLedgerTest, TheSameArmOfSuchAWindowComparesTheStepsThereAre) {
  continue_run();
  report_checkpoint(40);
  trainer.post_steps({{late_step(41), late_step(44)}});
  report_checkpoint(45);
  verifier.complete(verifier.lease().value(), 0.2);
  std::optional<Lease> same = verifier.lease();
  ASSERT_TRUE(same.has_value());
  EXPECT_EQ(same->task.arm, "same");
  verifier.complete(*same, 0);
  std::string decisions = daemon.client().checked("GET", trainer.path("/decisions")).body;
  EXPECT_THAT(decisions, ::testing::Not(HasSubstr("transient_fault")));
}

TEST_F(LostLedgerTest, AStepBeforeItsAttemptBeganIsRefusedWhereverItStandsInABatch) {
  continue_run();
  Refused refusal =
      refused("POST", trainer.path("/steps"), to_json(StepBatch{{late_step(42), late_step(30)}}));
  EXPECT_EQ(refusal.status, 400);
  EXPECT_THAT(refusal.accepted, HasSubstr("above 30"));
  EXPECT_TRUE(get(trainer.path("/steps")).as_array().empty());
}

}  // namespace
}  // namespace gnomon

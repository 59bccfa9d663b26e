// Audits: windows whose bits are checked, whatever their gap says.
#include "controller/decide/audits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/decide/spending.h"
#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Policy by_budget() {
  Policy policy;
  policy.window.steps = 20;
  policy.verification.budget_percent = 30;
  policy.economics.switch_steps = 4;
  return policy;
}

Truth long_run(Truth truth = {}) {
  truth.total_steps = 40'000;
  truth.bf16_step_seconds = 1.35;
  truth.replay_overhead_seconds = 4;
  return truth;
}

int64_t audits(const SimulatedRun& run) {
  return std::ranges::count_if(run.effects, [](const Effect& effect) {
    const auto* order = std::get_if<OrderReplay>(&effect);
    return order != nullptr && order->arm == "same" && order->purpose == "instrument";
  });
}

int64_t windows(const SimulatedRun& run) {
  return std::ranges::count_if(run.effects, [](const Effect& effect) {
    const auto* open = std::get_if<OpenWindow>(&effect);
    return open != nullptr && open->kind == "shadow";
  });
}

TEST(AuditTest, AShareOfAHealthyRunsWindowsIsAuditedAndNothingFollows) {
  Policy often = by_budget();
  often.verification.budget_percent = 90;
  SimulatedRun run(long_run(), often);
  run.start();
  run.train_until(20'000);
  run.drain();
  ASSERT_GT(windows(run), 80);
  EXPECT_NEAR(static_cast<double>(audits(run)), static_cast<double>(windows(run)) / kAuditEvery, 1);
  EXPECT_THAT(run.decisions("alarm"), IsEmpty());
  EXPECT_THAT(run.state.windows, IsEmpty()) << "none waits for ever";
  EXPECT_EQ(run.closed("alarm"), 0);
}

// The gap says nothing of it: the loss is the same.
TEST(AuditTest, WeightsThatFlipWithoutAnyLossAreFound) {
  Truth truth = long_run();
  truth.silent_flip = [](int64_t step) { return step > 3000 && step % 7 == 0; };
  SimulatedRun run(truth, by_budget());
  run.start();
  run.train_until(3000);
  const int64_t before = windows(run);
  while (run.decisions("verdict").empty() && run.step < 30'000) run.train_until(run.step + 10);
  ASSERT_THAT(run.decisions("verdict"), SizeIs(1));
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "transient_fault");
  EXPECT_LE(windows(run) - before, kAuditEvery + 1) << "the last one may still be replayed";
  EXPECT_THAT(run.decisions("alarm")[0].sentence, HasSubstr("other bits than the run's from step"));
  ASSERT_THAT(run.directives("rollback"), SizeIs(1));
  EXPECT_LT(run.directives("rollback")[0].to_step, run.decisions("verdict")[0].step);
}

// One weight once, far from any window that would have been opened.
TEST(AuditTest, AFlippedWeightThatTheTrainerSeesIsFoundAtOnce) {
  Policy sparse = by_budget();
  sparse.verification.budget_percent = 5;
  for (const int64_t at : {4003, 4020, 5550, 6001, 7019}) {
    for (const bool seen : {false, true}) {
      Truth truth = long_run();
      truth.silent_flip = [at](int64_t step) { return step == at; };
      truth.sums_state = seen;
      SimulatedRun run(truth, sparse);
      run.start();
      run.train_until(at + 200);
      ASSERT_THAT(run.decisions("verdict"), SizeIs(seen ? 1 : 0)) << at;
      EXPECT_THAT(run.decisions("health"), SizeIs(seen ? 1 : 0));
      if (!seen) continue;
      EXPECT_EQ(run.decisions("health")[0].verdict, "memory_changed");
      EXPECT_EQ(run.decisions("verdict")[0].verdict, "transient_fault");
      ASSERT_THAT(run.directives("rollback"), SizeIs(1));
      EXPECT_LT(run.directives("rollback")[0].to_step, at);
    }
  }
}

// Where nobody can look at bits, people are told.
TEST(AuditTest, AMemoryThatLosesWhatItHoldsIsSaidOnceWhereBitsCannotBeCompared) {
  Truth truth = long_run();
  truth.capabilities.exact_replay = false;
  truth.silent_flip = [](int64_t step) { return step > 3000; };
  truth.sums_state = true;
  SimulatedRun run(truth, by_budget());
  run.start();
  run.train_until(3150);
  ASSERT_THAT(run.decisions("health"), SizeIs(1));
  EXPECT_THAT(run.decisions("health")[0].sentence,
              HasSubstr("Step 3002 found other master weights or moments than step 3001 had"));
  EXPECT_THAT(run.directives(""), IsEmpty());
}

TEST(AuditTest, AVerifierThatComputesWronglyIsNamedAndTheRunIsNot) {
  Truth truth = long_run();
  truth.bad_verifier = "v2:2";
  truth.verifiers = {"v1:1", "v2:2", "v3:3"};
  SimulatedRun run(truth, by_budget());
  run.start();
  run.train_until(30'000);
  EXPECT_THAT(run.state.trust.quarantined, ::testing::ElementsAre("v2:2"));
  EXPECT_THAT(run.directives(""), IsEmpty());
  for (const RecordDecision& verdict : run.decisions("verdict"))
    EXPECT_EQ(verdict.verdict, "verifier_fault");
}

// One that does not compute, but says what the run has said.
SimulatedRun flipped_beside_an_echo(std::vector<std::string> verifiers) {
  Truth truth = long_run();
  truth.verifiers = std::move(verifiers);
  truth.silent_flip = [](int64_t step) { return step == 3003; };
  truth.sums_state = true;
  SimulatedRun run(truth, by_budget());
  run.lie = [](ReplayFinished& answer) {
    if (answer.verifier == "v1:1" && answer.arm == "same") answer.first_mismatch_step.reset();
  };
  run.start();
  run.train_until(9000);
  return run;
}

TEST(AuditTest, OneThatRepeatsTheRunsBitsIsNamedByTwoThatFindOthers) {
  const SimulatedRun run = flipped_beside_an_echo({"v1:1", "v2:2", "v3:3"});
  EXPECT_THAT(run.state.trust.quarantined, ElementsAre("v1:1"));
  ASSERT_THAT(run.decisions("verdict"), SizeIs(1));
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "transient_fault");
  EXPECT_THAT(run.decisions("verdict")[0].sentence, HasSubstr("v1:1 only repeats the run's"));
  ASSERT_THAT(run.directives("rollback"), SizeIs(1));
  EXPECT_LT(run.directives("rollback")[0].to_step, 3003);
}

TEST(AuditTest, OfTwoThatAreExactAsARuleNobodyIsNamedForOtherBits) {
  const SimulatedRun run = flipped_beside_an_echo({"v1:1", "v2:2"});
  EXPECT_THAT(run.state.trust.quarantined, IsEmpty());
  ASSERT_THAT(run.decisions("verdict"), SizeIs(1));
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "broken_instrument");
  EXPECT_THAT(run.decisions("verdict")[0].sentence, HasSubstr("nobody else can say who is wrong"));
  EXPECT_FALSE(run.state.watch.instrument.broken) << "the next windows' sources agree";
}

TEST(AuditTest, BitsThatCannotBeComparedAreNotAskedForAgainAndAgain) {
  Truth truth = long_run();
  truth.equal_fingerprints = false;
  SimulatedRun run(truth, by_budget());
  run.start();
  run.train_until(20'000);
  EXPECT_EQ(audits(run), 3);
  const auto said = run.decisions("instrument");
  EXPECT_EQ(std::ranges::count_if(said,
                                  [](const RecordDecision& decision) {
                                    return decision.sentence.find("No further bits are audited") !=
                                           std::string::npos;
                                  }),
            1);
  Truth inexact = long_run();
  inexact.capabilities.exact_replay = false;
  SimulatedRun none(inexact, by_budget());
  none.start();
  none.train_until(8000);
  EXPECT_EQ(audits(none), 0);
}

// A trainer that promises exact replay and has kernels whose order of sums varies.
TEST(AuditTest, BitsThatNobodyGetsTwiceAreNoFault) {
  Truth truth = long_run();
  truth.inexact = true;
  SimulatedRun run(truth, by_budget());
  run.start();
  run.train_until(30'000);
  EXPECT_THAT(run.directives(""), IsEmpty());
  EXPECT_THAT(run.state.trust.quarantined, IsEmpty());
  ASSERT_THAT(run.decisions("verdict"), SizeIs(1));
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "chance");
  EXPECT_THAT(run.decisions("verdict")[0].sentence, HasSubstr("replay is not exact here"));
  EXPECT_EQ(audits(run), 1) << "and not asked again";
}

// Whom should one believe?
TEST(AuditTest, WhereNobodyCouldSettleADifferenceNoneIsAsked) {
  Truth truth = long_run();
  truth.verifiers = {"v1:1"};
  SimulatedRun run(truth, by_budget());
  run.start();
  run.train_until(8000);
  EXPECT_EQ(audits(run), 0);
}

TEST(AuditTest, AnExactDistanceOfWindowsHasAudits) {
  SimulatedRun run(long_run(), scenario_policy());
  run.start();
  run.train_until(2000);
  run.drain();
  const int64_t expected = windows(run) / kAuditEvery;
  EXPECT_NEAR(static_cast<double>(audits(run)), static_cast<double>(expected), 1);
}

// A verifier whose FP8 replays alone are wrong is never asked for one in a quiet run, but by these.
TEST(AuditTest, AVerifierThatIsWrongInFp8AloneIsNamedBeforeItIsNeeded) {
  Truth truth = long_run();
  truth.bad_verifier = "v2:2";
  truth.damage = [](int64_t, const std::set<std::string>&) { return 0.0; };
  SimulatedRun run(truth, scenario_policy());
  run.start();
  run.train_until(1000);
  EXPECT_THAT(run.state.trust.quarantined, ElementsAre("v2:2"));
  EXPECT_THAT(run.directives(""), IsEmpty());
}

}  // namespace
}  // namespace gnomon::decide

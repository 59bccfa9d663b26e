#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

TEST(ScenarioTest, AHealthyRunOf200WindowsIsLeftAlone) {
  Truth truth;
  truth.total_steps = 4000;
  SimulatedRun run(truth, scenario_policy());
  run.start();
  run.train_until(4000);
  run.drain();
  EXPECT_EQ(run.closed("quiet"), 200);
  EXPECT_THAT(run.decisions(""), IsEmpty());
  EXPECT_THAT(run.directives(""), IsEmpty());
  EXPECT_EQ(run.state.last_verified->step, 4000);
  EXPECT_EQ(run.state.watch.windows_judged, 200);
  EXPECT_EQ(phase_name(run.state), "watching");
}

TEST(ScenarioTest, AnFp8OnlyFaultIsCaughtExplainedPinnedAndFp8ComesBackWhenItIsGone) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 400), scenario_policy());
  run.start();
  run.train_until_phase("triage", 300);
  ASSERT_THAT(run.decisions("alarm"), SizeIs(1));
  EXPECT_THAT(run.decisions("alarm")[0].sentence, HasSubstr("held-out loss is 4.0"));
  EXPECT_EQ(run.state.investigation->evidence.trigger, "gap");
  run.train_until_phase("attribution", 300);
  ASSERT_THAT(run.decisions("verdict"), SizeIs(1));
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "fp8_numerics");
  EXPECT_THAT(run.decisions("verdict")[0].sentence, HasSubstr("same bits"));
  run.train_until_phase("containing", 300);
  ASSERT_THAT(run.decisions("attribution"), SizeIs(1));
  EXPECT_THAT(run.decisions("attribution")[0].sites, ElementsAre(kGuilty));
  ASSERT_THAT(run.directives("rollback"), SizeIs(1));
  const IssueDirective rollback = run.directives("rollback")[0];
  EXPECT_EQ(rollback.to_step, 200);
  EXPECT_EQ(rollback.plan_version, 2);
  EXPECT_THAT(rollback.plan, HasSubstr(kGuilty));
  run.train_until_phase("contained", 400);
  ASSERT_THAT(run.decisions("recovered"), SizeIs(1));
  EXPECT_THAT(run.decisions("recovered")[0].sentence, HasSubstr("Steps 200–220"))
      << "the rollback's base";
  EXPECT_NEAR(run.damage, 0, 1e-9);
  run.train_until(800);
  run.drain();
  const auto probes = run.decisions("probe");
  ASSERT_GE(probes.size(), 4u);
  EXPECT_THAT(probes.front().sentence, HasSubstr("failed"));
  EXPECT_THAT(probes[probes.size() - 2].sentence, HasSubstr("passed"));
  EXPECT_THAT(probes.back().sentence, HasSubstr("passed"));
  ASSERT_THAT(run.decisions("return"), SizeIs(1));
  EXPECT_TRUE(run.decisions("return")[0].enforced);
  ASSERT_THAT(run.directives("set_plan"), SizeIs(1));
  EXPECT_EQ(run.directives("set_plan")[0].plan_version, 1);
  EXPECT_EQ(run.directives("set_plan")[0].plan, run.state.run.base_plan);
  EXPECT_EQ(phase_name(run.state), "watching");
  EXPECT_THAT(run.directives(""), SizeIs(2));
  EXPECT_NEAR(run.damage, 0, 1e-9);
}

TEST(ScenarioTest, AFailedProbeMakesTheNextOneWaitLonger) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 1000000), scenario_policy());
  run.start();
  run.train_until(3000);
  const auto probes = run.decisions("probe");
  ASSERT_GE(probes.size(), 4u);
  int64_t last_failed = 0;
  int64_t last_wait = 0;
  for (const auto& probe : probes) {
    EXPECT_THAT(probe.sentence, HasSubstr("failed"));
    if (last_failed > 0 && probe.step - last_failed > 60) {
      EXPECT_GE(probe.step - last_failed, last_wait);
      last_wait = probe.step - last_failed;
    }
    last_failed = probe.step;
  }
  EXPECT_LE(probes.size(), 14u) << "two at a time after 2, 4, 8, 16, 32 and 64 quiet windows";
  EXPECT_EQ(run.state.wait_windows, 64);
  EXPECT_THAT(run.decisions("return"), IsEmpty());
}

TEST(ScenarioTest, AMildFaultThatLastsDoesNotPassForHealthy) {
  // 0.4% a window, which is less than what would be accepted.
  Truth truth = numerical_fault({kGuilty}, 401, 1000000, 0.02);
  truth.total_steps = 4000;
  SimulatedRun run(truth, scenario_policy());
  run.start();
  run.train_until(4000);
  EXPECT_GE(run.decisions("probe").size(), 4u);
  EXPECT_THAT(run.decisions("return"), IsEmpty());
  EXPECT_THAT(run.decisions("action"), SizeIs(1));
}

TEST(ScenarioTest, Fp8ComesBackOnceTheProbesHaveGivenEnoughEvidence) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 260),
                   with([](Policy& p) { p.returning.evidence = 1e6; }));
  run.start();
  run.train_until(1000);
  EXPECT_GT(run.decisions("probe").size(), 2u) << "two passed, and that was not enough";
  EXPECT_THAT(run.decisions("return"), SizeIs(1));
}

TEST(ScenarioTest, WhatOneWindowShowedIsRolledBackByOneWindow) {
  SimulatedRun run(numerical_fault({kGuilty}, 601, 1000),
                   with([](Policy& p) { p.ladder.from = "evidence"; }));
  run.start();
  run.train_until(1000);
  ASSERT_GE(run.directives("rollback").size(), 1u);
  EXPECT_EQ(run.directives("rollback")[0].to_step, 600);
  EXPECT_THAT(run.directives("rollback")[0].reason, Not(HasSubstr("began to rise")));
}

TEST(ScenarioTest, ABurstEndsWithTheActionThatItLedTo) {
  SimulatedRun run(numerical_fault({kGuilty}, 401, 2000), with([](Policy& p) {
                     p.ladder.from = "here";
                     p.window.every = 40;
                   }));
  run.start();
  run.train_until_phase("containing", 1000);
  EXPECT_EQ(run.state.watch.burst_left, 0);
}

TEST(ScenarioTest, ARelapseAfterAReturnStartsAtTheLongerWait) {
  Truth truth;
  truth.damage = [](int64_t step, const std::set<std::string>& fp8) {
    const bool on = (step >= 201 && step < 260) || (step >= 500 && step < 560);
    return on && fp8.contains(kGuilty) ? 0.2 : 0.0;
  };
  SimulatedRun run(truth, scenario_policy());
  run.start();
  run.train_until(499);
  ASSERT_THAT(run.decisions("return"), SizeIs(1));
  const int64_t after_return = run.state.wait_windows;
  EXPECT_GT(after_return, run.policy.returning.quiet_windows);
  run.train_until(600);
  ASSERT_THAT(run.decisions("attribution"), SizeIs(2));
  EXPECT_GE(run.state.wait_windows, after_return);
}

TEST(ScenarioTest, TwoGuiltySitesAreBothPinned) {
  const SimulatedRun run = run_scenario("TwoSites");
  ASSERT_GE(run.decisions("attribution").size(), 1u);
  EXPECT_THAT(run.decisions("attribution")[0].sites, UnorderedElementsAre(kGuilty, "lm_head"));
  EXPECT_THAT(run.directives("rollback"), SizeIs(1));
}

TEST(ScenarioTest, ASpikeThatBf16SharesIsNotBlamedOnFp8) {
  const SimulatedRun run = run_scenario("GenericSpike");
  ASSERT_THAT(run.decisions("verdict"), SizeIs(1));
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "generic_spike");
  EXPECT_THAT(run.decisions("alarm"), SizeIs(1));
  EXPECT_THAT(run.decisions("action"), IsEmpty());
  EXPECT_THAT(run.directives(""), IsEmpty());
}

TEST(ScenarioTest, ASpikeOfFp8AloneIsAttributedAndPinned) {
  const SimulatedRun run = run_scenario("Fp8Spike");
  ASSERT_GE(run.decisions("attribution").size(), 1u);
  EXPECT_THAT(run.decisions("attribution")[0].sites, ElementsAre(kGuilty));
  ASSERT_GE(run.directives("rollback").size(), 1u);
  EXPECT_LT(run.directives("rollback")[0].to_step, 333);
}

// What is kept lies thousands of steps back there.
TEST(ScenarioTest, ReplaysOfAnIncidentStayShortWhereWindowsAreSparse) {
  Truth truth = numerical_fault({kGuilty}, 6001, 6500, 1);
  truth.total_steps = 10'000;
  SimulatedRun run(truth, with([](Policy& policy) { policy.window.every = 2000; }));
  run.start();
  run.train_until(7000);
  run.drain();
  EXPECT_EQ(run.decisions("verdict").front().verdict, "fp8_numerics");
  bool nudged = false;
  for (const Effect& effect : run.effects) {
    if (const auto* order = std::get_if<OrderReplay>(&effect)) nudged |= order->nudge != 0;
    if (const auto* open = std::get_if<OpenWindow>(&effect)) {
      EXPECT_LE(open->steps, 420) << "window " << open->window;
    }
  }
  EXPECT_TRUE(nudged) << "from afar";
}

TEST(ScenarioTest, ASpikeOfWeightsThatFp8HadSpoiltIsNotTakenForAGenericOne) {
  const SimulatedRun run = run_scenario("SpoiltWeights");
  ASSERT_GE(run.decisions("verdict").size(), 1u);
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "fp8_numerics");
  ASSERT_GE(run.decisions("attribution").size(), 1u);
  EXPECT_THAT(run.decisions("attribution")[0].sites, ElementsAre(kGuilty));
  ASSERT_GE(run.directives("rollback").size(), 1u);
  EXPECT_LE(run.directives("rollback")[0].to_step, 310);
  EXPECT_NEAR(run.damage, 0, 1e-9);
}

TEST(ScenarioTest, ANanOfFp8AloneIsRolledBackAndPinned) {
  const SimulatedRun run = run_scenario("NanInFp8");
  ASSERT_GE(run.decisions("alarm").size(), 1u);
  EXPECT_THAT(run.decisions("alarm")[0].sentence, HasSubstr("not finite"));
  ASSERT_GE(run.decisions("attribution").size(), 1u);
  EXPECT_THAT(run.decisions("attribution")[0].sites, ElementsAre(kGuilty));
  EXPECT_TRUE(std::isfinite(run.damage));
}

TEST(ScenarioTest, ANanThatBf16SharesLeadsToNoAction) {
  const SimulatedRun run = run_scenario("NanInBoth");
  ASSERT_GE(run.decisions("verdict").size(), 1u);
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "generic_spike");
  EXPECT_THAT(run.directives(""), IsEmpty());
  EXPECT_THAT(run.decisions("alarm"), SizeIs(1));
  EXPECT_THAT(run.decisions("instrument"), IsEmpty()) << "said once is enough";
}

TEST(ScenarioTest, ObserveModeSaysWhatItWouldHaveDoneOnceAndDoesNothing) {
  const SimulatedRun run = run_scenario("Observe");
  ASSERT_THAT(run.decisions("action"), SizeIs(1));
  EXPECT_FALSE(run.decisions("action")[0].enforced);
  EXPECT_EQ(run.decisions("action")[0].action, "pin");
  EXPECT_THAT(run.decisions("action")[0].sentence, HasSubstr("enforced it would be"));
  EXPECT_THAT(run.decisions("action")[0].sites, ElementsAre(kGuilty));
  EXPECT_THAT(run.directives(""), IsEmpty());
  EXPECT_GT(run.closed("alarm"), 5);
}

TEST(ScenarioTest, FromHereKeepsTheStepsAndChangesOnlyThePlan) {
  const SimulatedRun run = run_scenario("Here");
  EXPECT_THAT(run.directives("rollback"), IsEmpty());
  ASSERT_THAT(run.directives("set_plan"), SizeIs(1));
  EXPECT_EQ(run.steps_lost, 0);
  EXPECT_THAT(run.decisions("recovered"), SizeIs(1));
}

TEST(ScenarioTest, WhenSitesCannotBeIsolatedTheWholeRunGoesToBf16AndComesBack) {
  const SimulatedRun run = run_scenario("TooManySites");
  ASSERT_GE(run.decisions("attribution").size(), 1u);
  EXPECT_THAT(run.decisions("attribution")[0].sites, IsEmpty());
  ASSERT_GE(run.decisions("action").size(), 1u);
  EXPECT_EQ(run.decisions("action")[0].action, "bf16");
  EXPECT_THAT(run.decisions("recovered"), SizeIs(1));
  EXPECT_THAT(run.decisions("return"), SizeIs(1));
}

TEST(ScenarioTest, TheLadderMayBeginWithBf16AndThenNoAttributionIsPaidFor) {
  const SimulatedRun run = run_scenario("StraightToBf16");
  EXPECT_EQ(run.orders("attribution"), 0);
  EXPECT_EQ(run.decisions("action")[0].action, "bf16");
  EXPECT_THAT(run.decisions("return"), SizeIs(1));
  EXPECT_NEAR(run.damage, 0, 1e-9);
}

TEST(ScenarioTest, InBf16NoShadowIsPaidForAndProbesDecide) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 100000),
                   with([](Policy& p) { p.ladder.rungs = {"bf16"}; }));
  run.start();
  run.train_until_phase("contained", 400);
  const int64_t shadows = run.orders("shadow");
  run.train_until(700);
  EXPECT_EQ(run.orders("shadow"), shadows);
  EXPECT_GT(run.orders("probe"), 0);
  EXPECT_GT(run.state.last_verified->step, 600);
}

// First one site is guilty and, once it is pinned, another.
Truth moving_fault() {
  Truth truth;
  truth.damage = [](int64_t step, const std::set<std::string>& fp8) {
    if (step < 201) return 0.0;
    return fp8.contains(kGuilty) || (step >= 301 && fp8.contains("lm_head")) ? 0.2 : 0.0;
  };
  return truth;
}

TEST(ScenarioTest, ASecondAlarmOfARunWithPinnedSitesSearchesAgainAndKeepsThem) {
  SimulatedRun run(moving_fault(), scenario_policy());
  run.start();
  run.train_until(600);
  const auto actions = run.decisions("action");
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(actions[0].action, "pin");
  EXPECT_EQ(actions[1].action, "pin");
  ASSERT_THAT(run.decisions("attribution"), SizeIs(2));
  EXPECT_THAT(run.decisions("attribution")[1].sites, ElementsAre("lm_head"));
  ASSERT_TRUE(run.state.containment);
  EXPECT_THAT(run.state.containment->sites, ElementsAre("lm_head", kGuilty));
  EXPECT_NEAR(run.damage, 0, 1e-9);
}

TEST(ScenarioTest, ASecondAlarmClimbsToBf16WhenNoMoreSitesMayBePinned) {
  SimulatedRun run(moving_fault(), with([](Policy& p) { p.attribution.sites_max = 1; }));
  run.start();
  run.train_until(600);
  const auto actions = run.decisions("action");
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(actions[0].action, "pin");
  EXPECT_EQ(actions[1].action, "bf16");
  EXPECT_THAT(run.decisions("attribution"), SizeIs(1));
  EXPECT_NEAR(run.damage, 0, 1e-9);
}

TEST(ScenarioTest, AboveTheLastRungARunIsHeld) {
  SimulatedRun run(moving_fault(), with([](Policy& p) {
                     p.ladder.rungs = {"pin"};
                     p.attribution.sites_max = 1;
                   }));
  run.start();
  run.train_until(600);
  const auto actions = run.decisions("action");
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(actions[1].action, "hold");
  EXPECT_TRUE(run.paused);
  EXPECT_EQ(phase_name(run.state), "holding");
}

TEST(ScenarioTest, WithoutActionsLeftTheRunIsPausedForAPerson) {
  const SimulatedRun run = run_scenario("NoActionsLeft");
  ASSERT_THAT(run.directives(""), SizeIs(1));
  EXPECT_EQ(run.directives("")[0].kind, "pause");
  EXPECT_TRUE(run.paused);
  EXPECT_THAT(run.decisions("action")[0].sentence, HasSubstr("a person must look"));
  EXPECT_THAT(run.decisions("action")[0].sentence, HasSubstr("limit of 0"));
}

TEST(ScenarioTest, TheSameStepIsGoneBackToOnlySoOftenAndThenAHostIsLookedAt) {
  // Every attempt takes a flip soon after its base: replays never reproduce it.
  Truth truth;
  SimulatedRun run(truth, with([](Policy& p) { p.triage.transients_max = 100; }));
  run.start();
  run.train_until(200);
  run.drain();
  int64_t to_step = run.state.last_verified->step;
  for (int attempt = 0; attempt < 6 && !run.paused; ++attempt) {
    // A transient fault in the next window of this attempt.
    run.flip_next();
    const size_t before = run.directives("").size();
    while (run.directives("").size() == before && run.step < 1000) run.advance();
  }
  const auto directives = run.directives("");
  ASSERT_GE(directives.size(), 3u);
  EXPECT_EQ(directives[0].kind, "rollback");
  EXPECT_EQ(directives[0].to_step, to_step);
  EXPECT_EQ(directives[1].kind, "rollback");
  EXPECT_EQ(directives[1].to_step, to_step);
  EXPECT_EQ(directives[2].kind, "pause");
  EXPECT_THAT(run.decisions("action")[2].sentence, HasSubstr("gone back to 2 time(s) already"));
  EXPECT_THAT(run.decisions("action")[2].sentence, HasSubstr("BF16 mends no machine"));
  EXPECT_EQ(run.decisions("action")[2].action, "hold");
}

TEST(ScenarioTest, ACrashDuringAttributionDoesNotLoseTheCase) {
  const SimulatedRun run = run_scenario("Crash");
  ASSERT_GE(run.decisions("attribution").size(), 1u);
  EXPECT_THAT(run.decisions("attribution")[0].sites, ElementsAre(kGuilty));
  ASSERT_GE(run.directives("rollback").size(), 1u);
  EXPECT_NEAR(run.damage, 0, 1e-9);
}

TEST(ScenarioTest, OneWindowFarOutIsEnoughOnceNudgedPairsHaveRuledOutChance) {
  const SimulatedRun run = run_scenario("Jump");
  ASSERT_THAT(run.decisions("alarm"), SizeIs(1));
  const RecordDecision alarm = run.decisions("alarm")[0];
  EXPECT_THAT(alarm.sentence, HasSubstr("steps 400–420"));
  EXPECT_THAT(alarm.sentence, HasSubstr("deviations over"));
  EXPECT_THAT(run.decisions("verdict")[0].evidence, HasSubstr("bf16_nudged"));
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "fp8_numerics");
  EXPECT_THAT(run.decisions("action")[0].sites, ElementsAre(kGuilty));
  EXPECT_NEAR(run.damage, 0, 1e-9);
}

TEST(ScenarioTest, WhereChanceIsNotAskedOneWindowFarOutIsNoAlarm) {
  for (const double deviations : {5.0, 0.0}) {
    SimulatedRun run(numerical_fault({kGuilty}, 401, 1000, 0.035), with([&](Policy& p) {
                       p.triage.pairs = deviations > 0 ? 0 : 3;
                       p.detector.jump_deviations = deviations;
                     }));
    run.start();
    run.train_until(1000);
    run.drain();
    ASSERT_FALSE(run.decisions("alarm").empty());
    EXPECT_THAT(run.decisions("alarm")[0].sentence, HasSubstr("evidence of"));
    EXPECT_GT(run.decisions("alarm")[0].step, 420);
  }
}

TEST(ScenarioTest, AWindowThatChanceMadeLeadsToNothing) {
  const SimulatedRun run = run_scenario("WildNoise");
  EXPECT_GT(run.decisions("alarm").size(), 0u) << "the noise reaches the ceiling";
  for (const auto& verdict : run.decisions("verdict")) EXPECT_EQ(verdict.verdict, "chance");
  EXPECT_THAT(run.decisions("action"), IsEmpty());
  EXPECT_THAT(run.directives(""), IsEmpty());
}

TEST(ScenarioTest, AnOffsetThatDriftsChangesTheRecipeAndLosesNoStep) {
  const SimulatedRun run = run_scenario("Drift");
  ASSERT_GE(run.decisions("verdict").size(), 1u);
  EXPECT_EQ(run.decisions("verdict")[0].verdict, "scale_drift");
  ASSERT_THAT(run.directives("set_plan"), SizeIs(1));
  EXPECT_THAT(run.directives("set_plan")[0].plan, HasSubstr("recipe = \"mx\""));
  EXPECT_EQ(run.steps_lost, 0);
}

TEST(ScenarioTest, AnOffsetThatMovesSlowlyAsARunLearnsIsNoDrift) {
  Truth truth;
  truth.total_steps = 4000;
  truth.drift = [](int64_t step) { return 0.2 * static_cast<double>(step) / 4000; };
  SimulatedRun run(truth, scenario_policy());
  run.start();
  run.train_until(4000);
  run.drain();
  EXPECT_THAT(run.decisions("verdict"), IsEmpty());
}

TEST(ScenarioTest, AnotherPlanHasAnOffsetOfItsOwn) {
  Truth truth = numerical_fault({kGuilty}, 201, 400);
  truth.pinned_offset_percent = 0.01;
  truth.offset_percent = 0.4;
  SimulatedRun run(truth, scenario_policy());
  run.start();
  run.train_until(1000);
  run.drain();
  EXPECT_THAT(run.decisions("return"), SizeIs(1));
  EXPECT_THAT(run.decisions("verdict"), SizeIs(1)) << "of the fault";
}

TEST(ScenarioTest, WithoutARecipeOnTheLadderADriftIsRecordedOnly) {
  const SimulatedRun run = run_scenario("DriftNoRecipe");
  ASSERT_GE(run.decisions("verdict").size(), 1u);
  EXPECT_THAT(run.decisions("action"), IsEmpty());
  EXPECT_THAT(run.directives(""), IsEmpty());
  EXPECT_EQ(phase_name(run.state), "ended");
}

TEST(ScenarioTest, ASlowBiasIsFoundByLongForksBeforeShortWindowsSeeIt) {
  // 0.0015% a step: 0.03% in a window, under its noise; 0.3% in a long fork.
  Truth truth = numerical_fault({kGuilty}, 1, 100000, 0.0015);
  truth.total_steps = 8000;
  const auto first_alarm = [&](int64_t long_steps) {
    SimulatedRun run(truth, with([&](Policy& p) {
                       p.window.long_steps = long_steps;
                       p.window.long_every = std::max<int64_t>(long_steps, 200);
                       p.detector.accept_percent = 0.1;
                     }));
    run.start();
    while (run.decisions("alarm").empty() && run.step < 8000) run.advance();
    return run.step;
  };
  EXPECT_LT(first_alarm(200), first_alarm(0));
}

TEST(ScenarioTest, AttributionByScoresFindsTheSiteInAFewReplays) {
  const SimulatedRun run = run_scenario("FaultPinReturn");
  EXPECT_EQ(run.orders("attribution"), 4)
      << "scores, one rescue that recovers, its neighbour, and the rescue by another source";
}

TEST(ScenarioTest, ASiteThatAloneMakesTheLossNotFiniteIsTriedFirst) {
  const SimulatedRun run = run_scenario("NanInFp8");
  ASSERT_THAT(run.decisions("attribution"), SizeIs(1));
  EXPECT_THAT(run.decisions("attribution")[0].sites, ElementsAre(kGuilty));
  EXPECT_LE(run.orders("attribution"), 4)
      << "scores, one rescue that recovers, its neighbour, and the rescue by another source";
}

}  // namespace
}  // namespace gnomon::decide

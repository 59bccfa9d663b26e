// Scenarios in which a person interferes, or the trainer does not do as it is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Policy enforcing(std::vector<std::string> rungs = {"pin", "bf16", "hold"}) {
  return with([&](Policy& policy) {
    policy.ladder.rungs = std::move(rungs);
    policy.instrument.every = 0;
    policy.triage.pairs = 0;
  });
}

std::vector<std::string> kinds(const SimulatedRun& run) {
  std::vector<std::string> result;
  for (const IssueDirective& directive : run.directives("")) result.push_back(directive.kind);
  return result;
}

std::vector<EndDirective> ended(const SimulatedRun& run) {
  std::vector<EndDirective> result;
  for (const Effect& effect : run.effects) {
    if (const auto* end = std::get_if<EndDirective>(&effect)) result.push_back(*end);
  }
  return result;
}

std::string last_sentence(const SimulatedRun& run, const std::string& kind) {
  const auto decisions = run.decisions(kind);
  return decisions.empty() ? "" : decisions.back().sentence;
}

// FP8 of one site is harmful from step 201 to 222.
Truth bad_for_a_while() {
  Truth truth;
  truth.damage = [](int64_t step, const std::set<std::string>& fp8) {
    return step > 200 && step <= 222 && fp8.contains(kGuilty) ? 0.2 : 0.0;
  };
  return truth;
}

// A trainer of others' may not know after a restart that it was told to stand still.
TEST(OverrideScenario, AnAttemptOfAHeldRunIsPausedTooUntilAPersonResumes) {
  SimulatedRun run(bad_for_a_while(), enforcing({"hold"}));
  run.start();
  run.train_until(400);
  ASSERT_EQ(phase_name(run.state), "holding");
  const size_t pauses = run.directives("").size();
  for (size_t restarts = 1; restarts <= 2; ++restarts) {
    run.restart_from(run.step / 10 * 10);
    run.obey();
    EXPECT_THAT(run.directives(""), SizeIs(pauses + restarts));
    EXPECT_EQ(run.directives("").back().kind, "pause");
    EXPECT_TRUE(run.paused);
    EXPECT_EQ(phase_name(run.state), "holding");
    EXPECT_THAT(last_sentence(run, "directive"), HasSubstr("still on hold"));
    EXPECT_EQ(run.state.actions, 1) << "it is the same action";
  }
  run.ask("resume");
  run.obey();
  EXPECT_FALSE(run.paused);
  EXPECT_EQ(phase_name(run.state), "watching");
  run.restart_from(run.step / 10 * 10);
  run.obey();
  EXPECT_FALSE(run.paused) << "the hold is over";
}

// What a person orders comes first; when it is over, the hold counts again.
TEST(OverrideScenario, AnAttemptOfAHeldRunIsPausedWhenWhatAPersonOrderedIsOver) {
  const std::pair<const char*, const char*> orders[] = {
      {"silence", ""},
      {"mode", "observe"},
      {"set_plan", "[[rule]]\nmatch = \"*\"\ngemms = \"bf16\"\n"}};
  for (const auto& [kind, what] : orders) {
    SimulatedRun run(bad_for_a_while(), enforcing({"hold"}));
    run.start();
    run.train_until(400);
    ASSERT_EQ(phase_name(run.state), "holding");
    const auto pauses = [&] { return std::ranges::count(kinds(run), "pause"); };
    const auto before = pauses();
    run.ask(kind, 30, what);
    run.obey();
    run.restart_from(run.step / 10 * 10);
    run.obey();
    run.paused = false;  // a trainer that has forgotten it
    EXPECT_EQ(pauses(), before) << kind << ": nothing automatic while it is in force";
    run.train_until(run.step + 100);
    EXPECT_TRUE(run.paused) << kind << " is over";
    EXPECT_EQ(pauses(), before + 1) << kind;
    EXPECT_EQ(phase_name(run.state), "holding");
    EXPECT_THAT(last_sentence(run, "directive"), HasSubstr("attempt 2 is paused too"));
  }
}

TEST(OverrideScenario, AHeldRunGoesOnWhenAPersonResumesItAndIsWatchedAgain) {
  // Steps 201–222 and 601–660 are bad; the policy holds at once.
  Truth truth;
  truth.damage = [](int64_t step, const std::set<std::string>& fp8) {
    const bool bad = (step > 200 && step <= 222) || (step > 600 && step <= 660);
    return bad && fp8.contains(kGuilty) ? 0.2 : 0.0;
  };
  SimulatedRun run(truth, enforcing({"hold"}));
  run.start();
  run.train_until(400);
  ASSERT_TRUE(run.paused);
  const int64_t held_at = run.step;
  EXPECT_EQ(phase_name(run.state), "holding");
  EXPECT_EQ(run.state.actions, 1);
  run.ask("resume");
  EXPECT_THAT(last_sentence(run, "override"),
              AllOf(HasSubstr("anna"), HasSubstr("because"), HasSubstr("the hold ends"),
                    HasSubstr("automatic actions (1 of 8) starts again")));
  EXPECT_EQ(phase_name(run.state), "holding") << "until the trainer has resumed";
  run.obey();
  EXPECT_FALSE(run.paused);
  EXPECT_EQ(phase_name(run.state), "watching");
  EXPECT_EQ(run.state.actions, 0);
  run.train_until(600);
  EXPECT_FALSE(run.paused);
  EXPECT_THAT(run.decisions("alarm"), SizeIs(1)) << "what lies before the hold is history";
  run.train_until(700);
  EXPECT_TRUE(run.paused) << "and the next fault is caught";
  EXPECT_GT(run.step, held_at);
  EXPECT_EQ(run.state.actions, 1);
}

TEST(OverrideScenario, APauseByAPersonIsInTheAccount) {
  SimulatedRun run(Truth(), enforcing());
  run.start();
  run.train_until(100);
  run.ask("pause");
  run.obey();
  ASSERT_TRUE(run.paused);
  run.wait(69);
  run.ask("resume");
  run.obey();
  run.train_until(110);
  EXPECT_EQ(run.state.money.account.holds, 1);
  EXPECT_NEAR(run.state.money.account.hold_seconds, 69, 5);
}

TEST(OverrideScenario, AWindowFromBeforeTheHoldRaisesNoNewAlarmAfterIt) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 236), enforcing({"hold"}));
  run.start();
  run.train_until(201);
  while (run.step < 245) run.train_one_step();
  run.train_until(300);
  ASSERT_TRUE(run.paused);
  // The verifiers rested, so that a damaged window is still to be measured when the run is held.
  ASSERT_FALSE(run.state.windows.empty());
  EXPECT_EQ(run.state.windows.back().start.step, 220);
  run.ask("resume");
  run.obey();
  const size_t alarms = run.decisions("alarm").size();
  const int64_t closed = run.closed("alarm");
  run.train_until(600);
  run.drain();
  EXPECT_EQ(run.closed("alarm"), closed + 1) << "its gap is over the tolerance all the same";
  EXPECT_EQ(run.decisions("alarm").size(), alarms);
  EXPECT_EQ(phase_name(run.state), "watching");
  EXPECT_GT(run.state.last_verified->step, 500);
}

TEST(OverrideScenario, AHoldAboveAPinEndsInThatPinAndFp8ComesBackFromThere) {
  Truth truth;
  truth.damage = [](int64_t step, const std::set<std::string>& fp8) {
    if (step < 201 || step > 330) return 0.0;
    return fp8.contains(kGuilty) || (step >= 301 && fp8.contains("lm_head")) ? 0.2 : 0.0;
  };
  Policy policy = enforcing({"pin"});
  policy.attribution.sites_max = 1;
  SimulatedRun run(truth, policy);
  run.start();
  run.train_until(600);
  ASSERT_EQ(phase_name(run.state), "holding");
  run.ask("resume");
  run.obey();
  ASSERT_TRUE(run.state.containment.has_value());
  EXPECT_EQ(run.state.containment->rung, "pin");
  EXPECT_THAT(run.state.containment->sites, ::testing::ElementsAre(kGuilty));
  run.train_until(900);
  EXPECT_THAT(run.decisions("return"), SizeIs(1));
  EXPECT_EQ(phase_name(run.state), "watching");
}

TEST(OverrideScenario, ATrainerThatIgnoresADirectiveIsToldOfAndTheCoreGoesOn) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 100000),
                   with([](Policy& policy) { policy.directives.timeout_seconds = 50; }));
  run.ignores = {"rollback", "pause"};
  run.start();
  run.train_until(600);
  const auto expired = ended(run);
  ASSERT_GE(expired.size(), 4u) << "the rollback, two older ones and the pause";
  EXPECT_EQ(expired[0].number, run.directives("rollback")[0].number);
  EXPECT_THAT(run.decisions("directive")[0].sentence,
              AllOf(HasSubstr("rollback to step 200"), HasSubstr("within 50 seconds"),
                    HasSubstr("has expired")));
  const auto rollbacks = run.directives("rollback");
  ASSERT_EQ(rollbacks.size(), 3u);
  EXPECT_LT(rollbacks[1].to_step, rollbacks[0].to_step);
  EXPECT_LT(rollbacks[2].to_step, rollbacks[1].to_step);
  EXPECT_EQ(run.directives("pause").size(), 1u);
  EXPECT_EQ(phase_name(run.state), "holding");
  EXPECT_FALSE(run.state.directive.has_value());
}

TEST(OverrideScenario, ASilentTrainerIsToldOfOnceAndItsDirectiveStays) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 460), scenario_policy());
  run.ignores = {"rollback"};
  run.start();
  run.train_until_phase("containing", 400);
  run.wait(5000);
  ASSERT_THAT(run.decisions("directive"), SizeIs(1));
  EXPECT_THAT(last_sentence(run, "directive"), HasSubstr("reported no step since"));
  EXPECT_THAT(ended(run), IsEmpty());
  EXPECT_GT(next_deadline(run.state), run.now);
  run.ignores.clear();
  run.obey_late();
  run.train_until_phase("contained", 400);
  EXPECT_THAT(run.decisions("recovered"), SizeIs(1));
}

TEST(OverrideScenario, ATrainerThatCarriesOutAnExpiredReturnIsBelieved) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 300), enforcing({"bf16"}));
  run.start();
  run.train_until_phase("contained", 400);
  run.ignores = {"set_plan"};
  while (run.ignored.empty() && run.step < 900) run.advance();
  run.train_until(run.step + 2);
  run.wait(700);
  ASSERT_THAT(ended(run), SizeIs(1));
  EXPECT_NE(phase_name(run.state), "watching");
  run.obey_late();
  EXPECT_THAT(last_sentence(run, "directive"), HasSubstr("that is what counts"));
  EXPECT_EQ(phase_name(run.state), "watching");
  EXPECT_EQ(run.state.plan_version, 1);
  run.ignores.clear();
  run.train_until(1200);
  EXPECT_EQ(run.orders("shadow") > 0, true);
}

TEST(OverrideScenario, ALateRollbackEndsTheOneThatWasToReplaceIt) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 460),
                   with([](Policy& policy) { policy.directives.timeout_seconds = 20; }));
  run.ignores = {"rollback"};
  run.start();
  while (run.directives("rollback").size() < 2 && run.step < 400) run.advance();
  ASSERT_THAT(run.directives("rollback"), SizeIs(2));
  run.ignored.resize(1);
  run.ignores.clear();
  run.obey_late();
  EXPECT_THAT(ended(run), SizeIs(2));
  EXPECT_FALSE(run.state.directive.has_value());
  run.train_until_phase("contained", 400);
  EXPECT_THAT(run.decisions("recovered"), SizeIs(1));
  EXPECT_NEAR(run.damage, 0, 1e-9);
}

TEST(OverrideScenario, WhileSilencedWindowsAreMeasuredAlarmsRecordedAndNothingFollows) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 100000), scenario_policy());
  run.start();
  run.train_until(210);
  const double until = run.now + 400;
  run.ask("silence", 400);
  const int64_t triage = run.orders("triage");
  while (run.now < until - 5) run.advance();
  EXPECT_EQ(run.orders("triage"), triage);
  EXPECT_THAT(run.directives(""), IsEmpty());
  const auto alarms = run.decisions("alarm");
  ASSERT_GE(alarms.size(), 3u);
  for (const RecordDecision& alarm : alarms) {
    EXPECT_EQ(alarm.action, "none");
    EXPECT_THAT(alarm.sentence, HasSubstr("silenced by anna until 1970-01-01 00:"));
    EXPECT_GT(alarm.window, 0);
  }
  EXPECT_GE(run.closed("alarm"), 3);
  while (run.directives("").empty() && run.step < 900) run.advance();
  EXPECT_THAT(run.decisions("override"), SizeIs(2)) << "the silence and its end";
  EXPECT_THAT(last_sentence(run, "override"), HasSubstr("alarms count again"));
  EXPECT_GE(run.directives("").size(), 1u) << "after it the fault is contained";
}

TEST(OverrideScenario, ASilenceEndsTheInvestigationThatIsOpen) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 100000), scenario_policy());
  run.start();
  run.train_until_phase("attribution", 400);
  run.ask("silence", 10000);
  EXPECT_EQ(phase_name(run.state), "watching");
  run.train_until(500);
  EXPECT_THAT(run.directives(""), IsEmpty());
}

TEST(OverrideScenario, AnOperatorsPlanIsKeptUntilItsTimeAndThenTheRunGoesBackToItsOwn) {
  SimulatedRun run(numerical_fault({kGuilty}, 301, 400), scenario_policy());
  run.start();
  run.train_until(250);
  run.ask("set_plan", 400, PrecisionPlan::fp8(Recipe::kDelayed).to_toml());
  const double end = run.now + 399;
  EXPECT_THAT(last_sentence(run, "override"), AllOf(HasSubstr("plan 2"), HasSubstr("until 1970")));
  run.obey();
  EXPECT_EQ(run.state.plan_version, 2);
  while (run.now < end - 5) run.advance();
  EXPECT_THAT(kinds(run), ::testing::ElementsAre("set_plan"));
  ASSERT_GE(run.decisions("alarm").size(), 1u);
  EXPECT_THAT(run.decisions("alarm")[0].sentence, HasSubstr("the plan set by anna is in force"));
  EXPECT_EQ(run.orders("triage"), 0);
  run.train_until(700);
  EXPECT_THAT(kinds(run), ::testing::ElementsAre("set_plan", "set_plan"));
  EXPECT_EQ(run.directives("")[1].plan_version, 1);
  EXPECT_EQ(run.plan(), run.state.run.base_plan);
  EXPECT_THAT(last_sentence(run, "override"), HasSubstr("goes back to plan 1, the run's own"));
  EXPECT_EQ(phase_name(run.state), "watching");
}

TEST(OverrideScenario, AfterAnOperatorsPlanAContainedRunGoesBackToItsContainment) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 100000), scenario_policy());
  run.start();
  run.train_until_phase("contained", 400);
  ASSERT_EQ(run.state.plan_version, 2);
  const std::string pinned = run.plan();
  run.ask("set_plan", 150, PrecisionPlan::bf16().to_toml());
  run.train_until(run.step + 60);
  EXPECT_EQ(run.state.plan_version, 3);
  EXPECT_THAT(run.decisions("probe"), IsEmpty());
  run.train_until(run.step + 200);
  EXPECT_EQ(run.state.plan_version, 2);
  EXPECT_EQ(run.plan(), pinned);
  EXPECT_THAT(run.decisions("override").back().sentence,
              HasSubstr("plan 2, the one in which the last fault is contained"));
  run.train_until(run.step + 300);
  EXPECT_GE(run.decisions("probe").size(), 1u) << "the way back to FP8 goes on";
}

TEST(OverrideScenario, AWindowUnderAnOperatorsPlanRaisesNoAlarmWhenItIsMeasuredLater) {
  SimulatedRun run(numerical_fault({kGuilty}, 261, 300), scenario_policy());
  run.start();
  run.train_until(250);
  run.ask("set_plan", 400, PrecisionPlan::fp8(Recipe::kDelayed).to_toml());
  run.train_until(260);
  while (run.step < 300) run.train_one_step();  // the verifiers rest
  ASSERT_EQ(run.state.plan_version, 2);
  run.wait(next_deadline(run.state) - run.now);
  run.obey();
  ASSERT_EQ(run.state.plan_version, 1);
  ASSERT_GE(run.state.windows.size(), 2u);
  run.train_until(500);
  EXPECT_GE(run.closed("alarm"), 2) << "their gaps are over the tolerance all the same";
  EXPECT_THAT(run.decisions("alarm"), IsEmpty());
  EXPECT_EQ(phase_name(run.state), "watching");
}

TEST(OverrideScenario, AModeIsReplacedUntilItsTime) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 100000), scenario_policy());
  run.start();
  run.train_until(205);
  run.ask("mode", 400, "observe");
  EXPECT_EQ(mode_in_force(run.state, run.policy), Mode::kObserve);
  const double end = run.now + 400;
  while (run.now < end - 5) run.advance();
  EXPECT_THAT(run.directives(""), IsEmpty());
  ASSERT_THAT(run.decisions("action"), SizeIs(1));
  EXPECT_FALSE(run.decisions("action")[0].enforced);
  while (run.directives("").empty() && run.step < 900) run.advance();
  EXPECT_EQ(mode_in_force(run.state, run.policy), Mode::kEnforce);
  ASSERT_GE(run.directives("").size(), 1u);
  EXPECT_TRUE(run.decisions("action")[1].enforced);
}

TEST(OverrideScenario, ARollbackThatIsRefusedGoesFurtherBack) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 460), scenario_policy());
  run.refuses_bases = {200};
  run.start();
  run.train_until_phase("contained", 400);
  const auto rollbacks = run.directives("rollback");
  ASSERT_EQ(rollbacks.size(), 2u);
  EXPECT_EQ(rollbacks[0].to_step, 200);
  EXPECT_EQ(rollbacks[1].to_step, 180);
  EXPECT_EQ(rollbacks[1].plan, rollbacks[0].plan);
  EXPECT_THAT(run.decisions("instrument")[0].sentence, HasSubstr("refused directive 1"));
  EXPECT_THAT(run.decisions("action")[1].sentence, HasSubstr("from step 180"));
  EXPECT_THAT(run.decisions("recovered"), SizeIs(1));
  EXPECT_NEAR(run.damage, 0, 1e-9);
}

TEST(OverrideScenario, ADamagedRunThatCannotGoBackAnywhereIsHeld) {
  Truth flip;
  flip.bit_flips = {333};
  SimulatedRun run(flip, with([](Policy& policy) { policy.triage.transients_max = 100; }));
  run.refuses = {"rollback"};
  run.start();
  run.train_until(1000);
  EXPECT_TRUE(run.paused);
  EXPECT_EQ(phase_name(run.state), "holding");
  const auto rollbacks = run.directives("rollback");
  ASSERT_GE(rollbacks.size(), 3u) << "the newest good checkpoint and the two kept behind it";
  for (size_t i = 1; i < rollbacks.size(); ++i) {
    EXPECT_LT(rollbacks[i].to_step, rollbacks[i - 1].to_step);
  }
  EXPECT_THAT(last_sentence(run, "action"),
              AllOf(HasSubstr("no older good checkpoint is left"), HasSubstr("A person must look"),
                    HasSubstr("restart the run from it")));
  run.ask("resume");
  run.obey();
  EXPECT_EQ(phase_name(run.state), "watching") << "the person took the weights as they are";
  EXPECT_THAT(run.state.rollbacks, IsEmpty());
  run.refuses.clear();
  run.train_until(run.step + 10);
  run.flip_next();
  run.train_until(400);
  const auto again = run.directives("rollback");
  ASSERT_EQ(again.size(), rollbacks.size() + 1);
  EXPECT_EQ(again.back().to_step, 340) << "the window's start: step 320 was refused before";
}

TEST(OverrideScenario, ARollbackThatIsRefusedWhileSilencedIsNotPassedOverInSilence) {
  Truth flip;
  flip.bit_flips = {333};
  SimulatedRun run(flip, scenario_policy());
  run.ignores = {"rollback"};
  run.start();
  run.train_until_phase("containing", 500);
  run.ask("silence", 10000);
  run.feed(DirectiveChanged{run.ignored.at(0).number, "rejected", 1, run.step, "no such file"});
  EXPECT_THAT(
      last_sentence(run, "directive"),
      AllOf(HasSubstr("silenced by anna"), HasSubstr("weights since step"), HasSubstr("in doubt")));
  EXPECT_THAT(run.directives(""), SizeIs(1));
  EXPECT_EQ(phase_name(run.state), "watching");
}

TEST(OverrideScenario, ARunThatEndsFirstEndsItsDirectivesAndLeavesNoWindowOpen) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 460), scenario_policy());
  run.ignores = {"rollback", "checkpoint_now"};
  run.start();
  run.train_until_phase("containing", 400);
  run.ask("checkpoint_now");
  run.train_until(run.step + 40);
  run.end();
  const auto expired = ended(run);
  ASSERT_EQ(expired.size(), 2u);
  EXPECT_EQ(expired[0].state, "expired");
  EXPECT_THAT(expired[0].reason, HasSubstr("ended first"));
  run.drain();
  EXPECT_THAT(run.state.windows, IsEmpty());
  EXPECT_EQ(next_deadline(run.state), std::numeric_limits<double>::infinity());
  run.wait(10000);
  EXPECT_THAT(run.directives("rollback"), SizeIs(1));
}

TEST(OverrideScenario, AnEndedRunThatGoesOnIsNotTakenForContained) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 230), scenario_policy());
  run.ignores = {"rollback"};
  run.start();
  run.train_until_phase("containing", 400);
  run.end("failed");
  run.ignores.clear();
  run.restart_from(run.step / 10 * 10);
  EXPECT_FALSE(run.state.containment) << "the pin was never taken";
}

TEST(OverrideScenario, StopPauseAndResumeGetThroughWhileADirectiveIsOpen) {
  SimulatedRun run(numerical_fault({kGuilty}, 201, 460), scenario_policy());
  run.ignores = {"rollback", "pause", "resume", "stop"};
  run.start();
  run.train_until_phase("containing", 400);
  ASSERT_TRUE(run.state.directive.has_value());
  run.ask("pause");
  run.ask("resume");
  ASSERT_THAT(ended(run), SizeIs(1)) << "the pause is not to be carried out any more";
  run.ask("pause");
  run.ask("stop");
  EXPECT_TRUE(run.state.directive.has_value()) << "the core's own stays open";
  EXPECT_THAT(kinds(run), ::testing::ElementsAre("rollback", "pause", "resume", "pause", "stop"));
  OperatorOverride again{"pause", "", "", "anna", "because", 0};
  EXPECT_THAT(why_not(run.state, again), HasSubstr("told to stop already"));
}

}  // namespace
}  // namespace gnomon::decide

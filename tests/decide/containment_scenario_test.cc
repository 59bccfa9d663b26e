// Scenarios of what an action has to show before it counts: recovery within what is tolerated, no
// way back into damage, and limits that respect what was found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;

// Damage in per cent that a step adds for each site in FP8, from a step on.
struct Harm {
  std::string site;
  int64_t from = 0;
  double percent = 0;
};

Truth harmed(std::vector<Harm> harms) {
  Truth truth;
  truth.damage = [harms](int64_t step, const std::set<std::string>& fp8) {
    double damage = 0;
    for (const Harm& harm : harms) {
      if (step >= harm.from && fp8.contains(harm.site)) damage += harm.percent;
    }
    return damage;
  };
  return truth;
}

SimulatedRun run_of(const Truth& truth, const Policy& policy, int64_t steps = 1000) {
  SimulatedRun run(truth, policy);
  run.start();
  run.train_until(steps);
  return run;
}

std::vector<std::string> actions(const SimulatedRun& run) {
  std::vector<std::string> all;
  for (const RecordDecision& decision : run.decisions("action")) all.push_back(decision.action);
  return all;
}

// Steps that were verified as the ends of windows that lost more than is tolerated.
std::vector<int64_t> harmful_and_verified(const SimulatedRun& run) {
  using End = std::pair<int64_t, int64_t>;  // attempt, step
  std::map<int64_t, End> ends;
  std::map<End, double> lost;
  std::vector<End> verified;
  for (const Effect& effect : run.effects) {
    if (const auto* open = std::get_if<OpenWindow>(&effect); open && open->kind == "shadow")
      ends[open->window] = {open->attempt, open->start_step + open->steps};
    const auto* close = std::get_if<CloseWindow>(&effect);
    if (close != nullptr && close->d_percent && ends.contains(close->window))
      lost[ends.at(close->window)] = *close->d_percent;
    if (const auto* mark = std::get_if<MarkVerified>(&effect))
      verified.emplace_back(mark->attempt, mark->step);
  }
  std::vector<int64_t> wrong;
  for (const End& end : verified) {
    if (lost.contains(end) && lost.at(end) > run.policy.detector.tolerance_percent)
      wrong.push_back(end.second);
  }
  return wrong;
}

TEST(ContainmentScenarioTest, FaultsOfVeryDifferentStrengthAreAllPinned) {
  const std::vector<std::string> sites = {kGuilty, "model.layers.0.mlp.up_proj", "lm_head"};
  for (size_t count : {2u, 3u}) {
    for (size_t strongest = 0; strongest < count; ++strongest) {
      SCOPED_TRACE(testing::Message() << count << " faults, the strongest " << strongest);
      std::vector<Harm> harms;
      std::vector<std::string> guilty;
      for (size_t i = 0; i < count; ++i) {
        harms.push_back({sites[i], 201, i == strongest ? 0.5 : 0.03});
        guilty.push_back(sites[i]);
      }
      const SimulatedRun run = run_of(harmed(harms), scenario_policy());
      EXPECT_THAT(actions(run), ElementsAre("pin"));
      ASSERT_TRUE(run.state.containment);
      EXPECT_EQ(run.state.containment->rung, "pin");
      EXPECT_THAT(run.state.containment->sites, UnorderedElementsAreArray(guilty));
      ASSERT_THAT(run.decisions("recovered"), SizeIs(1));
      EXPECT_LT(run.damage, 0.3);
    }
  }
}

// The second fault begins while the first is answered, and no window of it is an alarm by itself.
TEST(ContainmentScenarioTest, APinAfterWhichWindowsLoseMoreThanIsToleratedIsNoRecovery) {
  for (const double percent : {0.018, 0.025, 0.035}) {
    SCOPED_TRACE(percent);
    const auto second = std::make_shared<bool>(false);
    Truth truth;
    truth.damage = [second, percent](int64_t step, const std::set<std::string>& fp8) {
      const double first = step >= 201 && fp8.contains(kGuilty) ? 0.2 : 0.0;
      return first + (*second && fp8.contains("lm_head") ? percent : 0.0);
    };
    SimulatedRun run(truth, scenario_policy());
    run.start();
    run.train_until_phase("containing", 400);
    *second = true;
    run.train_until(600);
    EXPECT_THAT(actions(run), ElementsAre("pin", "pin"));
    ASSERT_TRUE(run.state.containment);
    EXPECT_THAT(run.state.containment->sites, ElementsAre("lm_head", kGuilty));
    const auto recovered = run.decisions("recovered");
    ASSERT_THAT(recovered, SizeIs(1));
    EXPECT_GT(recovered[0].decision, run.decisions("action")[1].decision);
    EXPECT_LT(run.damage, 0.3);
    EXPECT_THAT(harmful_and_verified(run), IsEmpty());
  }
}

TEST(ContainmentScenarioTest, OnlyWhenTheSearchFailsTheWholeRunGoesToBf16) {
  std::vector<Harm> harms;
  for (const std::string& site : site_names(4)) harms.push_back({site, 201, 0.02});
  const SimulatedRun run = run_of(harmed(harms), scenario_policy());
  EXPECT_THAT(actions(run), ElementsAre("bf16"));
  EXPECT_THAT(run.decisions("attribution")[0].sentence, HasSubstr("could not be pinned"));
}

TEST(ContainmentScenarioTest, AFaultFromTheFirstStepIsGoneBehindAlthoughItLiesInTheBurnIn) {
  const Policy policy = with([](Policy& p) { p.detector.burn_in_steps = 80; });
  for (const double percent : {0.5, 0.08, 0.03, 0.02}) {
    SCOPED_TRACE(percent);
    const SimulatedRun run = run_of(harmed({{kGuilty, 1, percent}}), policy, 600);
    const auto rollbacks = run.directives("rollback");
    ASSERT_THAT(rollbacks, SizeIs(1));
    EXPECT_EQ(rollbacks[0].to_step, 0) << "a run's beginning cannot have been damaged by it";
    EXPECT_THAT(actions(run), ElementsAre("pin"));
    EXPECT_THAT(harmful_and_verified(run), IsEmpty());
    EXPECT_LT(run.damage, 0.3);
  }
}

Truth stuck_loader() {
  Truth truth;
  for (int64_t step = 333; step < 383; ++step) truth.other_batches.push_back(step);
  truth.other_batches_again = true;
  truth.other_batch_damage = 0.2;
  return truth;
}

TEST(ContainmentScenarioTest, ALoaderThatStandsStillHoldsTheRunWithItsBatches) {
  const SimulatedRun run = run_of(stuck_loader(), scenario_policy());
  EXPECT_THAT(actions(run), ElementsAre("rollback", "rollback", "hold"));
  EXPECT_THAT(actions(run), Not(Contains("bf16")));
  EXPECT_TRUE(run.paused);
  const RecordDecision held = run.decisions("action").back();
  EXPECT_EQ(held.verdict, "data_mismatch");
  EXPECT_THAT(held.sentence, HasSubstr("BF16 mends no data"));
  EXPECT_THAT(held.evidence, HasSubstr("\"batches\":[{\"step\":333,\"run\":\"of step 332\","
                                       "\"data\":\"of step 333\"}"));
  const auto verdicts = run.decisions("verdict");
  EXPECT_THAT(verdicts[0].sentence,
              HasSubstr("the same batch, of step 332, in each of steps 333–"));
}

// At the end of the rollbacks: what was found, and what may follow.
TEST(ContainmentScenarioTest, ALimitOfRollbacksRespectsTheVerdict) {
  struct Row {
    const char* name;
    Truth truth;
    Policy policy;
    std::string verdict;
    std::string last;
  };
  const auto limited = [](int rollbacks) {
    return with([&](Policy& p) { p.limits.rollbacks_to_same_step_max = rollbacks; });
  };
  Truth flip;
  flip.bit_flips = {333};
  Truth stuck = flip;
  stuck.stuck = stuck.trainer_replays = true;
  Truth kernel = numerical_fault({kGuilty}, 201, 1000);
  kernel.in_kernel = true;
  Truth elsewhere = flip;
  elsewhere.equal_fingerprints = false;
  Policy held = limited(0);
  held.ladder.rungs = {"pin", "hold"};
  const std::vector<Row> rows = {
      {"numerics", numerical_fault({kGuilty}, 201, 1000), limited(0), "fp8_numerics", "bf16"},
      {"no BF16 on the ladder", numerical_fault({kGuilty}, 201, 1000), held, "fp8_numerics",
       "hold"},
      {"kernel", kernel, limited(0), "kernel_bug", "bf16"},
      {"not finite", spike(333, NAN, kGuilty), limited(0), "fp8_numerics", "hold"},
      {"flip", flip, limited(0), "transient_fault", "hold"},
      {"flip, told by losses", elsewhere, limited(0), "transient_fault", "hold"},
      {"stuck bit", stuck, limited(0), "persistent_fault", "hold"},
      {"data", stuck_loader(), limited(0), "data_mismatch", "hold"},
      {"data, at the second time", stuck_loader(), limited(1), "data_mismatch", "hold"},
      {"shared spike", spike(333, 3.0), limited(0), "generic_spike", ""},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const SimulatedRun run = run_of(row.truth, row.policy, 700);
    EXPECT_EQ(run.decisions("verdict")[0].verdict, row.verdict);
    const auto done = run.decisions("action");
    EXPECT_EQ(done.empty() ? ActionName() : done.back().action, row.last);
    EXPECT_EQ(run.paused, row.last == "hold");
  }
}

TEST(ContainmentScenarioTest, TrainingThatDivergesInBothPrecisionsIsSaidAndHarmsNobody) {
  Truth truth;
  // Up by 4% every ten steps for 200 steps, then back to where it was.
  truth.level = [](int64_t step) {
    if (step < 301) return 1.0;
    if (step < 501) return std::pow(1.04, static_cast<double>(step - 300) / 10);
    return step < 601 ? std::pow(1.04, 20) : 1.0;
  };
  SimulatedRun run(truth, scenario_policy());
  run.start();
  run.train_until(300);
  EXPECT_FALSE(run.state.watch.stability.unstable_since);
  run.train_until(500);
  run.drain();
  ASSERT_TRUE(run.state.watch.stability.unstable_since);
  EXPECT_GE(*run.state.watch.stability.unstable_since, 301);
  EXPECT_LE(*run.state.watch.stability.unstable_since, 360);
  std::vector<std::string> verdicts;
  for (const RecordDecision& decision : run.decisions("verdict"))
    verdicts.push_back(decision.verdict);
  EXPECT_EQ(std::ranges::count(verdicts, "unstable_training"), 1);
  EXPECT_THAT(verdicts, Not(Contains("fp8_numerics")));
  run.train_until(900);
  run.drain();
  EXPECT_FALSE(run.state.watch.stability.unstable_since);
  EXPECT_EQ(run.decisions("verdict").back().verdict, "stable_training");
  EXPECT_THAT(run.directives(""), IsEmpty());
}

TEST(ContainmentScenarioTest, TrainingThatIsFiniteInNeitherPrecisionIsUnstableAtOnce) {
  const SimulatedRun run = run_scenario("NanInBoth");
  ASSERT_TRUE(run.state.watch.stability.unstable_since);
  EXPECT_EQ(*run.state.watch.stability.unstable_since, 333);
}

TEST(ContainmentScenarioTest, WhatBf16WasAtInStepsThatARollbackUndidIsNoMeasure) {
  SimulatedRun run(numerical_fault({kGuilty}, 401, 1000), scenario_policy());
  run.start();
  run.train_until_phase("triage", 1000);
  run.state.watch.stability.lowest = 0.1;  // as after many more steps
  run.train_until(800);
  run.drain();
  ASSERT_THAT(run.directives("rollback"), SizeIs(1));
  EXPECT_GT(run.state.watch.stability.lowest, 1);
}

TEST(ContainmentScenarioTest, NoOtherScenarioIsCalledUnstable) {
  for (const Scenario& scenario : all_scenarios()) {
    if (scenario.name == "NanInBoth") continue;
    SCOPED_TRACE(scenario.name);
    SimulatedRun run(scenario.truth, scenario.policy);
    scenario.play(run);
    for (const RecordDecision& decision : run.decisions("verdict"))
      EXPECT_NE(decision.verdict, "unstable_training");
  }
}

// It says that it has taken each plan, and goes on in its own.
class StubbornRun : public SimulatedRun {
 public:
  StubbornRun(Truth truth, Policy rules) : SimulatedRun(std::move(truth), std::move(rules)) {
    const std::string own = plan_;
    filter = [this, own](const Event& event) {
      const auto* begun = std::get_if<AttemptStarted>(&event);
      if (begun == nullptr && !std::holds_alternative<DirectiveChanged>(event)) return true;
      if (plan_ == own) return true;
      plan_ = own;
      plan_version_ = 1;
      if (begun == nullptr) return true;
      AttemptStarted as_it_is = *begun;
      as_it_is.plan_version = 1;
      feed(as_it_is);
      return false;
    };
  }
};

TEST(ContainmentScenarioTest, ATrainerThatKeepsItsPlanIsSaidToAndHeld) {
  for (const char* from : {"last_verified", "here"}) {
    StubbornRun run(numerical_fault({kGuilty}, 201, 100'000),
                    with([&](Policy& policy) { policy.ladder.from = from; }));
    run.start();
    run.train_until(1000);
    EXPECT_TRUE(run.paused) << from;
    EXPECT_THAT(actions(run), ::testing::SizeIs(2)) << from;
    ASSERT_FALSE(run.decisions("directive").empty()) << from;
    EXPECT_THAT(run.decisions("directive")[0].sentence,
                ::testing::HasSubstr("it does not do what it says"));
  }
}

}  // namespace
}  // namespace gnomon::decide

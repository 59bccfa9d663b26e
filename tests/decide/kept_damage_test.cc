// Damage that adds up between windows, each of which could be borne.
#include "controller/decide/kept_damage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

using ::testing::IsEmpty;

// A lasting fault from this step on, of 0.1% in a window, where 0.25% is tolerated.
Truth under_the_tolerance(int64_t from) {
  Truth truth = numerical_fault({kGuilty}, from, 100'000, 0.005);
  truth.total_steps = 12'000;
  return truth;
}

TEST(KeptDamageTest, WhatEachWindowBearsIsFoundByWhatItAddsUpTo) {
  SimulatedRun run(under_the_tolerance(2001), scenario_policy());
  run.start();
  run.train_until(6000);
  EXPECT_FALSE(run.directives("rollback").empty());
  EXPECT_TRUE(run.state.containment && run.state.containment->stays)
      << "probes would not see it, and it would come back";
  EXPECT_TRUE(said_in(run, "alarm", "over the steps between them it adds up to"));
  EXPECT_LT(run.damage, 12) << "it costs what BF16's rise makes clear, and no more";
  for (const RecordDecision& verdict : run.decisions("verdict"))
    EXPECT_NE(verdict.verdict, "unstable_training");
}

// Where training goes on from damaged weights, the plan that mended it is not blamed for them.
TEST(KeptDamageTest, ThePlanAfterThePinHasAddedNothing) {
  Truth truth = numerical_fault({kGuilty}, 401, 100'000, 0.04);
  truth.total_steps = 6000;
  SimulatedRun run(truth, with([](Policy& policy) { policy.ladder.from = "here"; }));
  run.start();
  run.train_until(6000);
  EXPECT_EQ(run.decisions("alarm").size(), 1u);
  EXPECT_GT(run.damage, 2) << "it stays in the weights";
}

// One verifier's word is not enough, in windows that nobody else has measured.
TEST(KeptDamageTest, OneThatLiesAboutUncheckedWindowsConvictsNobody) {
  Truth truth;
  truth.total_steps = 6000;
  // Training itself loses ground, in both precisions.
  truth.level = [](int64_t step) { return step < 2000 ? 1.0 : 1.0 + 1e-4 * double(step - 2000); };
  truth.verifiers = {"v1:1", "v2:2", "v3:3"};
  SimulatedRun run(truth, scenario_policy());
  run.lie = [](ReplayFinished& answer) {
    if (answer.verifier != "v2:2" || answer.purpose != "shadow" || !answer.replay_end_loss_bf16)
      return;
    *answer.replay_end_loss_bf16 *= 0.998;
  };
  run.start();
  run.train_until(6000);
  EXPECT_FALSE(said_in(run, "alarm", "it adds up to"));
  EXPECT_THAT(run.directives(""), IsEmpty());
}

// A gap that training heals adds up to nothing, however long.
TEST(KeptDamageTest, ManyTimesTheRiseIsNotItsCause) {
  State state;
  Stability& stability = state.watch.stability;
  stability.lowest = 2.0;
  stability.kept.deviation = 0.05;
  stability.kept.shares = {{"v1:1", 400, 10, 400, 400}, {"v2:2", 400, 10, 400, 400}};
  Policy policy;
  const Core core{state, policy, 0};
  EXPECT_TRUE(explains_rise(core, 15));
  EXPECT_FALSE(explains_rise(core, 9)) << "so much may be a plateau";
  stability.kept.shares = {{"v1:1", 400, 60, 400, 400}, {"v2:2", 400, 60, 400, 400}};
  EXPECT_FALSE(explains_rise(core, 15)) << "it would have shown before";
  stability.kept.shares = {{"v1:1", 400, 20, 400, 400}, {"v2:2", 400, 0, 400, 400}};
  EXPECT_FALSE(explains_rise(core, 15)) << "v2 has seen nothing of it";
  stability.kept.shares = {{"v1:1", 3, 20, 400, 60'000}};
  EXPECT_FALSE(explains_rise(core, 15)) << "three windows say too little for 400";
}

TEST(KeptDamageTest, AnOpenCaseOfALargeGapIsNotCalledUnstableTraining) {
  Truth truth = numerical_fault({kGuilty}, 401, 100'000, 0.15);
  truth.total_steps = 2000;
  SimulatedRun run(truth, scenario_policy());
  // Nobody answers what the case asks.
  run.filter = [](const Event& event) {
    const auto* answer = std::get_if<ReplayFinished>(&event);
    return answer == nullptr || answer->purpose != "triage";
  };
  run.start();
  run.train_until(1500);
  ASSERT_FALSE(run.decisions("alarm").empty());
  EXPECT_THAT(run.decisions("verdict"), IsEmpty());
}

}  // namespace
}  // namespace gnomon::decide

// What a simulated run costs, against the core's own account and the economics' formulas.
#include <gtest/gtest.h>

#include <cmath>

#include "controller/decide/economics.h"
#include "tests/simulate/tallies.h"

namespace gnomon::simulate {
namespace {

decide::Policy plain_policy(int64_t every) {
  decide::Policy policy;
  policy.window.every = every;
  policy.window.steps = 25;
  policy.instrument.every = 0;
  policy.ladder.rungs = {"bf16"};
  policy.limits.actions_max = policy.limits.rollbacks_to_same_step_max = 1000;
  policy.triage.transients_max = 1000;
  return policy;
}

TEST(CostsTest, AHealthyRunCostsWhatTheFormulaSaysToTheDigit) {
  RunModel model;
  const decide::Policy policy = plain_policy(200);
  decide::RunModel formula;
  formula.speedup = model.speedup;
  formula.window_steps = 25;
  formula.switch_steps = policy.economics.switch_steps;
  formula.windows_between_false_alarms = HUGE_VAL;
  const Summary sum = played(model, policy, 1);
  // The formula has no audits: FP8 steps of the same length.
  const auto audits = static_cast<double>(sum.replays - sum.windows);
  EXPECT_GT(audits, 0);
  const double paid_for_audits =
      audits * (25 + policy.economics.switch_steps) / static_cast<double>(model.steps);
  const double expected =
      1 / (1 / decide::net_speedup(formula, 200, 0) + paid_for_audits / model.speedup);
  EXPECT_NEAR(sum.net_speedup.mean, expected, 1e-9);
  EXPECT_NEAR(sum.net_speedup_by_core.mean, sum.net_speedup.mean, 1e-9);
}

TEST(CostsTest, SpareDevicesArePaidAllTheTime) {
  RunModel model;
  model.verifiers = 2;
  model.verifier_speed = 4;
  decide::Policy policy = plain_policy(200);
  policy.economics.spare_fraction = 0.1;
  const Summary sum = played(model, policy, 2);
  EXPECT_NEAR(sum.net_speedup.mean, model.speedup / 1.1, 1e-9);
}

// Faults, returns and rollbacks, without what the core does not count: restarts, crashes, holds.
TEST(CostsTest, TheCoresAccountAgreesWithTheTruth) {
  RunModel model = with_fault(FaultKind::kNumerics, 1 / 4000.0);
  model = with_fault(FaultKind::kBitFlip, 1 / 8000.0, model);
  model.restart_seconds = 0;
  const Summary sum = played(model, plain_policy(200), 40);
  ASSERT_GE(sum.actions, 60);
  ASSERT_EQ(sum.holds, 0);
  EXPECT_GT(sum.lost_share, 0.01);
  EXPECT_NEAR(sum.net_speedup_by_core.mean, sum.net_speedup.mean, 0.002);
}

// The renewal formula, with the delay and the hold that were measured and the faults that acted.
TEST(CostsTest, AFaultyRunCostsWhatTheFormulaSays) {
  constexpr int64_t kEvery = 200;
  RunModel model = with_fault(FaultKind::kNumerics, 1 / 3000.0);
  model.steps = 40'000;
  model.size_low = model.size_high = 2;
  model.lasting_share = 0;
  model.brief_steps = 2 * kEvery;
  model.heal_steps = 200;
  decide::Policy policy = plain_policy(kEvery);
  policy.triage.pairs = 0;
  const std::vector<Tally> runs = simulate_runs(model, {policy}, runs_of(40)).by_policy.front();
  double fp8_steps = 0, bf16_steps = 0, lost = 0, actions = 0;
  for (const Tally& run : runs) {
    fp8_steps += static_cast<double>(run.trained - run.bf16_steps);
    bf16_steps += static_cast<double>(run.bf16_steps);
    lost += static_cast<double>(run.lost);
    actions += static_cast<double>(run.actions);
  }
  const Summary sum = summarise(runs);
  ASSERT_GT(actions, 200);
  ASSERT_EQ(sum.holds, 0);
  decide::RunModel formula;
  formula.speedup = model.speedup;
  formula.window_steps = 25;
  formula.switch_steps = policy.economics.switch_steps;
  // The formula counts whole windows with the fault in them; the few that begin in one are found
  // by it.
  formula.delay_windows = 1;
  formula.hold_steps = (bf16_steps - lost) / actions;
  // The replays of a case (the run's plan, and FP8 values in BF16 GEMMs) and two probes.
  formula.restart_steps = model.restart_seconds + (30 + 25) + (30 + 25 * 1.3) + 2 * (30 + 25);
  formula.windows_between_false_alarms = HUGE_VAL;
  const double expected = decide::net_speedup(formula, kEvery, actions / fp8_steps);
  EXPECT_NEAR(sum.net_speedup.mean, expected, 0.015 * expected);
  const double without_faults = decide::net_speedup(formula, kEvery, 0);
  EXPECT_GT(without_faults - expected, 0.05) << "the faults cost too little to say anything";
}

}  // namespace
}  // namespace gnomon::simulate

// What the core concludes of each kind of fault, held against the truth, and what the simulated
// verifiers do to it.
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/simulate/tallies.h"

namespace gnomon::simulate {
namespace {

using ::testing::Contains;

struct Expectation {
  FaultKind kind;
  double caught_least;    // of those that do anything
  double answered_least;  // of those that are seen
  // One of these comes most often. Half of what a broken device does looks like a flip.
  std::vector<std::string> verdicts;
};

class EachKind : public ::testing::TestWithParam<Expectation> {};

RunModel one_kind(FaultKind kind) {
  RunModel model = with_fault(kind, 1 / 8000.0);
  model.steps = 8000;
  model.size_low = 0.5;
  model.verifiers = 2;
  model.verifier_speed = 10;
  return model;
}

TEST_P(EachKind, IsSeenAndNamed) {
  const Expectation& expected = GetParam();
  decide::Policy policy = covering_policy();
  // Flips that come often on a sound host are taken for a broken one, as the policy wants it.
  if (expected.kind == FaultKind::kBitFlip) policy.triage.transients_max = 1000;
  const Summary sum = played(one_kind(expected.kind), policy, 60);
  const FaultSummary& faults = sum.faults[static_cast<size_t>(expected.kind)];
  ASSERT_GE(faults.felt, 25);
  EXPECT_EQ(faults.felt, sum.all_faults.felt);
  EXPECT_TRUE(sum.problems.empty());
  EXPECT_GE(static_cast<double>(faults.alarmed),
            expected.caught_least * static_cast<double>(faults.felt));
  EXPECT_GE(static_cast<double>(faults.answered),
            expected.answered_least * static_cast<double>(faults.alarmed));
  const auto& row = sum.verdicts[static_cast<size_t>(expected.kind)];
  const auto most = std::max_element(row.begin(), row.end());
  EXPECT_THAT(expected.verdicts, Contains(kVerdicts[static_cast<size_t>(most - row.begin())]));
  EXPECT_EQ(sum.false_alarms.count, 0);
  EXPECT_EQ(sum.unfounded_actions.count, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, EachKind,
    ::testing::Values(Expectation{FaultKind::kNumerics, 0.95, 0.97, {"fp8_numerics"}},
                      Expectation{FaultKind::kOverflow, 0.95, 0.95, {"fp8_numerics"}},
                      Expectation{FaultKind::kKernelBug, 0.95, 0.97, {"kernel_bug"}},
                      Expectation{FaultKind::kScaleDrift, 0.85, 0.97, {"scale_drift"}},
                      Expectation{FaultKind::kBitFlip, 0.9, 0.95, {"transient_fault"}},
                      Expectation{
                          FaultKind::kHardware, 0.8, 0.95, {"persistent_fault", "transient_fault"}},
                      Expectation{FaultKind::kSkippedBatch, 0.95, 0.97, {"data_mismatch"}},
                      Expectation{FaultKind::kSpike, 0.95, 0.97, {"generic_spike"}}),
    [](const auto& one) { return std::string(fault_kind_name(one.param.kind)); });

TEST(TruthTest, APinHoldsTheGuiltySites) {
  RunModel model = one_kind(FaultKind::kNumerics);
  model.size_low = model.size_high = 2;
  const Summary sum = played(model, covering_policy(), 60);
  ASSERT_GE(sum.pins, 20);
  EXPECT_GE(static_cast<double>(sum.right_pins), 0.9 * static_cast<double>(sum.pins));
  EXPECT_GT(sum.pinned_share, 0);
}

// A skipped batch shows in the losses: sentinels order a window where it happened.
TEST(TruthTest, SentinelsSeeMostOfWhatHappensBetweenWindows) {
  decide::Policy sparse = covering_policy();
  sparse.window.every = 100;
  RunModel model = one_kind(FaultKind::kSkippedBatch);
  const FaultSummary all = played(model, covering_policy(), 60).all_faults;
  const FaultSummary quarter = played(model, sparse, 60).all_faults;
  EXPECT_GT(all.caught_share(), 0.95);
  EXPECT_GT(quarter.caught_share(), 0.5) << "windows alone see a quarter";
  EXPECT_LT(quarter.caught_share(), 0.95);
}

TEST(TruthTest, SmallFaultsTakeLonger) {
  RunModel model = one_kind(FaultKind::kNumerics);
  model.lasting_share = 1;
  model.noise_percent = 0.1;
  model.size_low = model.size_high = 2;
  const FaultSummary large = played(model, covering_policy(), 40).all_faults;
  model.size_low = model.size_high = 0.3;
  const FaultSummary small = played(model, covering_policy(), 40).all_faults;
  EXPECT_GE(large.delay_windows.median, 1);
  EXPECT_LE(large.delay_windows.median, 2);
  EXPECT_GT(small.delay_windows.median, large.delay_windows.median);
  EXPECT_GE(large.delay_steps.mean, 10);
}

TEST(TruthTest, MoreNoiseThanTheCoreMayBelieveBringsFalseAlarms) {
  RunModel model;
  model.steps = 8000;
  model.mean_gap_percent = 0.4;
  const Summary sum = played(model, covering_policy(), 10);
  EXPECT_GE(sum.false_alarms.count, 10) << "a healthy run worse than tolerated";
  EXPECT_EQ(sum.all_faults.felt, 0);
  EXPECT_EQ(sum.verdicts[kNoCause][0], sum.judged - sum.rightly);
}

TEST(TruthTest, SlowVerifiersSkipWindowsAndNobodyElseDoes) {
  RunModel model;
  model.steps = 4000;
  model.verifiers = 1;
  model.verifier_speed = 10;
  EXPECT_EQ(played(model, covering_policy(), 4).skipped_windows, 0);
  model.verifier_speed = 0.5;
  const Summary slow = played(model, covering_policy(), 4);
  EXPECT_GT(slow.skipped_windows, slow.windows);
  EXPECT_EQ(slow.skipped_windows + slow.windows, 4 * 4000 / 25);
}

TEST(TruthTest, VerifiersThatDieCostTimeAndTheWindowIsVerifiedAllTheSame) {
  RunModel model;
  model.steps = 4000;
  model.verifiers = 3;
  model.verifier_speed = 10;
  model.verifier_dies = 0.1;
  model.verifier_back_seconds = 50;
  decide::Policy policy = covering_policy();
  policy.window.every = 50;
  policy.verifier.lease_ttl_seconds = 5;
  const Summary sum = played(model, policy, 10);
  EXPECT_GT(sum.verifier_deaths, 50);
  EXPECT_LE(sum.failed_windows + sum.skipped_windows, 5);
  EXPECT_EQ(sum.actions, 0);
  model.verifier_dies = 1;
  const Summary hopeless = played(model, policy, 2);
  EXPECT_EQ(hopeless.windows, 0);
  EXPECT_GT(hopeless.failed_windows, 5);
}

TEST(TruthTest, AVerifierThatComputesWronglyIsNotTakenForFp8) {
  RunModel model;
  model.steps = 8000;
  model.verifiers = 3;
  model.verifier_speed = 10;
  model.verifier_lies = 0.002;
  model.verifier_error_percent = 2;
  const std::vector<double> curve = loss_curve(model.steps);
  int64_t named = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    StochasticRun run(model, curve, covering_policy(), seed);
    const Tally tally = run.run();
    named += run.state.trust.quarantined.empty() ? 0 : 1;
    EXPECT_EQ(tally.unfounded_actions, 0) << "seed " << seed;
    EXPECT_EQ(tally.verdicts[kVerifierCause][0], 0) << "seed " << seed << " blamed FP8";
    EXPECT_EQ(tally.verdicts[kNoCause][0], 0) << "seed " << seed;
  }
  EXPECT_GE(named, 15);
}

TEST(TruthTest, CrashesLoseStepsAndTheRunCompletes) {
  RunModel model;
  model.steps = 4000;
  model.crashes = 1 / 500.0;
  const Summary sum = played(model, decide::Policy(), 10);
  EXPECT_NEAR(static_cast<double>(sum.crashes), 80, 35);
  EXPECT_EQ(sum.outcomes.at("completed"), 10);
  EXPECT_GT(sum.lost_share, 0.005);
  EXPECT_LT(sum.lost_share, 25.0 / 500);
  EXPECT_EQ(sum.actions, 0);
}

TEST(TruthTest, ABrokenHostIsLeftAndThePersonIsWaitedFor) {
  RunModel model = with_fault(FaultKind::kHardware, 1 / 2000.0);
  model.steps = 8000;
  model.verifiers = 2;
  model.verifier_speed = 10;
  const std::vector<double> curve = loss_curve(model.steps);
  int64_t holds = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    StochasticRun run(model, curve, covering_policy(), seed);
    const Tally tally = run.run();
    EXPECT_TRUE(tally.problems.empty());
    EXPECT_GE(tally.seconds, static_cast<double>(tally.holds) * model.person_seconds);
    if (tally.holds > 0) {
      EXPECT_NE(run.state.attempt.host, "trainer-host");
    }
    holds += tally.holds;
  }
  EXPECT_GE(holds, 5) << "of persistent faults";
}

}  // namespace
}  // namespace gnomon::simulate

#include "lab/simulate/study.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "base/errors.h"
#include "tests/simulate/tallies.h"

namespace gnomon::simulate {
namespace {

RunModel troubled() {
  RunModel model;
  model.steps = 3000;
  model.hazards.fill(1 / 2000.0);
  model.verifiers = 2;
  model.verifier_dies = 0.02;
  model.verifier_lies = 0.002;
  model.crashes = 1 / 1500.0;
  model.autocorrelation = 0.3;
  return model;
}

TEST(StudyTest, TheNumberOfThreadsChangesNothing) {
  decide::Policy other;
  other.window.every = 100;
  const std::vector<decide::Policy> policies = {decide::Policy(), other};
  const StudyRuns alone = simulate_runs(troubled(), policies, runs_of(12, 1));
  const StudyRuns together = simulate_runs(troubled(), policies, runs_of(12, 3));
  for (size_t policy = 0; policy < policies.size(); ++policy) {
    for (size_t run = 0; run < 12; ++run) {
      EXPECT_EQ(words(alone.by_policy[policy][run]), words(together.by_policy[policy][run]));
    }
  }
  EXPECT_NE(words(alone.by_policy[0][0]), words(alone.by_policy[0][1])) << "seeds differ";
  EXPECT_NE(words(alone.by_policy[0][0]), words(alone.by_policy[1][0])) << "policies matter";
}

TEST(StudyTest, ProgressCountsEveryRunOfEveryPolicyOnce) {
  StudyOptions options = runs_of(5, 2);
  std::vector<int64_t> seen;
  options.progress = [&](int64_t done) { seen.push_back(done); };
  RunModel model;
  model.steps = 200;
  simulate_runs(model, {decide::Policy(), decide::Policy()}, options);
  ASSERT_EQ(seen.size(), 10u);
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<int64_t>(i) + 1);
}

TEST(StudyTest, NonsenseIsRefused) {
  EXPECT_THROW(simulate_runs(RunModel(), {decide::Policy()}, runs_of(0)), ConfigError);
  EXPECT_THROW(simulate_runs(RunModel(), {decide::Policy()}, runs_of(1, 0)), ConfigError);
  EXPECT_THROW(simulate_runs(RunModel(), {}, runs_of(1)), ConfigError);
}

// Exact limits of a Poisson count: halves of the chi-square's quantiles.
TEST(StudyTest, ARateHasThePoissonIntervalOfItsCount) {
  EXPECT_NEAR(rate(0, 1000).high, 3.689, 0.06);
  EXPECT_EQ(rate(0, 1000).low, 0);
  EXPECT_NEAR(rate(5, 1000).low, 1.623, 0.03);
  EXPECT_NEAR(rate(5, 1000).high, 11.668, 0.03);
  EXPECT_NEAR(rate(100, 2000).low, 81.36 / 2, 0.01);
  EXPECT_NEAR(rate(100, 2000).high, 121.63 / 2, 0.01);
  EXPECT_EQ(rate(0, 0).high, 0);
}

TEST(StudyTest, ASpreadIsOfTheFiniteValuesByRank) {
  std::vector<double> values = {NAN, HUGE_VAL};
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Spread made = spread(values);
  EXPECT_EQ(made.count, 100);
  EXPECT_EQ(made.mean, 50.5);
  EXPECT_EQ(made.low, 5);
  EXPECT_EQ(made.median, 50);
  EXPECT_EQ(made.high, 95);
  EXPECT_EQ(spread({}).count, 0);
}

TEST(StudyTest, ASummaryCountsWhatTheRunsTell) {
  Tally quiet, loud;
  quiet.outcome = loud.outcome = "completed";
  quiet.windows = quiet.healthy_windows = 1000;
  loud.windows = 1000;
  loud.healthy_windows = 500;
  loud.false_alarms = 3;
  loud.damage_percent = 0.2;
  loud.faults = {{FaultKind::kNumerics, 1, 0.5, true, true, 4, 90},
                 {FaultKind::kNumerics, 1, 0.05, false, false, 0, 0},
                 {FaultKind::kBitFlip, 1, 2, false, false, 0, 0}};
  loud.verdicts[0][0] = 2;
  loud.verdicts[kNoCause][0] = 1;
  const Summary sum = summarise({quiet, loud});
  EXPECT_EQ(sum.outcomes.at("completed"), 2);
  EXPECT_EQ(sum.false_alarms.of, 1500);
  EXPECT_DOUBLE_EQ(sum.false_alarms.per_thousand, 2);
  EXPECT_EQ(sum.all_faults.felt, 3);
  EXPECT_EQ(sum.all_faults.harmful, 2) << "0.05% is no harm";
  EXPECT_DOUBLE_EQ(sum.all_faults.caught_share(), 0.5);
  EXPECT_EQ(sum.faults[0].delay_windows.median, 4);
  EXPECT_TRUE(std::isnan(sum.faults[1].caught_share()));
  EXPECT_EQ(sum.judged, 3);
  EXPECT_EQ(sum.rightly, 2);
  EXPECT_EQ(sum.damaged, 1);
}

}  // namespace
}  // namespace gnomon::simulate

#include "controller/decide/gap_detector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "controller/decide/gap_evalues.h"
#include "controller/decide/gap_noise.h"
#include "tests/support/special_numbers.h"

namespace gnomon::decide {
namespace {

void expect_equal(const GapScale& a, const GapScale& b) {
  EXPECT_EQ(a.variance, b.variance);
  EXPECT_EQ(a.weight, b.weight);
  EXPECT_EQ(a.freedom, b.freedom);
  EXPECT_EQ(a.last_d, b.last_d);
  EXPECT_EQ(a.steps, b.steps);
  EXPECT_EQ(a.tokens_per_step, b.tokens_per_step);
  EXPECT_EQ(a.plan_version, b.plan_version);
  EXPECT_EQ(a.baseline_windows, b.baseline_windows);
  EXPECT_EQ(a.baseline_mean, b.baseline_mean);
  EXPECT_EQ(a.null_percent, b.null_percent);
  EXPECT_EQ(a.accepted_percent, b.accepted_percent);
}

void expect_equal(const GapEvidence& a, const GapEvidence& b) {
  EXPECT_EQ(a.sums, b.sums);
  EXPECT_EQ(a.burst_left, b.burst_left);
  EXPECT_EQ(a.burst_level, b.burst_level);
  EXPECT_EQ(a.rival, b.rival);
  EXPECT_EQ(a.recent, b.recent);
}

class GapDetectorTest : public ::testing::Test {
 protected:
  GapDetectorTest() { settings_.ceiling_percent = kInfinity; }

  GapVerdict see(double d_percent) {
    sample_.d_percent = d_percent;
    return observe_gap(state_, sample_, settings_);
  }
  // Healthy windows: a mean of 0.04 and a deviation of 0.02.
  void healthy(int windows) {
    for (int i = 0; i < windows; ++i) {
      EXPECT_FALSE(see(0.04 + 0.02 * noise_.next()).alarm) << "window " << i;
    }
  }
  double evidence() const { return gap_mixture(state_.evidence.sums.data(), true); }

  GapSettings settings_;
  GapState state_;
  GapSample sample_{.steps = 20, .tokens_per_step = 4096, .plan_version = 1};
  GapNoise noise_{noise_shape("gaussian"), 4};
};

// Windows from the first bad one to the alarm.
#define EXPECT_ALARM_WITHIN(windows, d_percent)           \
  do {                                                    \
    int seen = 1;                                         \
    while (!see(d_percent).alarm && seen <= 1000) ++seen; \
    EXPECT_LE(seen, windows);                             \
    EXPECT_GT(seen, 1) << "evidence takes more than one"; \
  } while (false)

TEST_F(GapDetectorTest, SpeaksFromTheFirstWindowOfARunThatIsBadFromTheStart) {
  EXPECT_ALARM_WITHIN(19, 0.4);
}

TEST_F(GapDetectorTest, FindsAShiftOfTwoDeviations) {
  healthy(60);
  EXPECT_ALARM_WITHIN(14, *state_.scale.null_percent + 2 * 0.02);
}

TEST_F(GapDetectorTest, FindsALargeShiftInThreeWindowsAndABlowUpInOne) {
  healthy(60);
  GapState before = state_;
  EXPECT_ALARM_WITHIN(3, 0.4);
  state_ = before;
  EXPECT_TRUE(see(6).alarm);
}

TEST_F(GapDetectorTest, FindsABiasOfAThirdOfADeviationInTheEnd) {
  healthy(60);
  const double bias = *state_.scale.null_percent + 0.02 / 3;
  GapNoise noise(noise_shape("gaussian"), 8);
  int seen = 1;
  while (!see(bias + 0.02 * noise.next()).alarm && seen < 1000) ++seen;
  EXPECT_LT(seen, 400);
}

TEST_F(GapDetectorTest, TheCeilingIsAnAlarmInOneWindow) {
  settings_.ceiling_percent = 0.5;
  EXPECT_FALSE(see(0.5).alarm);
  const GapVerdict verdict = see(0.51);
  EXPECT_TRUE(verdict.alarm);
  EXPECT_EQ(verdict.rule, "ceiling");
  EXPECT_EQ(verdict.statistic, 0.51);
  EXPECT_EQ(verdict.threshold, 0.5);
}

TEST_F(GapDetectorTest, AJumpIsAnAlarmInOneWindowOnceTheScaleIsKnown) {
  settings_.jump_deviations = 5;
  EXPECT_FALSE(see(5).alarm) << "nothing is known of the scale";
  state_ = {};
  healthy(60);
  const double limit =
      *state_.scale.null_percent + 5 * scale_confidence(state_.scale.freedom) *
                                       gap_scale_percent(state_.scale, sample_, settings_);
  EXPECT_GT(limit, settings_.tolerance_percent);
  const GapState before = state_;
  EXPECT_FALSE(see(limit - 1e-6).alarm);
  state_ = before;
  const GapVerdict verdict = see(limit + 1e-6);
  EXPECT_TRUE(verdict.alarm);
  EXPECT_EQ(verdict.rule, "jump");
  EXPECT_DOUBLE_EQ(verdict.threshold, limit);
  EXPECT_TRUE(of_one_window(verdict));
  EXPECT_EQ(state_.scale.variance, before.scale.variance);
}

TEST_F(GapDetectorTest, TheNewestLevelIsThatOfOnePlan) {
  healthy(10);
  sample_.plan_version = 2;
  see(0.2);
  see(0.3);
  const GapLevel level = newest_level(state_, 8);
  EXPECT_EQ(level.windows, 2);
  EXPECT_DOUBLE_EQ(level.mean_percent, 0.25);
}

TEST_F(GapDetectorTest, WithinTheToleranceNothingIsAJump) {
  settings_.jump_deviations = 5;
  settings_.tolerance_percent = 1;
  healthy(60);
  EXPECT_FALSE(see(0.9).alarm) << "over 40 deviations";
}

TEST_F(GapDetectorTest, WhatIsNotFiniteIsAnAlarmAndIsNeverLearned) {
  healthy(30);
  const GapState before = state_;
  for (double d : {std::nan(""), kInfinity, -kInfinity}) {
    const GapVerdict verdict = see(d);
    EXPECT_TRUE(verdict.alarm);
    EXPECT_EQ(verdict.rule, "non_finite");
  }
  expect_equal(state_.scale, before.scale);
  expect_equal(state_.evidence, before.evidence);
}

TEST_F(GapDetectorTest, AWindowIsJudgedByWhatWasKnownBeforeIt) {
  healthy(45);
  for (double d : {0.03, 0.2, -0.4, 0.05}) {
    const double null_before = gap_null_percent(state_.scale, settings_);
    const double scale_before = gap_scale_percent(state_.scale, sample_, settings_);
    const GapVerdict verdict = see(d);
    EXPECT_EQ(verdict.null_percent, null_before);
    EXPECT_EQ(verdict.scale_percent, scale_before);
    EXPECT_DOUBLE_EQ(verdict.x, (d - null_before) / scale_before);
  }
}

TEST_F(GapDetectorTest, TheScaleComesFromDifferencesSoThatAShiftDoesNotInflateIt) {
  healthy(100);
  EXPECT_NEAR(gap_scale_percent(state_.scale, sample_, settings_), 0.02, 0.004);
  settings_.windows_between_false_alarms = 1e300;
  for (int i = 0; i < 40; ++i) see(0.3 + 0.02 * noise_.next());
  EXPECT_LT(gap_scale_percent(state_.scale, sample_, settings_), 0.03);
}

TEST_F(GapDetectorTest, NothingIsLearnedWhileTheEvidenceIsHigh) {
  healthy(40);
  settings_.windows_between_false_alarms = 1e300;
  while (evidence() <= 100) see(0.2);
  const GapScale before = state_.scale;
  see(0.9);
  see(0.1);
  EXPECT_EQ(state_.scale.variance, before.variance);
  EXPECT_EQ(state_.scale.weight, before.weight);
}

TEST_F(GapDetectorTest, OneWildWindowCannotBlindIt) {
  healthy(60);
  const double before = gap_scale_percent(state_.scale, sample_, settings_);
  see(-50);
  see(0.04);
  EXPECT_LT(gap_scale_percent(state_.scale, sample_, settings_), 1.6 * before);
}

TEST_F(GapDetectorTest, TheScaleIsNeverBelowTheInstruments) {
  sample_.floor_percent = 0.07;
  healthy(40);
  EXPECT_EQ(see(0.04).scale_percent, 0.07);
  sample_.floor_percent = kInfinity;
  EXPECT_LT(see(0.04).scale_percent, 0.07) << "a broken instrument's number is not taken";
}

TEST_F(GapDetectorTest, TheNullIsTheToleranceUntilTheBurnInIsOver) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(see(0.04 + 0.02 * noise_.next()).null_percent, settings_.tolerance_percent);
  }
  const double learned = see(0.04).null_percent;
  EXPECT_NEAR(learned, 0.04 + 2 * 0.02 / std::sqrt(20.0), 0.012);
  for (int i = 0; i < 50; ++i)
    EXPECT_EQ(see(0.05).null_percent, learned) << "a bias is not learned";
}

TEST_F(GapDetectorTest, TheNullIsNeverMoreThanToleratedNorLessThanNothing) {
  GapState low;
  GapState high;
  settings_.windows_between_false_alarms = 1e300;
  for (int i = 0; i < 30; ++i) {
    const double wiggle = i % 2 == 0 ? 0.001 : -0.001;
    sample_.d_percent = -0.3 + wiggle;
    observe_gap(low, sample_, settings_);
    sample_.d_percent = 0.101 + wiggle;
    observe_gap(high, sample_, settings_);
  }
  EXPECT_EQ(low.scale.null_percent, 0.0);
  EXPECT_EQ(high.scale.null_percent, settings_.tolerance_percent);
}

TEST_F(GapDetectorTest, WithoutABurnInTheToleranceStays) {
  settings_.burn_in_windows = 0;
  healthy(50);
  EXPECT_EQ(see(0.04).null_percent, settings_.tolerance_percent);
}

TEST_F(GapDetectorTest, ForgettingIsAsIfTheWindowsHadNeverBeen) {
  for (const char* kind : {"eprocess", "cusum", "ewma", "glr"}) {
    settings_.kind = kind;
    for (int64_t forgotten : {1, 5, 16}) {
      for (int windows : {7, 30, 55}) {
        GapState expected;
        GapState state;
        GapNoise noise(noise_shape("t4"), 21);
        for (int i = 0; i < windows + forgotten; ++i) {
          sample_.d_percent = i == 25 ? std::nan("") : 0.05 + 0.03 * noise.next();
          sample_.steps = i < 20 ? 20 : 40;
          sample_.plan_version = i < 40 ? 1 : 2;
          if (i < windows) observe_gap(expected, sample_, settings_);
          observe_gap(state, sample_, settings_);
        }
        forget_newest(state, forgotten, settings_);
        expect_equal(state.scale, expected.scale);
        expect_equal(state.evidence, expected.evidence);
        sample_.d_percent = 0.2;
        EXPECT_EQ(observe_gap(state, sample_, settings_).statistic,
                  observe_gap(expected, sample_, settings_).statistic);
      }
    }
  }
}

TEST_F(GapDetectorTest, ForgettingMoreThanIsKnownLeavesNoEvidence) {
  healthy(60);
  see(0.2);
  EXPECT_GT(evidence(), 1);
  forget_newest(state_, 17, settings_);
  EXPECT_TRUE(state_.evidence.sums.empty());
  EXPECT_TRUE(state_.newest.empty());
  EXPECT_NEAR(gap_scale_percent(state_.scale, sample_, settings_), 0.02, 0.005) << "s is kept";
  forget_newest(state_, 5, settings_);
  forget_newest(state_, -1, settings_);
  EXPECT_FALSE(see(0.04).alarm);
}

TEST_F(GapDetectorTest, AnAlarmStaysUntilItIsActedUpon) {
  healthy(40);
  while (!see(0.3).alarm) {
  }
  EXPECT_TRUE(see(0.3).alarm);
  restart_gap(state_);
  EXPECT_FALSE(see(0.04).alarm);
  EXPECT_LT(evidence(), 10);
  EXPECT_TRUE(state_.scale.null_percent.has_value()) << "what was learned stays";
}

TEST_F(GapDetectorTest, AnAcceptedGapIsTheNewNullEvenAboveTheTolerance) {
  healthy(40);
  while (!see(0.25 + 0.02 * noise_.next()).alarm) {
  }
  for (int i = 0; i < 9; ++i) see(0.25 + 0.02 * noise_.next());
  const GapLevel level = newest_level(state_, 8);
  EXPECT_EQ(level.windows, 8);
  EXPECT_NEAR(level.mean_percent, 0.25, 0.02);
  EXPECT_NEAR(level.error_percent, 0.02 / std::sqrt(8.0), 0.005);
  accept_gap(state_, level.mean_percent + 2 * level.error_percent);
  for (int i = 0; i < 300; ++i) EXPECT_FALSE(see(0.25 + 0.02 * noise_.next()).alarm);
  EXPECT_ALARM_WITHIN(12, 0.34);
}

TEST_F(GapDetectorTest, NothingAcceptedIsBelowZeroOrNotFinite) {
  accept_gap(state_, -1);
  EXPECT_EQ(gap_null_percent(state_.scale, settings_), 0);
  accept_gap(state_, std::nan(""));
  EXPECT_EQ(gap_null_percent(state_.scale, settings_), 0);
}

TEST_F(GapDetectorTest, AChangeOfCadenceCarriesTheScaleAndKeepsTheEvidence) {
  healthy(60);
  see(0.12);
  const double before = gap_scale_percent(state_.scale, sample_, settings_);
  const double evidence_before = evidence();
  const double freedom = state_.scale.freedom;
  sample_.steps = 80;
  const GapVerdict longer = see(*state_.scale.null_percent * 2);
  EXPECT_NEAR(longer.scale_percent, 2 * before, 1e-12) << "√(80/20)";
  EXPECT_LT(longer.freedom, freedom / 2);
  EXPECT_GT(evidence(), 0.2 * evidence_before);
  sample_.tokens_per_step *= 16;
  EXPECT_NEAR(see(0.05).scale_percent, before / 2, 0.1 * before) << "√(1/16)";
}

TEST_F(GapDetectorTest, ASmallChangeOfCadenceCostsLittle) {
  healthy(60);
  const double freedom = state_.scale.freedom;
  sample_.steps = 21;
  EXPECT_GT(see(0.04).freedom, 0.98 * freedom);
}

TEST_F(GapDetectorTest, ACadenceThatIsNotKnownChangesNothing) {
  healthy(60);
  const double before = gap_scale_percent(state_.scale, sample_, settings_);
  sample_.steps = 0;
  sample_.tokens_per_step = 0;
  EXPECT_EQ(see(0.04).scale_percent, before);
}

TEST_F(GapDetectorTest, AnotherPlanBeginsAnew) {
  healthy(60);
  see(0.2);
  sample_.plan_version = 2;
  const GapVerdict verdict = see(0.04);
  EXPECT_LE(verdict.statistic, 2);
  EXPECT_EQ(verdict.null_percent, settings_.tolerance_percent);
  EXPECT_LE(verdict.freedom, 4);
  EXPECT_NEAR(verdict.scale_percent, 0.02, 0.01) << "the best guess there is";
}

TEST_F(GapDetectorTest, ASuspicionAsksForFreshWindowsOnce) {
  healthy(60);
  GapVerdict verdict;
  int windows = 0;
  do {
    verdict = see(*state_.scale.null_percent + 0.03);
    EXPECT_LT(++windows, 50);
  } while (!verdict.suspicious);
  EXPECT_GE(verdict.statistic, 100);
  EXPECT_FALSE(verdict.alarm);
  EXPECT_EQ(verdict.burst_left, kBurstWindows);
  const GapVerdict next = see(*state_.scale.null_percent);
  EXPECT_FALSE(next.suspicious);
  EXPECT_EQ(next.burst_left, kBurstWindows - 1);
  while (see(*state_.scale.null_percent - 0.04).statistic >= 25) {
  }
  EXPECT_EQ(state_.evidence.burst_left, 0) << "R fell: no more are wanted";
}

TEST_F(GapDetectorTest, ABurstThatIsAskedForReplacesAnotherAndDoesNotEndEarly) {
  healthy(60);
  while (!see(*state_.scale.null_percent + 0.03).suspicious) {
  }
  ask_burst(state_, settings_);
  for (int64_t left = kAskedWindows - 1; left >= 0; --left)
    EXPECT_EQ(see(*state_.scale.null_percent - 0.04).burst_left, left);
  EXPECT_EQ(see(*state_.scale.null_percent - 0.04).burst_left, 0);
  settings_.kind = "fixed";
  ask_burst(state_, settings_);
  EXPECT_EQ(state_.evidence.burst_left, 0) << "a rival never counts one down";
}

TEST_F(GapDetectorTest, ABurstThatDecidesNothingIsFollowedByAnotherOnlyWhenTheEvidenceHasGrown) {
  settings_.windows_between_false_alarms = 1e6;
  healthy(60);
  int bursts = 0;
  int64_t ordered = 0;
  double last = 0;
  for (int i = 0; i < 400; ++i) {
    // Hovers: R is held between the suspicion and the alarm.
    const bool high = evidence() > 3000;
    const GapVerdict verdict = see(*state_.scale.null_percent + (high ? -0.01 : 0.02));
    ASSERT_FALSE(verdict.alarm);
    ordered += verdict.burst_left > 0;
    if (!verdict.suspicious) continue;
    EXPECT_TRUE(bursts == 0 || verdict.statistic >= 4 * last);
    last = verdict.statistic;
    bursts += 1;
  }
  EXPECT_GE(bursts, 1);
  EXPECT_LE(bursts, 4);
  EXPECT_LE(ordered, 4 * kBurstWindows);
}

TEST_F(GapDetectorTest, WithoutBurstsNothingIsAskedFor) {
  settings_.burst = false;
  healthy(60);
  while (true) {
    const GapVerdict verdict = see(0.12);
    EXPECT_FALSE(verdict.suspicious);
    if (verdict.alarm) break;
  }
}

TEST_F(GapDetectorTest, NoiseOfAnyShapeIsSilentUntilTheScaleIsKnown) {
  settings_.noise = "any";
  EXPECT_EQ(see(5).statistic, 1);
  EXPECT_EQ(see(5).statistic, 2);
  healthy(40);
  EXPECT_ALARM_WITHIN(10, 0.5);  // the scale still knows of the two windows far out
}

TEST_F(GapDetectorTest, TheEvidenceStaysFiniteHoweverLongAnAlarmIsIgnored) {
  healthy(40);
  for (int i = 0; i < 2000; ++i) see(1000);
  EXPECT_TRUE(std::isfinite(see(1000).statistic));
  for (int i = 0; i < 200; ++i) see(-0.1);
  EXPECT_LT(evidence(), 10) << "it falls when the gap does";
}

TEST_F(GapDetectorTest, StaysBoundedAndFiniteWhateverComes) {
  GapNoise noise(noise_shape("t3"), 9);
  const double wild[] = {1e300, -1e300, 0, 1e-300, std::nan(""), kInfinity, -1e17, 0.05};
  for (const char* kind : {"eprocess", "fixed", "shewhart", "cusum", "ewma", "glr"}) {
    settings_.kind = kind;
    GapState state;
    for (int i = 0; i < 20000; ++i) {
      GapSample sample;
      const double draw = noise.next();
      sample.d_percent = draw > 1.5 ? wild[i % 8] : 0.05 * draw;
      sample.floor_percent = i % 5 == 0 ? wild[(i + 3) % 8] : 0;
      sample.steps = i % 11 == 0 ? wild[i % 4] : 20;
      sample.tokens_per_step = i % 13 == 0 ? -4 : 1000;
      sample.plan_version = i / 1000;
      const GapVerdict verdict = observe_gap(state, sample, settings_);
      if (verdict.rule != "non_finite") {
        ASSERT_TRUE(std::isfinite(verdict.statistic)) << kind << " " << i;
        ASSERT_TRUE(std::isfinite(verdict.x));
        ASSERT_GT(verdict.scale_percent, 0);
      }
      if (i % 50 == 0) forget_newest(state, i % 19, settings_);
      if (i % 170 == 0) restart_gap(state);
      if (i % 700 == 0) accept_gap(state, wild[i % 8]);
      ASSERT_TRUE(std::isfinite(state.scale.variance));
      ASSERT_GE(state.scale.variance, 0);
    }
    EXPECT_LE(state.newest.size(), kGapNewestMax);
    EXPECT_LE(state.evidence.recent.size(), 32u);
  }
}

}  // namespace
}  // namespace gnomon::decide

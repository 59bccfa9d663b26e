#include "controller/decide/gap_rivals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "controller/decide/gap_noise.h"

namespace gnomon::decide {
namespace {

GapSettings settings_for(const char* kind, double windows) {
  GapSettings settings;
  settings.kind = kind;
  settings.windows_between_false_alarms = windows;
  return settings;
}

RivalReading read(GapEvidence& evidence, double x, const GapSettings& settings) {
  return observe_rival(evidence, 0.1 + 0.05 * x, x, false, settings);
}

// Windows per alarm of standard normal x, each alarm beginning anew.
double simulated(const GapSettings& settings, int64_t alarms_wanted) {
  GapNoise noise(noise_shape("gaussian"), 17);
  int64_t windows = 0;
  for (int64_t alarms = 0; alarms < alarms_wanted; ++alarms) {
    GapEvidence evidence;
    do {
      ++windows;
    } while (!read(evidence, noise.next(), settings).alarm);
  }
  return static_cast<double>(windows) / static_cast<double>(alarms_wanted);
}

TEST(RivalTest, TheKindsAreKnown) {
  for (const char* kind : {"fixed", "shewhart", "cusum", "ewma", "glr"})
    EXPECT_TRUE(is_rival(kind));
  EXPECT_FALSE(is_rival("eprocess"));
}

TEST(RivalTest, ThresholdsAreTheLiteraturesAtTenThousandWindows) {
  EXPECT_NEAR(rival_threshold("cusum", settings_for("cusum", 10000)), 7.36, 0.01);
  EXPECT_NEAR(rival_threshold("ewma", settings_for("ewma", 10000)) * 3, 3.65, 0.01);
  EXPECT_NEAR(rival_threshold("shewhart", settings_for("shewhart", 10000)), 3.719, 0.001);
  EXPECT_NEAR(rival_threshold("shewhart", settings_for("shewhart", 1 / 0.0013499)), 3, 0.001);
  EXPECT_EQ(rival_threshold("fixed", settings_for("fixed", 10000)), 0.25);
}

TEST(RivalTest, InGaussianNoiseFalseAlarmsAreAsRareAsWanted) {
  for (const char* kind : {"shewhart", "cusum", "ewma", "glr"}) {
    for (double windows : {150.0, 1000.0}) {
      const double found = simulated(settings_for(kind, windows), 300);
      EXPECT_NEAR(found / windows, 1, 0.17) << kind << " " << windows;
    }
  }
}

// The mean run length of the EWMA by a Markov chain over its value (Brook and Evans 1972).
double ewma_run_length(double limit) {
  constexpr size_t kStates = 120;
  const double low = -2.2;
  const double width = (limit - low) / kStates;
  const auto normal = [](double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; };
  std::vector<std::vector<double>> system(kStates, std::vector<double>(kStates + 1, 1.0));
  for (size_t i = 0; i < kStates; ++i) {
    const double z = low + (static_cast<double>(i) + 0.5) * width;
    for (size_t j = 0; j < kStates; ++j) {
      const double from = low + static_cast<double>(j) * width;
      const auto share = [&](double value) { return normal((value - 0.8 * z) / 0.2); };
      const double p = share(from + width) - (j == 0 ? 0 : share(from));
      system[i][j] = (i == j ? 1 : 0) - p;
    }
  }
  for (size_t k = 0; k < kStates; ++k) {  // Gauss and Jordan; the system is diagonally dominant
    for (size_t i = 0; i < kStates; ++i) {
      if (i == k) continue;
      const double factor = system[i][k] / system[k][k];
      for (size_t j = k; j <= kStates; ++j) system[i][j] -= factor * system[k][j];
    }
  }
  const auto start = static_cast<size_t>(-low / width);
  return system[start][kStates] / system[start][start];
}

TEST(RivalTest, TheEwmasThresholdSolvesItsMarkovChain) {
  for (double windows : {100.0, 1e3, 1e4, 1e5, 1e6}) {
    const double length = ewma_run_length(rival_threshold("ewma", settings_for("ewma", windows)));
    EXPECT_NEAR(length / windows, 1, 0.05) << windows;
  }
}

TEST(RivalTest, CusumIsPagesSum) {
  const GapSettings settings = settings_for("cusum", 10000);
  GapEvidence evidence;
  EXPECT_DOUBLE_EQ(read(evidence, 2, settings).statistic, 1.5);
  EXPECT_DOUBLE_EQ(read(evidence, -0.5, settings).statistic, 0.5);
  EXPECT_DOUBLE_EQ(read(evidence, -3, settings).statistic, 0);
}

TEST(RivalTest, EwmaIsTheWeightedMean) {
  const GapSettings settings = settings_for("ewma", 10000);
  GapEvidence evidence;
  EXPECT_DOUBLE_EQ(read(evidence, 2, settings).statistic, 0.4);
  EXPECT_DOUBLE_EQ(read(evidence, 1, settings).statistic, 0.52);
}

TEST(RivalTest, GlrTakesTheBestOfThe32NewestSums) {
  const GapSettings settings = settings_for("glr", 10000);
  GapEvidence evidence;
  EXPECT_DOUBLE_EQ(read(evidence, 2, settings).statistic, 2);
  EXPECT_DOUBLE_EQ(read(evidence, 1, settings).statistic, 2.25) << "(2 + 1)²/(2·2)";
  EXPECT_DOUBLE_EQ(read(evidence, -9, settings).statistic, 0);
  for (int i = 0; i < 100; ++i) read(evidence, 0, settings);
  EXPECT_EQ(evidence.recent.size(), kGlrWindows);
}

TEST(RivalTest, FixedComparesD) {
  GapSettings settings = settings_for("fixed", 10000);
  GapEvidence evidence;
  EXPECT_FALSE(observe_rival(evidence, 0.25, 99, true, settings).alarm);
  EXPECT_TRUE(observe_rival(evidence, 0.26, -99, true, settings).alarm) << "needs no baseline";
  settings.threshold = 0.4;
  EXPECT_FALSE(observe_rival(evidence, 0.39, 0, false, settings).alarm);
}

TEST(RivalTest, AThresholdThatIsGivenIsTaken) {
  for (const char* kind : {"shewhart", "cusum", "glr"}) {
    GapSettings settings = settings_for(kind, 10000);
    settings.threshold = 3;
    EXPECT_EQ(rival_threshold(kind, settings), 3) << kind;
  }
  GapSettings settings = settings_for("ewma", 10000);
  settings.threshold = 3;
  EXPECT_EQ(rival_threshold("ewma", settings), 1) << "in deviations of the mean";
}

TEST(RivalTest, TheyAreSilentUntilTheBaselineIsKnown) {
  for (const char* kind : {"shewhart", "cusum", "ewma", "glr"}) {
    GapSettings settings = settings_for(kind, 10000);
    settings.ceiling_percent = 100;
    GapState state;
    GapSample sample;
    for (int i = 0; i < 20; ++i) {
      sample.d_percent = i == 7 ? 3 : i % 2 == 0 ? 0.03 : 0.05;
      EXPECT_FALSE(observe_gap(state, sample, settings).alarm);
    }
    sample.d_percent = 9;
    const GapVerdict verdict = observe_gap(state, sample, settings);
    EXPECT_TRUE(verdict.alarm) << kind;
    EXPECT_EQ(verdict.rule, kind);
    EXPECT_GT(verdict.statistic, verdict.threshold);
  }
}

}  // namespace
}  // namespace gnomon::decide

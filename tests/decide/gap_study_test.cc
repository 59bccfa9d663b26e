#include "controller/decide/gap_study.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gnomon::decide {
namespace {

GapSettings detector(const char* kind, double windows) {
  GapSettings settings;
  settings.kind = kind;
  settings.windows_between_false_alarms = windows;
  return settings;
}

TEST(DetectorStudyTest, FalseAlarmsAreCountedWithTheirInterval) {
  const FalseAlarms found =
      count_false_alarms(detector("eprocess", 100), noise_shape("gaussian"), 2000, 100, 1000000, 1);
  EXPECT_EQ(found.alarms, 100);
  EXPECT_DOUBLE_EQ(found.between, static_cast<double>(found.windows) / 100);
  // 100 events: the 95% interval of a Poisson mean is 81.4 to 121.6.
  EXPECT_NEAR(found.between_low * 121.6 / static_cast<double>(found.windows), 1, 1e-3);
  EXPECT_NEAR(found.between_high * 81.4 / static_cast<double>(found.windows), 1, 1e-3);
  EXPECT_GT(found.between_low, 100) << "as promised";
  EXPECT_GT(found.suspicions, found.alarms / 2);
  EXPECT_GT(found.burst_windows, 0);
}

TEST(DetectorStudyTest, TheSameSeedGivesTheSameNumbers) {
  const auto once = [](uint64_t seed) {
    return count_false_alarms(detector("cusum", 100), noise_shape("t4"), 2000, 30, 1000000, seed)
        .windows;
  };
  EXPECT_EQ(once(5), once(5));
  EXPECT_NE(once(5), once(6));
}

TEST(DetectorStudyTest, CalibrationMeetsTheWantedRate) {
  for (const char* kind : {"eprocess", "shewhart", "fixed"}) {
    const GapSettings settings = calibrated(detector(kind, 100), noise_shape("laplace"), 100, 1);
    const FalseAlarms found =
        count_false_alarms(settings, noise_shape("laplace"), 2000, 400, 1000000, 77);
    EXPECT_NEAR(found.between / 100, 1, 0.25) << kind;
  }
}

TEST(DetectorStudyTest, ALargerFaultIsFoundEarlier) {
  const GapSettings settings = detector("eprocess", 1000);
  double before = 1e9;
  for (double size : {0.5, 1.0, 2.0, 4.0, 16.0}) {
    const Delay delay =
        measure_delay(settings, noise_shape("gaussian"), {"shift", size}, 60, 100, 3);
    EXPECT_LT(delay.mean, before);
    EXPECT_LE(delay.mean, delay.p95);
    EXPECT_LT(delay.ordered, delay.mean);
    EXPECT_EQ(delay.missed_share, 0);
    before = delay.mean;
  }
}

TEST(DetectorStudyTest, WhatIsNeverFoundIsSaid) {
  GapSettings settings = detector("fixed", 1000);
  settings.threshold = 50;
  const Delay delay = measure_delay(settings, noise_shape("gaussian"), {"shift", 1}, 5, 10, 3);
  EXPECT_EQ(delay.missed_share, 1);
  EXPECT_EQ(delay.mean, static_cast<double>(kDelayMax));
}

TEST(DetectorStudyTest, FaultsGrowAsTheyAreNamed) {
  EXPECT_EQ((GapFault{"shift", 2}.at(1)), 2);
  EXPECT_EQ((GapFault{"shift", 2}.at(9)), 2);
  EXPECT_EQ((GapFault{"ramp", 0.1}.at(30)), 3);
  EXPECT_EQ((GapFault{"blow_up", 0.25}.at(1)), 0.25);
  EXPECT_EQ((GapFault{"blow_up", 0.25}.at(5)), 4);
  EXPECT_TRUE(std::isfinite(GapFault{"blow_up", 1}.at(100000)));
}

}  // namespace
}  // namespace gnomon::decide

// What the gap detector promises, shape by shape: e-values by integration, windows between false
// alarms by simulation.
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>

#include "controller/decide/gap_detector.h"
#include "controller/decide/gap_evalues.h"
#include "controller/decide/gap_noise.h"

namespace gnomon::decide {
namespace {

// ∫ f(mean + z)·density(z) dz, with z = sinh(u): the tails of t₃ need z up to 10⁶.
template <class Function>
double mean_of(const NoiseShape& shape, double mean, Function f) {
  constexpr int kPoints = 30000;
  constexpr double kReach = 15;
  double total = 0;
  for (int i = 0; i < kPoints; ++i) {
    const double u = -kReach + (i + 0.5) * 2 * kReach / kPoints;
    const double z = std::sinh(u);
    const double density = shape.density(z);
    if (density > 0) total += f(mean + z) * density * std::cosh(u);
  }
  return total * 2 * kReach / kPoints;
}

constexpr double kIntegration = 1e-3;  // the skewed densities jump

TEST(NoiseTest, EveryDensityHasMeanZeroAndDeviationOne) {
  for (const NoiseShape& shape : noise_shapes()) {
    if (!shape.density) continue;
    EXPECT_NEAR(mean_of(shape, 0, [](double) { return 1.0; }), 1, kIntegration) << shape.name;
    EXPECT_NEAR(mean_of(shape, 0, [](double z) { return z; }), 0, kIntegration) << shape.name;
    EXPECT_NEAR(mean_of(shape, 0, [](double z) { return z * z; }), 1, kIntegration) << shape.name;
  }
}

TEST(NoiseTest, WhatIsDrawnFollowsTheDensity) {
  for (const NoiseShape& shape : noise_shapes()) {
    GapNoise noise(shape, 5);
    double sum = 0;
    double above = 0;
    double clipped = 0;
    constexpr int kDraws = 100000;
    for (int i = 0; i < kDraws; ++i) {
      const double z = noise.next();
      sum += z / kDraws;
      above += z > 0.7 ? 1.0 / kDraws : 0;
      clipped += std::min(z * z, 9.0) / kDraws;
    }
    EXPECT_NEAR(sum, 0, 0.025) << shape.name;
    if (!shape.density) {
      EXPECT_NEAR(clipped, 1, 0.03) << shape.name;
      continue;
    }
    const auto tail = [](double z) { return z > 0.7 ? 1.0 : 0.0; };
    const auto square = [](double z) { return std::min(z * z, 9.0); };
    EXPECT_NEAR(above, mean_of(shape, 0, tail), 0.01) << shape.name;
    EXPECT_NEAR(clipped, mean_of(shape, 0, square), 0.03) << shape.name;
  }
}

TEST(EvalueTest, TheMeanIsAtMostOneWhateverTheNoise) {
  for (bool symmetric : {true, false}) {
    for (const GapMember& member : gap_members(symmetric)) {
      for (const NoiseShape& shape : noise_shapes()) {
        if (!shape.density || (symmetric && !shape.symmetric)) continue;
        for (double mean : {0.0, -0.3, -2.0, -30.0}) {
          const double found =
              mean_of(shape, mean, [&](double z) { return member.evalue(z, member.rate); });
          EXPECT_LE(found, 1 + kIntegration)
              << member.name << " " << member.rate << " " << shape.name << " mean " << mean;
        }
      }
    }
  }
}

TEST(EvalueTest, TheSignNeedsNoScale) {
  for (double scale : {0.01, 0.3, 3.0, 100.0}) {
    for (const NoiseShape& shape : noise_shapes()) {
      if (!shape.density || !shape.symmetric) continue;
      const double found = mean_of(shape, 0, [&](double z) { return sign_evalue(z / scale, 1); });
      EXPECT_NEAR(found, 1, kIntegration) << shape.name << " " << scale;
    }
  }
}

TEST(EvalueTest, TooSmallAScaleCostsNoMoreThanTheHeaderSays) {
  for (double r : {1.1, 1.5, 3.0}) {
    for (const NoiseShape& shape : noise_shapes()) {
      if (!shape.density) continue;
      for (double rate : {0.25, 1.0, 4.0}) {
        const double a = rate * rate / (1 + rate * rate);
        const double squares = rate * rate / 2;
        EXPECT_LE(mean_of(shape, 0, [&](double z) { return catoni_evalue(r * z, rate); }),
                  (1 + r * r * squares) / (1 + squares) + kIntegration);
        if (!shape.symmetric) continue;
        EXPECT_LE(mean_of(shape, 0, [&](double z) { return moment_evalue(r * z, rate); }),
                  1 + a * (r * r - 1) + kIntegration);
      }
    }
  }
}

TEST(EvalueTest, EachIncreasesInDAndIsFiniteFarOut) {
  for (bool symmetric : {true, false}) {
    for (const GapMember& member : gap_members(symmetric)) {
      double before = 0;
      for (double z = -40; z < 40; z += 0.01) {
        const double e = member.evalue(z, member.rate);
        EXPECT_GE(e, before * (1 - 1e-12)) << member.name << " " << member.rate << " at " << z;
        before = e;
      }
      EXPECT_TRUE(std::isfinite(member.evalue(1e300, member.rate)));
      EXPECT_GE(member.evalue(-1e300, member.rate), 0);
    }
  }
}

TEST(EvalueTest, AllOfThemAtOnceAreTheSameAsOneByOne) {
  for (bool symmetric : {true, false}) {
    double weights = 0;
    for (const GapMember& member : gap_members(symmetric)) weights += member.weight;
    EXPECT_NEAR(weights, 1, 1e-12);
    for (double x : {-1e9, -50.0, -3.0, -0.2, 0.0, 0.7, 4.0, 60.0, 1e9}) {
      const double y = 0.8 * x;
      for (bool known : {true, false}) {
        const GapEvalues all = gap_evalues(x, y, known, symmetric);
        for (size_t j = 0; j < kGapMembers; ++j) {
          const GapMember& member = gap_members(symmetric)[j];
          const double one = !member.scaled ? member.evalue(x, member.rate)
                             : known        ? member.evalue(y, member.rate)
                                            : 1.0;
          EXPECT_NEAR(all[j], one, 1e-9 * (1 + one)) << member.name << " " << member.rate;
        }
      }
    }
  }
}

TEST(EvalueTest, TheScalesConfidenceIsThatOfChiSquare) {
  // 10% quantiles of χ²: 0.211 (2), 1.064 (4), 4.865 (10), 29.05 (40).
  EXPECT_NEAR(scale_confidence(2), std::sqrt(2 / 0.211), 0.15);
  EXPECT_NEAR(scale_confidence(4), std::sqrt(4 / 1.064), 0.02);
  EXPECT_NEAR(scale_confidence(10), std::sqrt(10 / 4.865), 0.002);
  EXPECT_NEAR(scale_confidence(40), std::sqrt(40 / 29.05), 0.001);
  EXPECT_TRUE(std::isinf(scale_confidence(1.99)));
}

// -- windows between false alarms

struct Scenario {
  const char* name;
  double prior_over_scale = 1;
  // The window's sample; the deviation that D has there is returned.
  double (*shape)(int64_t window, GapSample& sample) = nullptr;
};

void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }

double steady(int64_t, GapSample&) { return 1; }
double other_cadences(int64_t window, GapSample& sample) {
  sample.steps = window / 37 % 2 == 0 ? 20 : 80;
  sample.tokens_per_step = window / 50 % 2 == 0 ? 1000 : 4000;
  return std::sqrt(sample.steps / 20 * 1000 / sample.tokens_per_step);
}
double other_plans(int64_t window, GapSample& sample) {
  sample.plan_version = 1 + window / 60;
  return sample.plan_version % 2 == 0 ? 3 : 1;
}
double calmer(int64_t window, GapSample&) {
  return std::max(0.1, 1 - 0.002 * static_cast<double>(window % 1000));
}

const Scenario kScenarios[] = {
    {"steady", 1, steady},           {"prior too small", 0.1, steady},
    {"prior too large", 10, steady}, {"cadences", 1, other_cadences},
    {"plans", 1, other_plans},       {"noise falls", 1, calmer},
};

struct Count {
  double between = 0;
  double early_share = 0;  // runs with an alarm in their first windows
};

// The worst null: a mean of exactly the tolerance.
Count count(const GapSettings& wanted, const NoiseShape& noise_of, const Scenario& scenario,
            int64_t alarms_wanted, int64_t early) {
  constexpr double kScale = 0.05;
  GapSettings settings = wanted;
  settings.ceiling_percent = INFINITY;
  settings.prior_scale_percent = kScale * scenario.prior_over_scale;
  GapNoise noise(noise_of, 11);
  int64_t windows = 0;
  int64_t alarms = 0;
  int64_t runs = 0;
  int64_t early_runs = 0;
  while (alarms < alarms_wanted && windows < 100000) {
    GapState state;
    runs += 1;
    for (int64_t w = 0; w < 5000; ++w) {
      GapSample sample;
      const double deviation = scenario.shape(w, sample);
      sample.d_percent = settings.tolerance_percent + kScale * deviation * noise.next();
      windows += 1;
      if (!observe_gap(state, sample, settings).alarm) continue;
      alarms += 1;
      early_runs += w < early;
      break;
    }
  }
  return {static_cast<double>(windows) / std::max<double>(1, static_cast<double>(alarms)),
          static_cast<double>(early_runs) / static_cast<double>(runs)};
}

class FalseAlarmTest : public ::testing::TestWithParam<Scenario> {};

constexpr double kCorrelationMax = 0.4;  // of neighbours, up to which the promise is kept

TEST_P(FalseAlarmTest, AreAsRareAsPromisedWhereNeighboursAreCorrelatedToo) {
  for (const char* kind : {"symmetric", "any"}) {
    for (const NoiseShape& shape : noise_shapes()) {
      if (shape.correlation > kCorrelationMax) continue;
      if (!shape.symmetric && std::string(kind) == "symmetric") continue;
      GapSettings settings;
      settings.noise = kind;
      settings.windows_between_false_alarms = 100;
      const Count found = count(settings, shape, GetParam(), 300, 20);
      EXPECT_GE(found.between, 100) << shape.name << " " << kind;
      EXPECT_LE(found.early_share, 0.2) << shape.name << " " << kind;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Scenarios, FalseAlarmTest, ::testing::ValuesIn(kScenarios),
                         [](const auto& scenario) {
                           std::string name = scenario.param.name;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

TEST(FalseAlarmTest, ABurstAddsNone) {
  GapSettings settings;
  settings.windows_between_false_alarms = 300;
  const Scenario& scenario = kScenarios[0];
  settings.burst = true;
  const Count with = count(settings, noise_shape("t4"), scenario, 200, 20);
  settings.burst = false;
  const Count without = count(settings, noise_shape("t4"), scenario, 200, 20);
  EXPECT_EQ(with.between, without.between) << "the evidence is the same";
}

TEST(FalseAlarmTest, ABaselineLearnedFromTheRunKeepsThemRare) {
  GapSettings settings;
  settings.windows_between_false_alarms = 200;
  settings.tolerance_percent = 10;  // far above: δ0 is what was learned
  GapNoise noise(noise_shape("gaussian"), 3);
  int64_t windows = 0;
  int64_t alarms = 0;
  for (int run = 0; run < 300; ++run) {
    GapState state;
    for (int w = 0; w < 1000; ++w) {
      windows += 1;
      GapSample sample;
      sample.d_percent = 0.04 + 0.05 * noise.next();
      if (!observe_gap(state, sample, settings).alarm) continue;
      alarms += 1;
      break;
    }
  }
  EXPECT_LT(static_cast<double>(alarms), static_cast<double>(windows) / 200);
}

}  // namespace
}  // namespace gnomon::decide

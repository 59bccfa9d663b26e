#include "controller/decide/cadence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/errors.h"
#include "controller/decide/hazard.h"

namespace gnomon::decide {
namespace {

using ::testing::HasSubstr;

RunModel twenty_step_windows() {
  RunModel model;
  model.window_steps = 20;
  return model;
}

CadenceLimits limits(int64_t checkpoint_every) {
  return {.every_min = 1, .every_max = 1'000'000, .checkpoint_every = checkpoint_every};
}

TEST(CadenceTest, TheFirstIsTheBestMultipleOfTheCheckpointInterval) {
  for (int64_t unit : {1, 10, 100, 700, 5000}) {
    const Cadence chosen = choose_cadence(twenty_step_windows(), 1e-5, 0, limits(unit));
    EXPECT_TRUE(chosen.changed);
    EXPECT_EQ(chosen.every % unit, 0);
    for (int64_t other = unit * (1 + 20 / unit); other < 20'000; other += unit) {
      EXPECT_LE(net_speedup(twenty_step_windows(), static_cast<double>(other), 1e-5),
                chosen.net + 1e-12)
          << other << " instead of " << chosen.every;
    }
  }
}

TEST(CadenceTest, ItStaysWhileAnotherOneWouldGainLittle) {
  const int64_t best = choose_cadence(twenty_step_windows(), 1e-5, 0, limits(10)).every;
  for (int64_t current : {best, best + 100, best - 100}) {
    const Cadence chosen = choose_cadence(twenty_step_windows(), 1e-5, current, limits(10));
    EXPECT_FALSE(chosen.changed);
    EXPECT_EQ(chosen.every, current);
    EXPECT_THAT(chosen.reason, HasSubstr("stays"));
  }
  const Cadence chosen =
      choose_cadence(twenty_step_windows(), 1e-5, best / 4 / 10 * 10, limits(10));
  EXPECT_TRUE(chosen.changed);
  EXPECT_EQ(chosen.every, best);
  EXPECT_GT(chosen.net, chosen.net_current * 1.002);
}

TEST(CadenceTest, ALearnedHazardMovesItAFewTimesAndNeverBackAndForth) {
  std::mt19937_64 random(7);
  for (double truth : {1 / 5e3, 1 / 50e3, 1 / 1e6}) {
    Hazard hazard;
    int64_t every = 0;
    int changes = 0;
    for (int64_t step = 0; step < 1'000'000;) {
      const Cadence chosen =
          choose_cadence(twenty_step_windows(), hazard_mean(hazard), every, limits(10));
      changes += chosen.changed;
      every = chosen.every;
      step += every;
      observe_steps(hazard, every);
      observe_faults(
          hazard, std::poisson_distribution<int64_t>(truth * static_cast<double>(every))(random));
    }
    EXPECT_LE(changes, 12);
    const double best =
        net_speedup(twenty_step_windows(), best_every(twenty_step_windows(), truth), truth);
    EXPECT_GT(net_speedup(twenty_step_windows(), static_cast<double>(every), truth), best - 0.006);
  }
}

TEST(CadenceTest, TheLimitsHold) {
  CadenceLimits tight = limits(50);
  tight.every_min = 120;
  tight.every_max = 480;
  EXPECT_EQ(choose_cadence(twenty_step_windows(), 1e-2, 0, tight).every, 150);
  const Cadence rare = choose_cadence(twenty_step_windows(), 0, 0, tight);
  EXPECT_EQ(rare.every, 450);
  EXPECT_THAT(rare.reason, HasSubstr("as rarely as"));
  EXPECT_EQ(choose_cadence(twenty_step_windows(), 1e-2, 100, tight).every, 150)
      << "100 is below the least";
  EXPECT_EQ(choose_cadence(twenty_step_windows(), 1e-5, 449, tight).every, 450)
      << "449 is no multiple";
  EXPECT_EQ(choose_cadence(twenty_step_windows(), 1e-5, 500, tight).every, 450)
      << "500 is above the most";
}

TEST(CadenceTest, LimitsWithoutAMultipleBetweenThemGiveTheNextOne) {
  CadenceLimits tight = limits(100);
  tight.every_min = 110;
  tight.every_max = 190;
  EXPECT_EQ(choose_cadence(twenty_step_windows(), 1e-5, 0, tight).every, 200);
}

TEST(CadenceTest, SpareDevicesAreGivenTimeForEachWindow) {
  RunModel model = twenty_step_windows();
  model.spare_share = 0.1;
  const Cadence chosen = choose_cadence(model, 1e-5, 0, limits(10));
  EXPECT_EQ(chosen.every, 300);
  EXPECT_THAT(chosen.reason, HasSubstr("as often as the spare devices"));
}

TEST(CadenceTest, TheReasonSaysWhenFp8IsNotWorthIt) {
  EXPECT_THAT(choose_cadence(twenty_step_windows(), 1e-3, 0, limits(1)).reason,
              HasSubstr("not worth it"));
  const Cadence good = choose_cadence(twenty_step_windows(), 1e-5, 500, limits(1));
  EXPECT_THAT(good.reason, HasSubstr("instead of 500"));
  EXPECT_THAT(good.reason, HasSubstr("one fault in 100,000 FP8 steps"));
}

TEST(CadenceTest, TheReasonSaysWhenSpareDevicesCannotVerifyAsOftenAsAsked) {
  RunModel model = twenty_step_windows();
  model.spare_share = 0.1;
  CadenceLimits few = limits(10);
  few.every_max = 100;
  const Cadence chosen = choose_cadence(model, 1e-5, 0, few);
  EXPECT_EQ(chosen.every, 300);
  EXPECT_THAT(chosen.reason, HasSubstr("though every_max asks for more"));
}

TEST(CadenceTest, NonsenseIsRefused) {
  const auto refused = [](CadenceLimits wrong) {
    EXPECT_THROW(choose_cadence(twenty_step_windows(), 1e-5, 0, wrong), ConfigError);
  };
  refused({.every_min = 0});
  refused({.every_min = 10, .every_max = 9});
  refused({.every_max = 2'000'000'000});
  refused({.checkpoint_every = 0});
  refused({.gain_min = NAN});
  refused({.gain_min = -1});
  EXPECT_THROW(choose_cadence(twenty_step_windows(), NAN, 0, limits(1)), ConfigError);
  RunModel slow = twenty_step_windows();
  slow.spare_share = 1e-6;
  slow.window_steps = 1e6;
  EXPECT_THROW(choose_cadence(slow, 1e-5, 0, limits(1)), ConfigError);
  EXPECT_GT(choose_cadence(twenty_step_windows(), 1e-5, -17, limits(1)).every, 0)
      << "taken as none yet";
}

}  // namespace
}  // namespace gnomon::decide

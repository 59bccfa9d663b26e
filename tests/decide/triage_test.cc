// What triage compares: a replay with what it was to reproduce, a rescue with the gap that it was
// to close.
#include "controller/decide/triage.h"

#include <gtest/gtest.h>

#include <cmath>
#include <ostream>

#include "tests/decide/triage_support.h"

namespace gnomon::decide {
namespace {

ReplayFinished replay_of(std::vector<double> losses, std::optional<double> end = std::nullopt) {
  ReplayFinished replay;
  for (size_t i = 0; i < losses.size(); ++i) replay.steps.push_back(static_cast<int64_t>(101 + i));
  replay.losses = std::move(losses);
  replay.replay_end_loss_bf16 = end;
  return replay;
}

struct SameCase {
  const char* name;
  bool fingerprint_equal;
  int64_t compared_steps;
  std::optional<int64_t> mismatch;
  std::optional<double> end;  // of the same replay; the gap is 2% of 2.0
  bool reproduces;
  bool bitwise;
};
void PrintTo(const SameCase& table, std::ostream* out) { *out << table.name; }

class SameGap : public ::testing::TestWithParam<SameCase> {};

TEST_P(SameGap, IsToldByBitsWhereTheyCountAndByLossesElse) {
  const SameCase& c = GetParam();
  ReplayFinished same = replay_of({3, 3, 3}, c.end);
  same.fingerprint_equal = c.fingerprint_equal;
  same.compared_steps = c.compared_steps;
  same.first_mismatch_step = c.mismatch;
  const Reproduction result = compare_same_gap(same, gap_of(2));
  EXPECT_EQ(result.reproduces, c.reproduces);
  EXPECT_EQ(result.bitwise, c.bitwise);
  EXPECT_FALSE(result.sentence.empty());
}

INSTANTIATE_TEST_SUITE_P(
    Table, SameGap,
    ::testing::Values(SameCase{"BitsEqual", true, 20, std::nullopt, 2.0, true, true},
                      SameCase{"BitsDiffer", true, 20, 110, 2.04, false, true},
                      SameCase{"OtherMachineShowsTheGap", false, 20, 101, 2.04, true, false},
                      SameCase{"OtherMachineShowsMostOfTheGap", false, 20, 101, 2.03, true, false},
                      SameCase{"OtherMachineShowsNoGap", false, 20, 101, 2.001, false, false},
                      SameCase{"NothingCompared", true, 0, std::nullopt, 2.0, false, false},
                      SameCase{"NothingMeasured", false, 0, std::nullopt, std::nullopt, true,
                               false},
                      SameCase{"OtherMachineNotFinite", false, 20, 101, NAN, true, false}),
    [](const auto& table) { return table.param.name; });

TEST(TriageTest, AWindowWithoutAGapIsNotSaidToReproduceOrNot) {
  for (const double percent : {0.0, -0.5}) {
    const Reproduction result = compare_same_gap(replay_of({3}, 2.0), gap_of(percent));
    EXPECT_TRUE(result.reproduces);
    EXPECT_NE(result.sentence.find("tells nothing"), std::string::npos);
  }
}

TEST(TriageTest, BlowUpReproducesOnlyWhenTheReplayBlowsUpToo) {
  Measurement blow_up;
  blow_up.reference = 2.0;
  blow_up.d_percent = HUGE_VAL;
  EXPECT_TRUE(compare_same_gap(replay_of({3}, NAN), blow_up).reproduces);
  EXPECT_FALSE(compare_same_gap(replay_of({3}, 2.0), blow_up).reproduces);
}

// From step 41 to 110 about `level`, and `peak` at one step.
ReplayFinished from_afar(double level, double peak, int64_t at) {
  ReplayFinished replay;
  for (int64_t step = 41; step <= 110; ++step) {
    replay.steps.push_back(step);
    replay.losses.push_back(step == at ? peak : level + (step % 2 == 0 ? 0.05 : -0.05));
  }
  return replay;
}

TEST(TriageTest, AReplayFromAfarSpikesOverItsOwnTrend) {
  const SpikeFinding finding = spike_finding();  // step 105: 4 where 3 was expected
  const auto spikes = [&](double level, double peak, int64_t at) {
    return compare_spike(from_afar(level, peak, at), finding, 70, 8).spikes;
  };
  EXPECT_TRUE(spikes(2, 2.7, 105)) << "without the run's damage, and it spikes all the same";
  EXPECT_TRUE(spikes(2, 2.7, 98)) << "a little off the run's step";
  EXPECT_FALSE(spikes(2, 2.4, 105)) << "less than half as high";
  EXPECT_FALSE(spikes(2, 2.7, 85)) << "that is another one";
  EXPECT_TRUE(spikes(3, 3.6, 105));
  EXPECT_TRUE(spikes(3.3, 3.55, 105)) << "over the threshold";
  EXPECT_FALSE(compare_spike(from_afar(2, 2.7, 105), finding, 70).spikes) << "not from afar";
}

TEST(TriageTest, SpikesAreComparedAboutTheSameStep) {
  EXPECT_TRUE(compare_spike(replay_of({3, 3, 3, 3, 3.9}), spike_finding(), 5).spikes);
  EXPECT_TRUE(compare_spike(replay_of({3, 3, 3, 3.9, 3}), spike_finding(), 5).spikes)
      << "one step earlier";
  EXPECT_FALSE(compare_spike(replay_of({3.9, 3, 3, 3, 3}), spike_finding(), 5).spikes)
      << "four steps earlier";
  EXPECT_FALSE(compare_spike(replay_of({3, 3, 3, 3, 3.1}), spike_finding(), 5).spikes);
  EXPECT_TRUE(compare_spike(replay_of({3, 3, 3, 3, 3.5}), spike_finding(), 5).spikes)
      << "half as high";
}

TEST(TriageTest, AReplayThatStopsEarlyIsNotFinite) {
  EXPECT_TRUE(compare_spike(replay_of({3, 3, 3}), nan_finding(), 5).non_finite);
  EXPECT_TRUE(compare_spike(replay_of({3, 3, 3, NAN, NAN}), nan_finding(), 5).non_finite);
  EXPECT_FALSE(compare_spike(replay_of({3, 3, 3, 3, 3}), nan_finding(), 5).non_finite);
}

TEST(TriageTest, SpikesOnAnotherMachineReproduceWhenTheyAreSeen) {
  EXPECT_TRUE(compare_same_spike(replay_of({3, 3, 3, 3, 4}), spike_finding(), 5).reproduces);
  EXPECT_FALSE(compare_same_spike(replay_of({3, 3, 3, 3, 3}), spike_finding(), 5).reproduces);
  EXPECT_TRUE(compare_same_spike(replay_of({3, 3, 3, 3}), nan_finding(), 5).reproduces);
  EXPECT_FALSE(compare_same_spike(replay_of({3, 3, 3, 3, 3}), nan_finding(), 5).reproduces);
}

TEST(TriageTest, FishersExactTest) {
  EXPECT_NEAR(fisher_p(4, 4, 0, 4), 1.0 / 70, 1e-12);
  EXPECT_NEAR(fisher_p(3, 4, 1, 4), 17.0 / 70, 1e-12);
  EXPECT_NEAR(fisher_p(0, 4, 0, 4), 1, 1e-12);
}

TEST(TriageTest, AGapIsCarriedOnAsItGrew) {
  EXPECT_NEAR(carried_on(0.1, 25, 0.1, 100, 100), 0.1, 1e-12) << "saturated";
  EXPECT_NEAR(carried_on(0.1, 25, 0.2, 100, 300), 0.4, 1e-12) << "as the root";
  EXPECT_NEAR(carried_on(0.1, 25, 0.4, 100, 300), 1.6, 1e-12) << "in proportion";
  EXPECT_NEAR(carried_on(0.1, 25, 4, 100, 300), 16, 1e-12) << "never faster than that";
  EXPECT_NEAR(carried_on(0.1, 25, -1, 100, 300), 0.1, 1e-12);
}

TEST(TriageTest, ARescueRecoversWithinWhatIsToleratedAndTakesAtLeastHalf) {
  EXPECT_DOUBLE_EQ(rescue_limit(2, 0.25), 0.25);
  EXPECT_DOUBLE_EQ(rescue_limit(3, 0.25), 0.3) << "the healthy sites cost something, too";
  EXPECT_DOUBLE_EQ(rescue_limit(100, 0.25), 0.375) << "a share of a large gap is no recovery";
  EXPECT_DOUBLE_EQ(rescue_limit(0.4, 0.25), 0.2);
  EXPECT_DOUBLE_EQ(rescue_limit(HUGE_VAL, 0.25), 0.25);
}

TEST(TriageTest, ARescueNearTheLimitIsReplayedAgainAndJudgedByItsMean) {
  EXPECT_EQ(rescue_recovers({0.2, 0.1, 1}, 0.25), true);
  EXPECT_EQ(rescue_recovers({0.5, 0.1, 1}, 0.25), std::nullopt) << "it may be chance";
  EXPECT_EQ(rescue_recovers({0.6, 0.1, 1}, 0.25), false);
  EXPECT_EQ(rescue_recovers({0.29, 0.05, 4}, 0.25), true);
  EXPECT_EQ(rescue_recovers({0.31, 0.05, 4}, 0.25), false);
  EXPECT_EQ(rescue_recovers({HUGE_VAL, 0.1, 1}, 0.25), false);
  EXPECT_EQ(rescue_recovers({HUGE_VAL, 0.05, 4}, 0.25), false);
}

TEST(TriageTest, ARescueAvoidsTheSpikeWhenItStaysUnderTheThresholdOrNearBf16) {
  const SpikeComparison bf16{3.0, false, false};
  EXPECT_TRUE(rescue_avoids_spike(replay_of({3, 3, 3, 3, 3.4}), spike_finding(), bf16, 0.25, 5));
  EXPECT_FALSE(rescue_avoids_spike(replay_of({3, 3, 3, 3, 3.9}), spike_finding(), bf16, 0.25, 5));
  EXPECT_FALSE(rescue_avoids_spike(replay_of({3, 3, 3}), spike_finding(), bf16, 0.25, 5))
      << "did not get there";
  EXPECT_TRUE(rescue_avoids_spike(replay_of({3, 3, 3, 3, 3.2}), nan_finding(), bf16, 0.25, 5));
  EXPECT_FALSE(rescue_avoids_spike(replay_of({3, 3, 3, 3, NAN}), nan_finding(), bf16, 0.25, 5));
}

}  // namespace
}  // namespace gnomon::decide

#include "controller/decide/triage.h"

#include <gtest/gtest.h>

#include <cmath>
#include <ostream>

namespace gnomon::decide {
namespace {

Measurement gap_of(double percent) {
  Measurement measured;
  measured.reference = 2.0;
  measured.gap = 2.0 * percent / 100;
  measured.d_percent = percent;
  return measured;
}

ReplayFinished replay_of(std::vector<double> losses, std::optional<double> end = std::nullopt) {
  ReplayFinished replay;
  for (size_t i = 0; i < losses.size(); ++i) replay.steps.push_back(static_cast<int64_t>(101 + i));
  replay.losses = std::move(losses);
  replay.replay_end_loss_bf16 = end;
  return replay;
}

// A spike of 4.0 at step 105 over a mean of 3.0; threshold 3.5.
SpikeFinding spike_finding() {
  SpikeFinding finding;
  finding.kind = "spike";
  finding.step = 105;
  finding.loss = 4.0;
  finding.expected = 3.0;
  finding.deviation = 0.07;
  finding.threshold = 3.5;
  return finding;
}

SpikeFinding nan_finding() {
  SpikeFinding finding = spike_finding();
  finding.kind = "non_finite";
  finding.loss = NAN;
  return finding;
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

TEST(TriageTest, BlowUpReproducesOnlyWhenTheReplayBlowsUpToo) {
  Measurement blow_up;
  blow_up.reference = 2.0;
  blow_up.d_percent = HUGE_VAL;
  EXPECT_TRUE(compare_same_gap(replay_of({3}, NAN), blow_up).reproduces);
  EXPECT_FALSE(compare_same_gap(replay_of({3}, 2.0), blow_up).reproduces);
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

struct VerdictCase {
  const char* name;
  bool non_finite;           // trigger
  std::optional<bool> same;  // reproduces; absent = nobody could replay
  std::optional<int> bf16;   // 0 calm, 1 spikes, 2 not finite; absent = nobody could replay
  const char* verdict;
};
void PrintTo(const VerdictCase& table, std::ostream* out) { *out << table.name; }

class Verdict : public ::testing::TestWithParam<VerdictCase> {};

TEST_P(Verdict, FollowsTheTable) {
  const VerdictCase& c = GetParam();
  std::optional<Reproduction> same;
  if (c.same) same = Reproduction{*c.same, true, std::nullopt, ""};
  std::optional<SpikeComparison> bf16;
  if (c.bf16) bf16 = SpikeComparison{3.0, *c.bf16 == 2, *c.bf16 == 1};
  EXPECT_EQ(spike_verdict(c.non_finite ? nan_finding() : spike_finding(), same, bf16), c.verdict);
}

INSTANTIATE_TEST_SUITE_P(
    Table, Verdict,
    ::testing::Values(VerdictCase{"SpikeNotReproduced", false, false, 1, "transient_fault"},
                      VerdictCase{"SpikeNotReproducedBf16Unknown", false, false, std::nullopt,
                                  "transient_fault"},
                      VerdictCase{"SpikeInBoth", false, true, 1, "generic_spike"},
                      VerdictCase{"SpikeAndBf16NotFinite", false, true, 2, "generic_spike"},
                      VerdictCase{"SpikeOfFp8", false, true, 0, "fp8_numerics"},
                      VerdictCase{"SpikeBf16Unknown", false, true, std::nullopt, "unexplained"},
                      VerdictCase{"SpikeSameUnknown", false, std::nullopt, 0, "unexplained"},
                      VerdictCase{"NanNotReproduced", true, false, 0, "transient_fault"},
                      VerdictCase{"NanInBoth", true, true, 2, "generic_spike"},
                      VerdictCase{"NanOfFp8", true, true, 0, "fp8_numerics"},
                      VerdictCase{"NanWhereBf16OnlySpikes", true, true, 1, "fp8_numerics"},
                      VerdictCase{"NanSameUnknown", true, std::nullopt, 2, "unexplained"}),
    [](const auto& table) { return table.param.name; });

TEST(TriageTest, GapVerdicts) {
  EXPECT_EQ(gap_verdict(std::nullopt), "unexplained");
  EXPECT_EQ(gap_verdict(Reproduction{true, true, std::nullopt, ""}), "fp8_numerics");
  EXPECT_EQ(gap_verdict(Reproduction{false, true, 5, ""}), "transient_fault");
}

TEST(TriageTest, ARescueClosesTheGapWhenLittleEnoughRemains) {
  // D = 4%: at most max(0.25·4, 0.5) = 1% may remain.
  EXPECT_TRUE(rescue_closes_gap(replay_of({3}, 2.0199), gap_of(4), 0.25, 0.5));
  EXPECT_FALSE(rescue_closes_gap(replay_of({3}, 2.0201), gap_of(4), 0.25, 0.5));
  // D = 0.6%, just over the tolerance: half of it must go, not a tenth.
  EXPECT_FALSE(rescue_closes_gap(replay_of({3}, 2.0 * 1.0045), gap_of(0.6), 0.25, 0.5));
  EXPECT_TRUE(rescue_closes_gap(replay_of({3}, 2.0 * 1.0029), gap_of(0.6), 0.25, 0.5));
  EXPECT_FALSE(rescue_closes_gap(replay_of({3}, NAN), gap_of(4), 0.25, 0.5));
  EXPECT_FALSE(rescue_closes_gap(replay_of({3}), gap_of(4), 0.25, 0.5));
}

TEST(TriageTest, ARescueOfABlowUpMustComeWithinTheTolerance) {
  Measurement blow_up = gap_of(0);
  blow_up.gap.reset();
  blow_up.d_percent = HUGE_VAL;
  EXPECT_TRUE(rescue_closes_gap(replay_of({3}, 2.009), blow_up, 0.25, 0.5));
  EXPECT_FALSE(rescue_closes_gap(replay_of({3}, 2.02), blow_up, 0.25, 0.5));
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

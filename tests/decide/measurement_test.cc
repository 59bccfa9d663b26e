#include "controller/decide/measurement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/special_numbers.h"

namespace gnomon::decide {
namespace {

ReplayFinished shadow(std::optional<double> run_end, std::optional<double> replay_end) {
  ReplayFinished replay;
  replay.start_loss_bf16 = 2.0;
  replay.start_loss_plan = 2.003;
  replay.run_end_loss_bf16 = run_end;
  replay.replay_end_loss_bf16 = replay_end;
  return replay;
}

TEST(MeasurementTest, GapAndOffsetAreMeasuredApart) {
  const Measurement measured = measure_shadow(shadow(2.04, 2.0));
  EXPECT_DOUBLE_EQ(*measured.gap, 2.04 - 2.0);
  EXPECT_DOUBLE_EQ(*measured.offset, 2.003 - 2.0);
  EXPECT_DOUBLE_EQ(*measured.d_percent, 100 * (2.04 - 2.0) / 2.0);
  EXPECT_TRUE(measured.unusable.empty());
}

TEST(MeasurementTest, ARunThatIsNotFiniteBesideAFiniteReplayIsAnAlarm) {
  for (double end : {std::nan(""), kInfinity, -kInfinity}) {
    const Measurement measured = measure_shadow(shadow(end, 2.0));
    EXPECT_TRUE(measured.unusable.empty());
    EXPECT_FALSE(measured.gap.has_value());
    EXPECT_TRUE(std::isinf(*measured.d_percent));
  }
}

TEST(MeasurementTest, WithoutAFiniteReferenceNothingCanBeSaid) {
  EXPECT_FALSE(measure_shadow(shadow(2.0, std::nan(""))).unusable.empty());
  EXPECT_FALSE(measure_shadow(shadow(std::nan(""), std::nan(""))).unusable.empty());
  EXPECT_FALSE(measure_shadow(shadow(2.0, std::nullopt)).unusable.empty());
  EXPECT_FALSE(measure_shadow(shadow(std::nullopt, 2.0)).unusable.empty());
  EXPECT_FALSE(measure_shadow(shadow(2.0, 0.0)).unusable.empty());
}

TEST(MeasurementTest, AProbeIsJudgedTheOtherWayRound) {
  const Measurement measured = measure_probe(shadow(2.0, 2.04));
  EXPECT_DOUBLE_EQ(*measured.gap, 2.04 - 2.0);
  EXPECT_TRUE(std::isinf(*measure_probe(shadow(2.0, std::nan(""))).d_percent));
}

TEST(MeasurementTest, TheGapsErrorIsTakenOver) {
  ReplayFinished replay = shadow(2.04, 2.0);
  replay.gap_error = 0.003;
  EXPECT_DOUBLE_EQ(*measure_shadow(replay).gap_error, 0.003);
  EXPECT_DOUBLE_EQ(*measure_shadow(replay).start_loss_plan, 2.003);
}

TEST(MeasurementTest, AProbeThatTurnsNonFiniteHasFailed) {
  ReplayFinished replay = shadow(2.0, 2.04);
  replay.replay_end_loss_bf16.reset();
  EXPECT_FALSE(measure_probe(replay).unusable.empty());
  replay.losses = {2.1, std::nan("")};
  EXPECT_TRUE(std::isinf(*measure_probe(replay).d_percent));
}

}  // namespace
}  // namespace gnomon::decide

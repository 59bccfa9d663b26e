#include "controller/replay_join.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

namespace gnomon {
namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN();

StepReport run_step(int64_t step, double loss, double grad_norm, const std::string& hash) {
  StepReport report;
  report.step = step;
  report.loss = loss;
  report.grad_norm = grad_norm;
  report.weights_hash = hash;
  return report;
}

decide::ReplayFinished join(const std::vector<ReplayStep>& replayed,
                            const std::vector<StepReport>& reported) {
  ReplayResult result;
  result.steps = replayed;
  return join_replay({1, 4, 2, "same", "", "triage", false, 0, "leased", 1}, result, reported, {});
}

TEST(ReplayJoinTest, EqualBitsEverywhereAreNoMismatch) {
  decide::ReplayFinished event = join({{11, 2.0, 1.0, "a"}, {12, 2.1, 1.1, "b"}},
                                      {run_step(11, 2.0, 1.0, "a"), run_step(12, 2.1, 1.1, "b")});
  EXPECT_EQ(event.replay, 4);
  EXPECT_EQ(event.window, 2);
  EXPECT_EQ(event.compared_steps, 2);
  EXPECT_FALSE(event.first_mismatch_step.has_value());
  EXPECT_THAT(event.run_losses, ::testing::ElementsAre(2.0, 2.1));
}

TEST(ReplayJoinTest, TheFirstStepThatDiffersInAnyOfTheThreeIsNamed) {
  StepReport own = run_step(11, 2.0, 1.0, "a");
  double next = std::nextafter(2.0, 3.0);
  EXPECT_EQ(join({{11, next, 1.0, "a"}}, {own}).first_mismatch_step, 11);
  EXPECT_EQ(join({{11, 2.0, std::nextafter(1.0, 2.0), "a"}}, {own}).first_mismatch_step, 11);
  EXPECT_EQ(join({{11, 2.0, 1.0, "b"}}, {own}).first_mismatch_step, 11);
  EXPECT_EQ(join({{11, 2.0, 1.0, "a"}, {12, 9, 9, "x"}, {13, 9, 9, "y"}},
                 {own, run_step(12, 2, 2, "z"), run_step(13, 2, 2, "z")})
                .first_mismatch_step,
            12);
}

TEST(ReplayJoinTest, TwoNanAreEqualAndNanAgainstANumberIsNot) {
  EXPECT_FALSE(join({{11, kNan, -kNan, "a"}}, {run_step(11, kNan, kNan, "a")})
                   .first_mismatch_step.has_value());
  EXPECT_EQ(join({{11, kNan, 1.0, "a"}}, {run_step(11, 2.0, 1.0, "a")}).first_mismatch_step, 11);
  EXPECT_EQ(join({{11, -0.0, 1.0, "a"}}, {run_step(11, 0.0, 1.0, "a")}).first_mismatch_step, 11);
}

TEST(ReplayJoinTest, StepsTheTrainerDidNotReportAreNotCompared) {
  decide::ReplayFinished event =
      join({{11, 2.0, 1.0, "a"}, {12, 3.0, 1.0, "b"}}, {run_step(11, 2.0, 1.0, "a")});
  EXPECT_EQ(event.compared_steps, 1);
  EXPECT_FALSE(event.first_mismatch_step.has_value());
  EXPECT_TRUE(std::isnan(event.run_losses[1]));
}

TEST(ReplayJoinTest, ANonFiniteLossOfTheRunIsNan) {
  double infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(
      std::isnan(join({{11, 2.0, 1.0, "a"}}, {run_step(11, infinity, 1.0, "a")}).run_losses[0]));
}

TEST(ReplayJoinTest, FingerprintsAreEqualOnlyInEveryMember) {
  Fingerprint own{"cpu A", "cpu", "lib 1", "build", 1, 2};
  ReplayResult result;
  result.fingerprint = own;
  EXPECT_TRUE(join_replay({}, result, {}, own).fingerprint_equal);
  result.fingerprint.threads = 1;
  EXPECT_FALSE(join_replay({}, result, {}, own).fingerprint_equal);
}

}  // namespace
}  // namespace gnomon

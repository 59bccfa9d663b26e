#include "controller/supervisor/replay_results.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tests/support/special_numbers.h"

namespace gnomon {
namespace {

StepRow run_step(int64_t step, double loss, double grad_norm, const std::string& hash) {
  StepRow report;
  report.step = step;
  report.loss = loss;
  report.grad_norm = grad_norm;
  report.weights_hash = hash;
  return report;
}

decide::ReplayFinished join(const std::vector<ReplayStep>& replayed,
                            const std::vector<StepRow>& reported) {
  ReplayResult result;
  result.steps = replayed;
  return join_replay({4, 2, "same", "", "triage"}, result, reported, {}, "host:7", false);
}

TEST(ReplayResultsTest, EqualBitsEverywhereAreNoMismatch) {
  decide::ReplayFinished event = join({{11, 2.0, 1.0, "a"}, {12, 2.1, 1.1, "b"}},
                                      {run_step(11, 2.0, 1.0, "a"), run_step(12, 2.1, 1.1, "b")});
  EXPECT_EQ(event.replay, 4);
  EXPECT_EQ(event.window, 2);
  EXPECT_EQ(event.compared_steps, 2);
  EXPECT_FALSE(event.first_mismatch_step.has_value());
  EXPECT_THAT(event.run_losses, ::testing::ElementsAre(2.0, 2.1));
}

TEST(ReplayResultsTest, TheFirstStepThatDiffersInAnyOfTheThreeIsNamed) {
  StepRow own = run_step(11, 2.0, 1.0, "a");
  double next = std::nextafter(2.0, 3.0);
  EXPECT_EQ(join({{11, next, 1.0, "a"}}, {own}).first_mismatch_step, 11);
  EXPECT_EQ(join({{11, 2.0, std::nextafter(1.0, 2.0), "a"}}, {own}).first_mismatch_step, 11);
  EXPECT_EQ(join({{11, 2.0, 1.0, "b"}}, {own}).first_mismatch_step, 11);
  EXPECT_EQ(join({{11, 2.0, 1.0, "a"}, {12, 9, 9, "x"}, {13, 9, 9, "y"}},
                 {own, run_step(12, 2, 2, "z"), run_step(13, 2, 2, "z")})
                .first_mismatch_step,
            12);
}

TEST(ReplayResultsTest, TwoNanAreEqualAndNanAgainstANumberIsNot) {
  EXPECT_FALSE(join({{11, kNan, -kNan, "a"}}, {run_step(11, kNan, kNan, "a")})
                   .first_mismatch_step.has_value());
  EXPECT_EQ(join({{11, kNan, 1.0, "a"}}, {run_step(11, 2.0, 1.0, "a")}).first_mismatch_step, 11);
  // The ledger keeps the sign of no zero: it is no difference to anybody.
  EXPECT_FALSE(
      join({{11, -0.0, 1.0, "a"}}, {run_step(11, 0.0, 1.0, "a")}).first_mismatch_step.has_value());
}

TEST(ReplayResultsTest, StepsTheTrainerDidNotReportAreNotCompared) {
  decide::ReplayFinished event =
      join({{11, 2.0, 1.0, "a"}, {12, 3.0, 1.0, "b"}}, {run_step(11, 2.0, 1.0, "a")});
  EXPECT_EQ(event.compared_steps, 1);
  EXPECT_FALSE(event.first_mismatch_step.has_value());
  EXPECT_TRUE(std::isnan(event.run_losses[1]));
}

TEST(ReplayResultsTest, ANonFiniteLossOfTheRunIsNan) {
  double infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(
      std::isnan(join({{11, 2.0, 1.0, "a"}}, {run_step(11, infinity, 1.0, "a")}).run_losses[0]));
}

TEST(ReplayResultsTest, TheFirstStepWithOtherTokensIsNamed) {
  const auto run = [](int64_t step, const std::string& batch) {
    StepRow report = run_step(step, 2.0, 1.0, "a");
    report.batch_hash = batch;
    return report;
  };
  const std::vector<ReplayStep> replayed = {
      {11, 2.0, 1.0, "a", "x"}, {12, 2.0, 1.0, "a", "y"}, {13, 2.0, 1.0, "a", "z"}};
  EXPECT_EQ(join(replayed, {run(11, "x"), run(12, "w"), run(13, "w")}).first_other_batch_step, 12);
  EXPECT_FALSE(join(replayed, {run(11, "x"), run(12, "")}).first_other_batch_step.has_value())
      << "a run that does not say";
}

TEST(ReplayResultsTest, WhatTheReplayCostAndWhoDidItIsTakenOver) {
  ReplayResult result;
  result.steps = {{11, 2.0, 1.0, "a"}, {12, 2.0, 1.0, "b"}};
  result.replay_seconds = 2;
  result.eval_seconds = 0.5;
  result.gap_error = 0.01;
  result.start_loss_plan = 2.1;
  result.start_loss_fakequant = 2.2;
  result.scores = {{"lm_head", 0.1, 0.2, 30}};
  const decide::ReplayFinished event = join_replay({}, result, {}, {}, "host:7", true);
  EXPECT_EQ(event.verifier, "host:7");
  EXPECT_TRUE(event.on_trainer);
  EXPECT_EQ(event.end_hash, "b");
  EXPECT_DOUBLE_EQ(event.seconds, 2.5);
  EXPECT_DOUBLE_EQ(*event.gap_error, 0.01);
  EXPECT_DOUBLE_EQ(*event.start_loss_plan, 2.2) << "the arm without the FP8 kernel says its own";
  ASSERT_EQ(event.scores.size(), 1u);
  EXPECT_EQ(event.scores[0].site, "lm_head");
}

TEST(ReplayResultsTest, FingerprintsAreEqualOnlyInEveryMember) {
  Fingerprint own{"cpu A", "cpu", "lib 1", "build", 1, 2};
  ReplayResult result;
  result.fingerprint = own;
  EXPECT_TRUE(join_replay({}, result, {}, own, "", false).fingerprint_equal);
  result.fingerprint.threads = 1;
  EXPECT_FALSE(join_replay({}, result, {}, own, "", false).fingerprint_equal);
}

}  // namespace
}  // namespace gnomon

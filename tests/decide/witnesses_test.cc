// Whom several sources let one believe, and whom they name.
#include "controller/decide/witnesses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

using ::testing::IsEmpty;

Witness said(const std::string& verifier, double d_percent, double reports) {
  Witness witness;
  witness.reports_percent = reports;
  witness.verifier = verifier;
  witness.measured.reference = 2.0;
  witness.measured.d_percent = d_percent;
  witness.measured.gap = 0.02 * d_percent;
  return witness;
}

class ReportedTest : public ::testing::Test {
 protected:
  std::optional<size_t> believed(double one, double other, double reports) {
    WindowState window;
    return believed(one, reports, other, reports);
  }
  std::optional<size_t> believed(double one, double its, double other, double of_other) {
    WindowState window;
    window.witnesses = {said("v1:1", one, its), said("v2:2", other, of_other)};
    return reported(core_, window);
  }
  State state_;
  Policy policy_;
  Core core_{state_, policy_, 0};
};

TEST_F(ReportedTest, TheOneThatTheTrainersLossesAreNearTo) {
  EXPECT_EQ(believed(5, 0.1, 4), 0u);
  EXPECT_EQ(believed(0.1, 5, 4), 1u);
}

TEST_F(ReportedTest, NobodyWhereTheyAreNearerToTheOther) {
  EXPECT_EQ(believed(1.59, 0.57, 0.6), std::nullopt);
  EXPECT_EQ(believed(5, 0.1, 1.5), std::nullopt);
}

// One of them lies in every loss that it sends, and nobody knows which.
TEST_F(ReportedTest, NobodyWhereEachOnesOwnLossesBearItOut) {
  EXPECT_EQ(believed(5, 4.9, 0.1, 0.05), std::nullopt);
}

// A liar whose losses all fit its lie: the honest one is not named, and FP8 is not blamed.
TEST(LiarThroughoutTest, HarmsNobody) {
  for (const char* liar : {"v1:1", "v2:2"}) {
    SimulatedRun run(Truth(), scenario_policy());
    run.lie = [&](ReplayFinished& answer) {
      if (answer.verifier != liar || !answer.arm.starts_with("bf16")) return;
      for (double& loss : answer.losses) loss *= 0.98;
      if (answer.replay_end_loss_bf16) *answer.replay_end_loss_bf16 *= 0.98;
    };
    run.start();
    run.train_until(1000);
    for (const std::string& named : run.state.trust.quarantined) EXPECT_EQ(named, liar);
    EXPECT_THAT(run.directives(""), IsEmpty());
  }
}

// Chance decides the step: one of three honest answers stands alone half of the time.
TEST(HonestNoiseTest, NamesNobodyWhereChanceDecidesASpike) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Truth truth;
    truth.equal_fingerprints = false;
    truth.inexact = true;
    truth.verifiers = {"v1:1", "v2:2", "v3:3"};
    truth.chance_spikes = {433};
    truth.total_steps = 800;
    SimulatedRun run(truth, scenario_policy());
    std::mt19937_64 bits(seed);
    run.lie = [&](ReplayFinished& answer) {
      if (answer.arm.starts_with("bf16") || answer.purpose != "triage") return;
      for (size_t i = 0; i < answer.steps.size(); ++i) {
        if (answer.steps[i] == 433) answer.losses[i] = 2.6 + (bits() % 2 == 0 ? 3 : 0);
      }
    };
    run.start();
    run.train_until(800);
    EXPECT_THAT(run.state.trust.quarantined, IsEmpty()) << seed;
  }
}

// What was judged by less than two others say is judged anew.
TEST(CountedTest, AWindowWhoseCountedGapIsLargerIsMeasuredAgain) {
  Truth truth = numerical_fault({kGuilty}, 1, 100'000, 0.075);
  truth.equal_fingerprints = false;
  truth.verifiers = {"v1:1", "v2:2", "v3:3"};
  truth.total_steps = 600;
  SimulatedRun run(truth, scenario_policy());
  run.lie = [](ReplayFinished& answer) {
    if (answer.verifier == "v1:1" && answer.arm == "bf16" && answer.replay_end_loss_bf16)
      *answer.replay_end_loss_bf16 *= 1.0145;
  };
  run.start();
  run.train_until(600);
  ASSERT_FALSE(run.directives("rollback").empty());
  EXPECT_EQ(run.directives("rollback").front().to_step, 0);
}

// Replays that are not exact: each strays, and nobody lies.
TEST(HonestNoiseTest, NamesNobodyAndBreaksNoInstrument) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Truth truth;
    truth.total_steps = 2400;
    truth.equal_fingerprints = false;
    truth.verifiers = {"v1:1", "v2:2", "v3:3"};
    truth.noise_percent = 0.02;
    SimulatedRun run(truth, scenario_policy());
    std::mt19937_64 bits(seed);
    std::normal_distribution<double> strays(0, 0.12);
    run.lie = [&](ReplayFinished& answer) {
      if (answer.arm.starts_with("bf16") && answer.replay_end_loss_bf16)
        *answer.replay_end_loss_bf16 *= 1 + strays(bits) / 100;
    };
    run.start();
    run.train_until(2400);
    EXPECT_THAT(run.state.trust.quarantined, IsEmpty()) << seed;
    EXPECT_THAT(run.directives(""), IsEmpty()) << seed;
    for (const RecordDecision& decision : run.decisions("instrument"))
      EXPECT_NE(decision.verdict, "broken_instrument") << seed << ": " << decision.sentence;
  }
}

// Two that part by more than the tolerance vouch for no noise: it would let them part further.
TEST(HonestNoiseTest, WhoPartsSoFarVouchesForNoLargerNoise) {
  Truth truth;
  truth.equal_fingerprints = false;
  SimulatedRun run(truth, scenario_policy());
  run.lie = [](ReplayFinished& answer) {
    if (answer.verifier == "v2:2" && answer.replay_end_loss_bf16)
      *answer.replay_end_loss_bf16 *= 0.9965;
  };
  run.start();
  run.state.watch.instrument.scale_agreed = 0.05;
  run.state.watch.instrument.scale_recorded = 0.5;
  run.train_until(90);
  EXPECT_THAT(run.state.trust.quarantined, IsEmpty());
  EXPECT_GT(run.orders("instrument"), 0) << "windows were measured twice";
  EXPECT_EQ(run.state.watch.instrument.scale_agreed, 0.05);
}

// Noise hides the first alarm in what the trainer has reported. Later windows show it there.
TEST(LoneVerifierTest, IsBelievedOnceTheTrainersLossesBearItOut) {
  Truth truth = numerical_fault({kGuilty}, 401, 2000, 0.06);
  truth.verifiers = {"v1:1"};
  SimulatedRun run(truth, scenario_policy());
  run.lie = [](ReplayFinished& answer) {
    if (answer.arm == "bf16" && !answer.steps.empty() && answer.steps.back() <= 420)
      answer.losses = answer.run_losses;
  };
  run.start();
  run.train_until(900);
  ASSERT_FALSE(run.decisions("verdict").empty());
  EXPECT_EQ(run.decisions("verdict").front().verdict, "broken_instrument");
  EXPECT_FALSE(run.directives("rollback").empty());
  EXPECT_LT(run.damage, 1);
}

}  // namespace
}  // namespace gnomon::decide

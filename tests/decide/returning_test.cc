// The way back to FP8: what probes have to show, and who has to show it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>

#include "controller/decide/gap_noise.h"
#include "tests/decide/probe_scenes.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// A probe's answer with noise of its own, per cent of the loss.
struct NoisyProbes {
  GapNoise noise;
  double percent;
  double shift = 0;  // of a fault that costs less in probes than it did at the alarm
  void operator()(ReplayFinished& answer) {
    if (is_probe(answer)) *answer.run_end_loss_bf16 *= 1 - (percent * noise.next() + shift) / 100;
  }
};

// An alarm at 4% a window, after which probes show `level` with a deviation of 0.2%: the policy's
// scale, which no window teaches better.
SimulatedRun noisy(uint64_t seed, double level, int64_t steps) {
  Truth truth = numerical_fault({kGuilty}, kBegins, kOver);
  truth.noise_percent = 0.4;
  truth.total_steps = steps;
  SimulatedRun run(truth, with([](Policy& p) {
                     p.detector.prior_scale_percent = 0.2;
                     p.returning.quiet_windows_max = 4;
                   }));
  run.lie = NoisyProbes{GapNoise(noise_shape("gaussian"), seed), 0.2, level};
  run.start();
  run.train_until(steps);
  return run;
}

int64_t probes_before_return(const SimulatedRun& run) {
  return static_cast<int64_t>(run.decisions("probe").size());
}

TEST(ReturningTest, AFaultThatStillCostsMoreThanIsToleratedSeldomComesBack) {
  int returned = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const SimulatedRun run = noisy(seed, 0.5, 1000);
    ASSERT_THAT(run.decisions("action"), Not(IsEmpty())) << seed;
    returned += run.decisions("return").empty() ? 0 : 1;
  }
  EXPECT_LE(returned, 6) << "of 60: evidence of 20 is wrong one time in twenty";
}

TEST(ReturningTest, AFaultThatIsOverComesBackAfterAFewProbes) {
  std::vector<int64_t> probes;
  int late = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const SimulatedRun run = noisy(seed, 0, 1000);
    if (run.decisions("return").empty()) ++late;
    probes.push_back(probes_before_return(run));
  }
  std::ranges::sort(probes);
  EXPECT_LE(late, 3);
  EXPECT_LE(probes[probes.size() / 2], 8);
}

// Two verifiers, one of which finds every probe as good as the run.
TEST(ReturningTest, OneVerifierAloneDoesNotBringFp8Back) {
  Truth truth = numerical_fault({kGuilty}, kBegins, kHolds);
  truth.total_steps = 3000;
  SimulatedRun run(truth, with([](Policy& p) { p.returning.quiet_windows_max = 2; }));
  run.lie = [](ReplayFinished& answer) {
    if (is_probe(answer) && answer.verifier == "v1:1")
      answer.replay_end_loss_bf16 = answer.run_end_loss_bf16;
  };
  run.start();
  run.train_until(3000);
  EXPECT_GE(run.decisions("probe").size(), 20u);
  EXPECT_THAT(run.decisions("return"), IsEmpty());
}

TEST(ReturningTest, OneThatLiesDoesNotMakeUpForWhatAnotherOneSees) {
  for (double mild : {0.5, 0.6, 0.7, 0.9}) {
    for (bool trainer : {false, true}) {
      Truth truth = milder(mild);
      truth.trainer_confirms = trainer;
      if (trainer) truth.verifiers = {"v1:1"};
      SimulatedRun run(truth, patient());
      run.lie = [](ReplayFinished& answer) {
        if (is_probe(answer) && answer.verifier == "v1:1")
          answer.replay_end_loss_bf16 = answer.run_end_loss_bf16;
      };
      run.start();
      run.train_until(3000);
      EXPECT_THAT(sentences(run, "return"), IsEmpty()) << mild << ", trainer " << trainer;
    }
  }
}

TEST(ReturningTest, AProbeThatIsTooGoodIsNotCounted) {
  SimulatedRun run(milder(0.32), patient());
  run.lie = [](ReplayFinished& answer) {
    if (is_probe(answer) && answer.verifier == "v1:1")
      answer.replay_end_loss_bf16 = *answer.run_end_loss_bf16 / 2;
  };
  run.start();
  run.train_until(3000);
  EXPECT_THAT(sentences(run, "probe"), Not(Contains(HasSubstr("-50"))));
  EXPECT_THAT(sentences(run, "return"), IsEmpty());
}

TEST(ReturningTest, WhatAQuarantinedVerifierHasSaidInProbesIsForgotten) {
  Truth truth = milder(0.6);
  truth.verifiers = {"v1:1", "v2:2", "v3:3"};
  SimulatedRun run(truth, with([](Policy& p) { p.returning.probe_passes = 3; }));
  std::string liar;
  run.lie = [&](ReplayFinished& answer) {
    if (is_probe(answer) && liar.empty()) liar = answer.verifier;
    if (answer.verifier != liar) return;
    if (is_probe(answer)) answer.replay_end_loss_bf16 = answer.run_end_loss_bf16;
    const bool passed = run.state.containment && !run.state.containment->probes.passed.empty();
    if (answer.arm.starts_with("bf16") && passed) {
      if (answer.replay_end_loss_bf16) *answer.replay_end_loss_bf16 *= 0.97;
      answer.end_hash += "x";
    }
  };
  run.start();
  while (run.step < 3000 && run.state.trust.quarantined.empty()) run.advance();
  ASSERT_THAT(run.state.trust.quarantined, ElementsAre(liar));
  ASSERT_TRUE(run.state.containment);
  for (const PassedProbe& probe : run.state.containment->probes.passed)
    EXPECT_NE(probe.source, liar);
}

// A fault that is soon over; the verifier that does the first probe says of each that it fails.
// `factor`: its loss over the true one. `equal`: devices have the run's fingerprint.
SimulatedRun kept_from_fp8(const std::vector<std::string>& verifiers, bool trainer,
                           double factor = 1.2, bool equal = true) {
  Truth truth = numerical_fault({kGuilty}, kBegins, kOver);
  truth.total_steps = 1600;
  truth.verifiers = verifiers;
  truth.trainer_confirms = trainer;
  SimulatedRun run(truth, with([](Policy& p) { p.returning.quiet_windows_max = 2; }));
  std::string liar;
  run.lie = [&liar, factor, equal](ReplayFinished& answer) {
    if (!is_probe(answer)) return;
    if (liar.empty()) liar = answer.verifier;
    if (answer.verifier == liar) *answer.replay_end_loss_bf16 *= factor;
    if (equal) return;
    answer.fingerprint_equal = false;
    answer.fingerprint = answer.verifier;
    if (answer.verifier != liar) *answer.replay_end_loss_bf16 *= 1.002;
  };
  run.start();
  run.train_until(1600);
  run.lie = nullptr;
  return run;
}

TEST(ReturningTest, OneThatLiesDoesNotKeepARunInBf16) {
  const std::vector<std::string> three = {"v1:1", "v2:2", "v3:3"}, two = {"v1:1", "v2:2"};
  for (const bool trainer : {false, true}) {
    const SimulatedRun run = kept_from_fp8(trainer ? two : three, trainer);
    EXPECT_THAT(run.decisions("return"), SizeIs(1)) << "trainer " << trainer;
    EXPECT_THAT(run.state.trust.quarantined, SizeIs(1));
    EXPECT_THAT(sentences(run, "action"), Contains(HasSubstr("No replay of this run goes to v")));
  }
}

TEST(ReturningTest, TwoThatContradictEachOtherInAProbeAreNotSettledByChance) {
  const SimulatedRun run = kept_from_fp8({"v1:1", "v2:2"}, false);
  EXPECT_THAT(run.decisions("return"), IsEmpty());
  EXPECT_THAT(run.state.trust.quarantined, IsEmpty());
  EXPECT_THAT(sentences(run, "probe"), Contains(HasSubstr("its sources contradict each other")));
}

TEST(ReturningTest, HonestSourcesOfOtherDevicesThatPartByChanceAreNotNamed) {
  const SimulatedRun run = kept_from_fp8({"v1:1", "v2:2", "v3:3"}, false, 1.004, false);
  EXPECT_THAT(run.decisions("return"), SizeIs(1));
  EXPECT_THAT(run.state.trust.quarantined, IsEmpty());
  const json::array answers =
      json::parse(run.decisions("probe")[0].evidence).at("answers").as_array();
  EXPECT_EQ(answers.size(), 3u) << "the first one is over the limit";
}

TEST(ReturningTest, AProbeThatFailsIsAskedOfTwo) {
  Truth truth = numerical_fault({kGuilty}, kBegins, kHolds);
  truth.total_steps = 1000;
  SimulatedRun run(truth, scenario_policy());
  run.start();
  while (run.step < 1000 && run.decisions("probe").empty()) run.advance();
  ASSERT_THAT(run.decisions("probe"), SizeIs(1));
  const RecordDecision first = run.decisions("probe")[0];
  EXPECT_THAT(first.sentence, HasSubstr("failed"));
  const json::array answers = json::parse(first.evidence).at("answers").as_array();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_NE(answers[0].at("verifier"), answers[1].at("verifier"));
}

// leases.cc gives a replay to a verifier that is to be avoided where no other one speaks.
TEST(ReturningTest, AVerifierThatIsGoneIsNoSecondSource) {
  Truth truth = numerical_fault({kGuilty}, kBegins, kHolds);
  truth.total_steps = 2000;
  truth.trainer_confirms = true;
  SimulatedRun run(truth, patient());
  run.lie = [&](ReplayFinished& answer) {
    if (run.state.containment && !answer.on_trainer) answer.verifier = "v1:1";
    if (is_probe(answer) && !answer.on_trainer)
      answer.replay_end_loss_bf16 = answer.run_end_loss_bf16;
  };
  run.start();
  run.train_until(2000);
  EXPECT_THAT(sentences(run, "return"), IsEmpty());
  EXPECT_GE(probes_of_trainer(run), 1);
}

TEST(ReturningTest, AWindowThatIsTrainedAgainCountsOnce) {
  SimulatedRun run(milder(0), with([](Policy& p) {
                     p.detector.prior_scale_percent = 0.4;
                     p.returning.quiet_windows = 0;
                   }));
  run.start();
  while (run.step < 1000 && run.decisions("probe").empty()) run.advance();
  const int64_t at = (run.step / 20 - 1) * 20;
  for (int i = 0; i < 6; ++i) {
    run.restart_from(at);
    run.train_until(at + 24);
    run.drain();
  }
  ASSERT_TRUE(run.state.containment) << "on copies of one window";
  EXPECT_LE(run.state.containment->probes.passed.size(), 2u);
}

TEST(ReturningTest, AProbeThatWasOrderedBeforeAnotherOneFailedIsNotCounted) {
  Truth truth = numerical_fault({kGuilty}, kBegins, kOver);
  truth.total_steps = 3000;
  SimulatedRun run(truth, scenario_policy());
  std::vector<ReplayFinished> kept;
  bool keeps = true;
  run.filter = [&](const Event& event) {
    const auto* answer = std::get_if<ReplayFinished>(&event);
    const bool probe = keeps && answer != nullptr && is_probe(*answer);
    if (probe) kept.push_back(*answer);
    return !probe;
  };
  run.start();
  while (kept.size() < 2 && run.step < 1000) run.advance();
  keeps = false;
  ASSERT_EQ(kept.size(), 2u);
  run.lie = [](ReplayFinished& answer) {
    if (is_probe(answer)) *answer.replay_end_loss_bf16 *= 1.05;
  };
  *kept[0].replay_end_loss_bf16 *= 1.05;
  run.feed(kept[0]);
  *kept[1].replay_end_loss_bf16 *= 1.05;
  run.feed(kept[1]);
  const int64_t before = run.state.wait_windows;
  run.drain();  // both are asked of a second source
  EXPECT_THAT(run.state.containment->probes.passed, IsEmpty());
  EXPECT_EQ(run.decisions("probe").size(), 1u);
  EXPECT_EQ(run.state.wait_windows, 2 * before) << "two failures of one series are one";
}

TEST(ReturningTest, NoiseOfAnyShapeDoesNotKeepARunInBf16) {
  Truth truth = numerical_fault({kGuilty}, 1, 60);
  truth.total_steps = 3000;
  SimulatedRun run(truth, with([](Policy& p) {
                     p.detector.noise = "any";
                     p.ladder.rungs = {"bf16"};
                   }));
  run.start();
  run.train_until(3000);
  EXPECT_THAT(sentences(run, "return"), SizeIs(1));
}

TEST(ReturningTest, AVerifierThatWasSilentOnceIsASourceAgain) {
  SimulatedRun run(milder(0.6), patient());
  bool once = false;
  run.lie = [&](ReplayFinished& answer) {
    if (!is_probe(answer)) return;
    // Silent for one probe: the other one does it, which was to be avoided.
    if (answer.verifier == "v2:2" && !once) {
      once = true;
      answer.verifier = "v1:1";
    }
    if (answer.verifier == "v1:1") answer.replay_end_loss_bf16 = answer.run_end_loss_bf16;
  };
  run.start();
  run.train_until(3000);
  EXPECT_THAT(sentences(run, "return"), IsEmpty());
}

TEST(ReturningTest, AsManyProbesAsThePolicyWantsMayPass) {
  Truth truth = numerical_fault({kGuilty}, kBegins, kOver);
  truth.total_steps = 3000;
  SimulatedRun run(truth, with([](Policy& p) { p.returning.probe_passes = 60; }));
  run.start();
  run.train_until(3000);
  EXPECT_THAT(sentences(run, "return"), SizeIs(1));
}

TEST(ReturningTest, ProbesThatNobodyCanJudgeAreTriedMoreSeldomAndThatIsSaid) {
  Truth truth = numerical_fault({kGuilty}, kBegins, kOver);
  truth.total_steps = 3000;
  SimulatedRun run(truth, scenario_policy());
  run.lie = [](ReplayFinished& answer) {
    if (is_probe(answer)) answer.run_end_loss_bf16.reset();
  };
  run.start();
  run.train_until(3000);
  EXPECT_THAT(sentences(run, "probe"), Contains(HasSubstr("could not be judged")));
  EXPECT_GE(run.state.wait_windows, 32);
}

TEST(ReturningTest, AToleranceMadeStricterCountsForProbesToo) {
  Truth truth = milder(0.2);
  SimulatedRun run(truth, scenario_policy());
  run.start();
  while (run.step < 1000 && !run.state.containment) run.advance();
  run.policy.detector.tolerance_percent = 0.05;
  run.train_until(3000);
  EXPECT_THAT(sentences(run, "return"), IsEmpty());
}

TEST(ReturningTest, TheReturnSaysWhatItRestsOn) {
  const SimulatedRun run = noisy(3, 0, 1000);
  ASSERT_THAT(run.decisions("return"), SizeIs(1));
  EXPECT_THAT(run.decisions("return")[0].sentence, HasSubstr(", 20 are needed)"));
}

}  // namespace
}  // namespace gnomon::decide

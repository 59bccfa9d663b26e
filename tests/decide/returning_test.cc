// The way back to FP8: what probes have to show, and who has to show it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/philox.h"
#include "controller/decide/gap_noise.h"
#include "tests/decide/stories.h"

namespace gnomon::decide {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kBegins = 201, kHolds = 100'000;  // steps
constexpr int64_t kEnded = 240;                     // of a fault that is soon over

bool is_probe(const ReplayFinished& answer) { return answer.purpose == "probe"; }

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
  Truth truth = numerical_fault({kGuilty}, kBegins, kEnded);
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

struct Alone {
  bool trainer_confirms = false;
  bool trainer_can = true;
};

SimulatedRun alone(const Alone& scene, int64_t until, bool lies) {
  Truth truth = numerical_fault({kGuilty}, kBegins, until);
  truth.total_steps = 1600;
  truth.verifiers = {"v1:1"};
  truth.trainer_confirms = scene.trainer_confirms;
  SimulatedRun run(truth, with([](Policy& p) { p.returning.quiet_windows_max = 2; }));
  run.lie = [lies](ReplayFinished& answer) {
    if (lies && is_probe(answer) && !answer.on_trainer)
      answer.replay_end_loss_bf16 = answer.run_end_loss_bf16;
  };
  run.filter = [&run, scene](const Event& event) {
    const auto* answer = std::get_if<ReplayFinished>(&event);
    if (answer == nullptr || !answer->on_trainer || scene.trainer_can || !is_probe(*answer))
      return true;
    run.feed(
        ReplayFailed{answer->replay, answer->window, "plan", "no memory for the trainer's state"});
    return false;
  };
  run.start();
  run.train_until(1600);
  return run;
}

int64_t probes_of_trainer(const SimulatedRun& run) {
  return std::ranges::count_if(run.effects, [](const Effect& effect) {
    const auto* order = std::get_if<OrderReplay>(&effect);
    return order != nullptr && order->purpose == "probe" && order->on_trainer;
  });
}

TEST(ReturningTest, TheTrainerDoesTheLastProbeWhereOneVerifierIsAlone) {
  const SimulatedRun run = alone({.trainer_confirms = true}, kEnded, false);
  EXPECT_THAT(run.decisions("return"), SizeIs(1));
  EXPECT_EQ(probes_of_trainer(run), 1);
}

TEST(ReturningTest, TheTrainerDeniesWhatALyingVerifierSaysOfProbes) {
  const SimulatedRun run = alone({.trainer_confirms = true}, kHolds, true);
  EXPECT_THAT(run.decisions("return"), IsEmpty());
  EXPECT_GE(probes_of_trainer(run), 1);
}

TEST(ReturningTest, ATrainerThatCannotDoesNotKeepTheRunForEver) {
  const SimulatedRun run = alone({.trainer_confirms = true, .trainer_can = false}, kEnded, false);
  EXPECT_THAT(run.decisions("return"), SizeIs(1));
}

TEST(ReturningTest, WhereNobodyElseCanBeAskedOneVerifierIsBelieved) {
  const SimulatedRun run = alone({}, kEnded, false);
  EXPECT_THAT(run.decisions("return"), SizeIs(1));
  EXPECT_EQ(probes_of_trainer(run), 0);
}

TEST(ReturningTest, TheReturnSaysWhatItRestsOn) {
  const SimulatedRun run = noisy(3, 0, 1000);
  ASSERT_THAT(run.decisions("return"), SizeIs(1));
  EXPECT_THAT(run.decisions("return")[0].sentence, HasSubstr("of 20)"));
}

}  // namespace
}  // namespace gnomon::decide

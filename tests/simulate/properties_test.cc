// What must hold of the decision core in any run that the model can draw.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/decide/invariants.h"
#include "tests/simulate/tallies.h"

namespace gnomon::simulate {
namespace {

constexpr size_t kStateBytesMax = 200'000;

// A run and a policy as unlike the usual as they may be.
class Lottery {
 public:
  explicit Lottery(int seed) : random_(static_cast<uint64_t>(seed)) {}

  RunModel model() {
    RunModel model;
    model.steps = 400 + 100 * pick(0, 8);
    model.checkpoint_every = pick(1, 3) * 5;
    model.layers = static_cast<int>(pick(1, 3));
    for (double& hazard : model.hazards) hazard = rarely() ? 0 : 1 / uniform(200, 5000);
    model.size_low = uniform(0.02, 1);
    model.size_high = model.size_low * uniform(1, 20);
    model.heal_steps = rarely() ? 0 : uniform(100, 3000);
    const auto& shapes = decide::noise_shapes();
    model.noise =
        shapes[static_cast<size_t>(pick(0, static_cast<int64_t>(shapes.size()) - 1))].name;
    model.noise_percent = uniform(0, 0.3);
    model.autocorrelation = uniform(-0.5, 0.9);
    model.verifiers = static_cast<int>(pick(0, 3));
    model.verifier_speed = uniform(0.05, 4);
    model.verifier_dies = rarely() ? 0.3 : 0.01;
    model.verifier_lies = rarely() ? 0.05 : 0;
    model.crashes = rarely() ? 1 / 150.0 : 0;
    model.person_seconds = uniform(0, 2000);
    return model;
  }

  decide::Policy policy(const RunModel& model) {
    decide::Policy policy;
    policy.window.steps = model.checkpoint_every * pick(1, 3);
    policy.window.every = policy.window.steps + model.checkpoint_every * pick(0, 3);
    if (rarely()) {
      policy.window.every = 0;
      policy.verification.budget_percent = static_cast<double>(pick(2, 60));
    }
    if (rarely()) {
      policy.window.long_steps = 4 * policy.window.steps;
      policy.window.long_every = 8 * policy.window.steps;
    }
    if (rarely()) policy.mode = decide::Mode::kAdvise;
    if (rarely()) policy.ladder.from = "here";
    if (rarely()) policy.ladder.rungs = {"pin", "recipe", "bf16", "hold"};
    if (rarely()) policy.ladder.rungs = {"bf16"};
    if (rarely()) policy.attribution.scores = false;
    if (rarely()) policy.verifier.on_loss = pick(0, 1) == 0 ? "bf16" : "hold";
    if (rarely()) policy.detector.kind = "cusum";
    if (rarely()) policy.returning.enabled = false;
    policy.verifier.loss_windows = static_cast<int>(pick(1, 20));
    policy.attribution.parallel = static_cast<int>(pick(1, 4));
    policy.limits.actions_max = static_cast<int>(pick(0, 10));
    policy.directives.timeout_seconds = uniform(5, 600);
    return policy;
  }

 private:
  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  double uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  bool rarely() { return pick(0, 3) == 0; }

  std::mt19937_64 random_;
};

class AnyRun : public ::testing::TestWithParam<int> {};

TEST_P(AnyRun, BreaksNoInvariantAndEnds) {
  for (int seed = 20 * GetParam(); seed < 20 * (GetParam() + 1); ++seed) {
    SCOPED_TRACE(seed);
    Lottery lottery(seed);
    const RunModel model = lottery.model();
    const decide::Policy policy = lottery.policy(model);
    const std::vector<double> curve = loss_curve(model.steps);
    StochasticRun run(model, curve, policy, static_cast<uint64_t>(seed));
    decide::Invariants invariants;
    size_t largest = 0;
    int64_t events = 0;
    run.watch = [&](const decide::Event& event, const decide::Outcome& outcome) {
      invariants.check(event, outcome, policy);
      if (++events % 200 == 0)
        largest = std::max(largest, decide::state_to_json(outcome.state).size());
    };
    const Tally tally = run.run();
    EXPECT_TRUE(tally.problems.empty()) << tally.problems.front();
    EXPECT_TRUE(run.state.ended);
    EXPECT_TRUE(run.state.windows.empty()) << "a window waits for ever:\n"
                                           << decide::state_to_json(run.state);
    EXPECT_EQ(tally.outcome == "completed", tally.kept == model.steps);
    EXPECT_NE(tally.outcome, "endless");
    EXPECT_LT(largest, kStateBytesMax);
    EXPECT_GE(tally.windows, tally.healthy_windows);
    EXPECT_EQ(tally.trained - tally.lost, tally.kept);
    if (policy.mode != decide::Mode::kEnforce) {
      EXPECT_EQ(tally.actions, 0);
    }
    if (testing::Test::HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, AnyRun, ::testing::Range(0, 15));

TEST(AnyRunTest, AControllerThatIsRestartedDecidesTheSame) {
  int64_t actions = 0;
  for (int seed = 1000; seed < 1015; ++seed) {
    SCOPED_TRACE(seed);
    Lottery lottery(seed);
    const RunModel model = lottery.model();
    const decide::Policy policy = lottery.policy(model);
    const std::vector<double> curve = loss_curve(model.steps);
    StochasticRun steady(model, curve, policy, static_cast<uint64_t>(seed));
    StochasticRun restored(model, curve, policy, static_cast<uint64_t>(seed));
    restored.restore_every = 3;
    const Tally tally = steady.run();
    EXPECT_EQ(words(tally), words(restored.run()));
    EXPECT_EQ(decide::state_to_json(steady.state), decide::state_to_json(restored.state));
    actions += tally.actions;
  }
  EXPECT_GT(actions, 0) << "the runs say nothing if nothing happens in them";
}

TEST(AnyRunTest, WatchingChangesNothing) {
  Lottery lottery(77);
  const RunModel model = lottery.model();
  const decide::Policy policy = lottery.policy(model);
  const std::vector<double> curve = loss_curve(model.steps);
  StochasticRun plain(model, curve, policy, 77), watched(model, curve, policy, 77);
  watched.watch = [](const decide::Event&, const decide::Outcome&) {};
  EXPECT_EQ(words(plain.run()), words(watched.run()));
}

// The promise of docs/detector.md, of the whole core: at most one false alarm in A windows on
// average, in the worst healthy run there is, whose mean gap is the tolerance itself.
TEST(HealthyRunTest, FalseAlarmsAreAsRareAsPromised) {
  RunModel model;
  model.steps = 10'000;
  decide::Policy policy;
  policy.window.every = 50;
  policy.window.steps = 25;
  policy.detector.windows_between_false_alarms = 100;
  policy.detector.accept_percent = 0;
  policy.instrument.every = 0;
  model.mean_gap_percent = policy.detector.tolerance_percent;
  const Summary worst = played(model, policy, 100);
  EXPECT_GT(worst.windows, 19'000);
  EXPECT_EQ(worst.windows, worst.healthy_windows);
  EXPECT_LT(worst.false_alarms.high, 1000 / policy.detector.windows_between_false_alarms);
  EXPECT_GT(worst.false_alarms.count, 0) << "a promise that costs nothing was not tried";
}

TEST(HealthyRunTest, NothingIsDoneToOneAtTheDefaultPolicy) {
  for (const char* noise : {"gaussian", "t4", "contaminated"}) {
    RunModel model;
    model.noise = noise;
    model.steps = 100'000;
    const Summary healthy = played(model, decide::Policy(), 12);
    EXPECT_EQ(healthy.actions, 0) << noise;
    EXPECT_EQ(healthy.outcomes.at("completed"), 12);
    EXPECT_GE(healthy.windows, 12 * 30);
    EXPECT_EQ(healthy.lost_share, 0);
  }
}

}  // namespace
}  // namespace gnomon::simulate

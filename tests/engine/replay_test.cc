// Replays of a window in its arms.
#include "trainer/replay.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"
#include "base/hash.h"
#include "tests/engine/engine_fixture.h"

namespace gnomon::test {
namespace {

class ReplayTest : public testing::Test {
 protected:
  ReplayTest() : config(small_engine(directory.path())) {
    Engine engine(config);
    engine.set_plan(plan);
    engine.initialize();
    train_hashes(engine, 4);
    start = write_checkpoint(engine, directory.path() / "checkpoints");
    start_bf16 = engine.evaluate(PrecisionPlan::bf16());
    start_plan = engine.evaluate(plan);
    for (int i = 0; i < 5; ++i) steps.push_back(engine.train_step());
    end = write_checkpoint(engine, directory.path() / "checkpoints");
    end_bf16 = engine.evaluate(PrecisionPlan::bf16());
  }

  TemporaryDirectory directory;
  EngineConfig config;
  PrecisionPlan plan = PrecisionPlan::fp8(Recipe::kDelayed);
  std::filesystem::path start, end;
  std::vector<StepResult> steps;
  double start_bf16 = 0, start_plan = 0, end_bf16 = 0;
};

TEST_F(ReplayTest, TheSameArmReproducesLossesAndBits) {
  Replayer replayer;
  ReplayResult result = replayer.run({.checkpoint = start, .steps = 5, .arm = "same"});
  ASSERT_EQ(result.steps.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(result.steps[i].step, steps[i].step);
    EXPECT_EQ(result.steps[i].loss, steps[i].loss);
    EXPECT_EQ(result.steps[i].grad_norm, steps[i].grad_norm);
    EXPECT_EQ(result.steps[i].weights_hash, hex64(steps[i].weights_hash));
  }
  EXPECT_EQ(result.replay_end_loss_bf16, end_bf16);
  EXPECT_FALSE(result.start_loss_bf16 || result.start_loss_plan || result.run_end_loss_bf16);
  EXPECT_EQ(result.fingerprint.threads, 1);
  EXPECT_EQ(result.heldout_tokens, 80);
  EXPECT_GT(result.replay_seconds, 0);
  EXPECT_GT(result.eval_seconds, 0);
}

TEST_F(ReplayTest, EndpointsAreEvaluatedWhenAskedFor) {
  Replayer replayer;
  ReplayResult result = replayer.run({.checkpoint = start,
                                      .steps = 5,
                                      .arm = "bf16",
                                      .plan_toml = {},
                                      .end_checkpoint = end,
                                      .evaluate_endpoints = true});
  EXPECT_EQ(result.start_loss_bf16, start_bf16);
  EXPECT_EQ(result.start_loss_plan, start_plan);
  EXPECT_EQ(result.run_end_loss_bf16, end_bf16);
  EXPECT_NE(start_plan, start_bf16);
  ASSERT_TRUE(result.replay_end_loss_bf16);
  EXPECT_NE(*result.replay_end_loss_bf16, end_bf16);
  EXPECT_NEAR(*result.replay_end_loss_bf16, end_bf16, 0.05);
}

TEST_F(ReplayTest, ArmsDoAsTheirPlansSay) {
  Replayer replayer;  // one engine for all of them, in this order
  auto last_hash = [&](const std::string& arm, const std::string& toml) {
    return replayer.run({.checkpoint = start, .steps = 3, .arm = arm, .plan_toml = toml})
        .steps.back()
        .weights_hash;
  };
  std::string same = last_hash("same", "");
  std::string bf16 = last_hash("bf16", "");
  EXPECT_NE(same, bf16);
  EXPECT_EQ(last_hash("plan", PrecisionPlan::bf16().to_toml()), bf16);
  EXPECT_EQ(last_hash("plan", plan.to_toml()), same);
  EXPECT_EQ(last_hash("same", ""), same);
  Engine engine(config);
  engine.load(start);
  engine.set_plan(PrecisionPlan::bf16());
  EXPECT_EQ(hex64(train_hashes(engine, 3).back()), bf16);
}

TEST_F(ReplayTest, AnotherThreadCountIsSaidInTheFingerprint) {
  Replayer replayer(2);
  EXPECT_EQ(replayer.run({.checkpoint = start, .steps = 1}).fingerprint.threads, 2);
}

TEST_F(ReplayTest, ProgressCountsStepsAndCanAbandon) {
  Replayer replayer;
  std::vector<int64_t> seen;
  replayer.run({.checkpoint = start, .steps = 3}, [&](int64_t done) {
    seen.push_back(done);
    return true;
  });
  EXPECT_EQ(seen, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_THROW(
      replayer.run({.checkpoint = start, .steps = 3}, [](int64_t done) { return done < 2; }),
      Error);
}

TEST_F(ReplayTest, ANonFiniteReplayEndsEarlyAndSaysSo) {
  EngineConfig struck = config;
  struck.faults = {{.kind = FaultKind::kBitFlip,
                    .site = "model.norm.weight",
                    .start_step = 1,
                    .element = 1,
                    .bit = 30}};
  struck.optimizer.learning_rate = 0;
  Engine engine(struck);
  engine.initialize();
  engine.train_step();  // the checkpoint's norm has an infinite weight
  std::filesystem::path path = write_checkpoint(engine, directory.path() / "struck");
  Replayer replayer;
  ReplayResult result = replayer.run({.checkpoint = path, .steps = 5});
  ASSERT_EQ(result.steps.size(), 1u);
  EXPECT_FALSE(std::isfinite(result.steps[0].loss));
  EXPECT_FALSE(result.replay_end_loss_bf16);
}

TEST_F(ReplayTest, RefusesAnUnknownArmAndANegativeNumberOfSteps) {
  Replayer replayer;
  EXPECT_THROW(replayer.run({.checkpoint = start, .steps = 1, .arm = "fp16"}), ConfigError);
  EXPECT_THROW(replayer.run({.checkpoint = start, .steps = -1}), ConfigError);
  EXPECT_THROW(replayer.run({.checkpoint = start, .steps = 1, .arm = "plan", .plan_toml = "fp8"}),
               ConfigError);
  EXPECT_THROW(replayer.run({.checkpoint = directory.path() / "nothing", .steps = 1}), Error);
}

}  // namespace
}  // namespace gnomon::test

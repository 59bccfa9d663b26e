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
  Replayer replayer({.threads = 2});
  EXPECT_EQ(replayer.run({.checkpoint = start, .steps = 1}).fingerprint.threads, 2);
}

TEST_F(ReplayTest, ProgressCountsStepsAndCanAbandon) {
  Replayer replayer;
  std::vector<int64_t> seen;
  replayer.run({.checkpoint = start, .steps = 3}, [&](int64_t done) {
    seen.push_back(done);
    return true;
  });
  EXPECT_EQ(seen, (std::vector<int64_t>{0, 1, 2, 3})) << "after loading, and after each step";
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

TEST_F(ReplayTest, AHealthyRunWithoutTheFp8KernelHasTheSameBits) {
  Replayer replayer;
  const ReplayResult without = replayer.run(
      {.checkpoint = start, .steps = 5, .arm = "fakequant", .evaluate_endpoints = true});
  EXPECT_EQ(without.steps.back().weights_hash, hex64(steps.back().weights_hash));
  EXPECT_EQ(without.start_loss_fakequant, start_plan);
  EXPECT_EQ(without.start_loss_plan, start_plan);
}

TEST_F(ReplayTest, ASumInTheTensorCoresWayIsTheKernels) {
  const PrecisionPlan hopper =
      PrecisionPlan::parse("[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\naccumulate = \"hopper\"\n");
  const PrecisionPlan exact = PrecisionPlan::parse("[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n");
  Engine engine(config, EngineRole::kReplay);
  auto last_hash = [&](const PrecisionPlan& wanted, bool fakequant) {
    engine.load(start);
    engine.set_plan(wanted);
    engine.set_mode({.role = EngineRole::kReplay, .fakequant = fakequant});
    return train_hashes(engine, 3).back();
  };
  EXPECT_NE(last_hash(hopper, false), last_hash(exact, false));
  EXPECT_EQ(last_hash(hopper, true), last_hash(exact, false));
}

TEST_F(ReplayTest, AnotherOrderOfSummationMovesBf16ByRoundingOnly) {
  Replayer replayer;
  auto run = [&](const std::string& arm, int64_t seed) {
    return replayer.run(
        {.checkpoint = start, .steps = 3, .arm = arm, .perturb = seed, .perturb_scale = 0});
  };
  const ReplayResult bf16 = run("bf16", 0);
  const ReplayResult first = run("bf16-perturbed", 0);
  // The same sequences, so the same loss and gradient but for their rounding.
  EXPECT_NEAR(first.steps[0].loss, bf16.steps[0].loss, 1e-6);
  EXPECT_NEAR(first.steps[0].grad_norm.value(), bf16.steps[0].grad_norm.value(), 1e-5);
  EXPECT_NE(first.steps[0].grad_norm, bf16.steps[0].grad_norm);
  EXPECT_NEAR(*first.replay_end_loss_bf16, *bf16.replay_end_loss_bf16, 0.01);
  EXPECT_EQ(run("bf16-perturbed", 0).steps[0].grad_norm, first.steps[0].grad_norm);
  EXPECT_NE(run("bf16-perturbed", 77).steps[0].grad_norm, first.steps[0].grad_norm);
  EXPECT_EQ(run("bf16", 0).steps.back().weights_hash, bf16.steps.back().weights_hash);
}

TEST_F(ReplayTest, APerturbationSpreadsAnyArmAndIsAFunctionOfItsSeed) {
  Replayer replayer;
  for (const std::string arm : {"bf16", "same", "fakequant"}) {
    auto loss = [&](int64_t seed, double scale = kPerturbScale) {
      return *replayer
                  .run({.checkpoint = start,
                        .steps = 3,
                        .arm = arm,
                        .perturb = seed,
                        .perturb_scale = scale})
                  .replay_end_loss_bf16;
    };
    const double exact = loss(0);
    EXPECT_NE(loss(1), exact) << arm;
    EXPECT_NE(loss(1), loss(2)) << arm;
    EXPECT_EQ(loss(1), loss(1)) << arm;
    EXPECT_NEAR(loss(1), exact, 0.01) << arm;
    EXPECT_NE(loss(1, 0.5), loss(1)) << arm;
    EXPECT_EQ(loss(1, 0.0), exact) << arm;
  }
}

TEST_F(ReplayTest, APerturbationIsRelativeAndOfItsScale) {
  Engine engine(config);
  engine.load(start);
  auto masters = [&] {
    std::vector<float> all;
    for (const TensorView& tensor : engine.checkpoint().optimizer) {
      if (!tensor.name.starts_with("master.")) continue;
      const auto* values = static_cast<const float*>(tensor.data);
      all.insert(all.end(), values, values + tensor.bytes() / 4);
    }
    return all;
  };
  const std::vector<float> before = masters();
  const uint64_t unmoved = engine.weights_hash();
  engine.perturb(5, 0.01);
  EXPECT_NE(engine.weights_hash(), unmoved);
  const std::vector<float> after = masters();
  double sum = 0, squares = 0, count = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    if (std::abs(before[i]) < 1e-6f) continue;
    const double moved = static_cast<double>(after[i]) / static_cast<double>(before[i]) - 1;
    sum += moved;
    squares += moved * moved;
    ++count;
  }
  EXPECT_NEAR(std::sqrt(squares / count), 0.01, 0.0005);
  EXPECT_NEAR(sum / count, 0, 0.0005);
  // The working weights are the masters' own: a checkpoint of them can be loaded.
  const auto path = write_checkpoint(engine, directory.path() / "perturbed");
  Engine reader(config);
  reader.load(path);
  EXPECT_EQ(reader.weights_hash(), engine.weights_hash());
  EXPECT_EQ(train_hashes(reader, 1), train_hashes(engine, 1));
}

TEST_F(ReplayTest, ARunOfOneSequenceAStepHasNoOtherOrder) {
  EngineConfig single = config;
  single.batch = {.sequences = 1, .tokens = 16, .accumulation = 1};
  Engine engine(single);
  engine.initialize();
  const auto path = write_checkpoint(engine, directory.path() / "single");
  Replayer replayer;
  EXPECT_THROW(replayer.run({.checkpoint = path, .steps = 1, .arm = "bf16-perturbed"}),
               ConfigError);
}

TEST_F(ReplayTest, RefusesAnUnknownArmAndANegativeNumberOfSteps) {
  Replayer replayer;
  EXPECT_THROW(replayer.run({.checkpoint = start, .steps = 1, .arm = "fp16"}), ConfigError);
  EXPECT_THROW(replayer.run({.checkpoint = start, .steps = -1}), ConfigError);
  EXPECT_THROW(replayer.run({.checkpoint = start, .steps = 1, .perturb = -1}), ConfigError);
  EXPECT_THROW(replayer.run({.checkpoint = start, .steps = 1, .perturb = 1, .perturb_scale = 2}),
               ConfigError);
  EXPECT_THROW(replayer.run({.checkpoint = start, .steps = 1, .arm = "plan", .plan_toml = "fp8"}),
               ConfigError);
  EXPECT_THROW(replayer.run({.checkpoint = directory.path() / "nothing", .steps = 1}), Error);
}

}  // namespace
}  // namespace gnomon::test

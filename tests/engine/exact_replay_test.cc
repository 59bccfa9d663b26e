// The same state, plan, data, seed and thread count give the same bits.
#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/synthetic_data.h"

namespace gnomon::test {
namespace {

PrecisionPlan plan_named(const std::string& name) {
  if (name == "Bf16") return PrecisionPlan::bf16();
  if (name == "Fp8Current") return PrecisionPlan::fp8(Recipe::kCurrent);
  const std::string all = "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = ";
  if (name == "Fp8Delayed") return PrecisionPlan::parse(all + "\"delayed\"\namax_history = 3\n");
  if (name == "Rowwise") return PrecisionPlan::fp8(Recipe::kRowwise);
  if (name == "RowwiseGwHp") return PrecisionPlan::fp8(Recipe::kRowwiseGwHp);
  if (name == "Block") return PrecisionPlan::fp8(Recipe::kBlock);
  if (name == "BlockFp32Scales")
    return PrecisionPlan::parse(all + "\"block\"\npower_of_two = false\n");
  if (name == "BlockHopper")
    return PrecisionPlan::parse(all + "\"block\"\naccumulate = \"hopper\"\n");
  if (name == "Mx") return PrecisionPlan::parse("allow_ragged_tiles = true\n" + all + "\"mx\"\n");
  EXPECT_EQ(name, "Probe");
  return PrecisionPlan::parse(all +
                              "\"none\"\nforward_format = \"e8m3\"\ngradient_format = \"e8m3\"\n");
}

struct ReplayCase {
  std::string plan;
  int threads;
  bool qk_norm = false;
};

class ExactReplay : public testing::TestWithParam<ReplayCase> {
 protected:
  ExactReplay() : config(small_engine(directory.path())) {
    config.threads = GetParam().threads;
    config.model.qk_norm = GetParam().qk_norm;
  }

  TemporaryDirectory directory;
  EngineConfig config;
};

TEST_P(ExactReplay, TwoRunsAgreeStepByStep) {
  std::vector<std::vector<uint64_t>> hashes;
  for (int run = 0; run < 2; ++run) {
    Engine engine(config);
    engine.set_plan(plan_named(GetParam().plan));
    engine.initialize();
    hashes.push_back(train_hashes(engine, 12));
  }
  EXPECT_EQ(hashes[0], hashes[1]);
  EXPECT_NE(hashes[0].front(), hashes[0].back());
}

TEST_P(ExactReplay, InitializeStartsTheSameRunAgain) {
  Engine engine(config);
  engine.set_plan(plan_named(GetParam().plan));
  engine.initialize();
  std::vector<uint64_t> first = train_hashes(engine, 6);
  engine.initialize();
  EXPECT_EQ(train_hashes(engine, 6), first);
}

// 97 sequences make an epoch and a step takes 4: the 30 steps cross an epoch's end, and the
// sequences lie in three shards.
TEST_P(ExactReplay, ARestartFromACheckpointGoesOnWithTheSameBitsAcrossAnEpoch) {
  Engine engine(config);
  engine.set_plan(plan_named(GetParam().plan));
  engine.initialize();
  train_hashes(engine, 20);
  std::filesystem::path checkpoint = write_checkpoint(engine, directory.path() / "checkpoints");
  double heldout = engine.evaluate(engine.plan());
  std::vector<uint64_t> expected = train_hashes(engine, 10);

  Engine other(config);
  other.load(checkpoint);
  EXPECT_EQ(other.step(), 20);
  EXPECT_EQ(other.plan().to_toml(), engine.plan().to_toml());
  EXPECT_EQ(other.evaluate(other.plan()), heldout);
  EXPECT_EQ(train_hashes(other, 10), expected);

  engine.load(checkpoint);  // a rollback in the same process
  EXPECT_EQ(train_hashes(engine, 10), expected);
}

TEST_P(ExactReplay, EvaluationChangesNoBit) {
  std::vector<std::vector<uint64_t>> hashes;
  for (bool evaluates : {false, true}) {
    Engine engine(config);
    engine.set_plan(plan_named(GetParam().plan));
    engine.initialize();
    std::vector<uint64_t> run;
    for (int step = 0; step < 8; ++step) {
      if (evaluates) {
        double loss = engine.evaluate(PrecisionPlan::bf16());
        EXPECT_NE(engine.evaluate(PrecisionPlan::fp8(Recipe::kDelayed)), loss);
        EXPECT_EQ(engine.evaluate(PrecisionPlan::bf16()), loss);
      }
      run.push_back(engine.train_step().weights_hash);
    }
    hashes.push_back(run);
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

INSTANTIATE_TEST_SUITE_P(Plans, ExactReplay,
                         testing::Values(ReplayCase{"Bf16", 1}, ReplayCase{"Bf16", 2},
                                         ReplayCase{"Fp8Current", 2}, ReplayCase{"Fp8Delayed", 1},
                                         ReplayCase{"Fp8Delayed", 2}, ReplayCase{"Rowwise", 2},
                                         ReplayCase{"RowwiseGwHp", 2}, ReplayCase{"Block", 1},
                                         ReplayCase{"Block", 2}, ReplayCase{"BlockFp32Scales", 2},
                                         ReplayCase{"Fp8Current", 2, true},
                                         ReplayCase{"BlockHopper", 2}, ReplayCase{"Mx", 2},
                                         ReplayCase{"Probe", 2}),
                         [](const auto& instance) {
                           return instance.param.plan +
                                  (instance.param.qk_norm ? "NormOfHeads" : "") +
                                  (instance.param.threads == 1 ? "OneThread" : "TwoThreads");
                         });

// FP8 with histories, then one layer in BF16, then FP8 again; checkpoints on both sides of the
// changes.
TEST(ExactReplayOfPlanChanges, ARestartAnywhereGivesTheSameBits) {
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  PrecisionPlan delayed = plan_named("Fp8Delayed");
  PrecisionPlan pinned = delayed.with_bf16_sites({"model.layers.1.mlp.down_proj", "lm_head"});
  auto plan_before = [&](int64_t step) -> const PrecisionPlan* {
    if (step == 6) return &pinned;
    if (step == 12) return &delayed;
    return nullptr;
  };
  auto run = [&](Engine& engine, int64_t last) {
    std::vector<uint64_t> hashes;
    while (engine.step() < last) {
      if (const PrecisionPlan* plan = plan_before(engine.step() + 1)) engine.set_plan(*plan);
      hashes.push_back(engine.train_step().weights_hash);
    }
    return hashes;
  };
  Engine whole(config);
  whole.set_plan(delayed);
  whole.initialize();
  std::vector<uint64_t> expected = run(whole, 18);
  for (int64_t stop : {3, 5, 8, 11, 15}) {
    Engine first(config);
    first.set_plan(delayed);
    first.initialize();
    std::vector<uint64_t> hashes = run(first, stop);
    std::filesystem::path checkpoint =
        write_checkpoint(first, directory.path() / std::to_string(stop));
    Engine second(config);
    second.load(checkpoint);
    std::vector<uint64_t> rest = run(second, 18);
    hashes.insert(hashes.end(), rest.begin(), rest.end());
    EXPECT_EQ(hashes, expected) << "restarted after step " << stop;
  }
}

// A recipe a step: current, delayed, block, mx, rowwise with FP32 scales, and so on round. What a
// recipe keeps must not leak into the next one's steps.
TEST(ExactReplayOfPlanChanges, AChangeOfRecipeAtEveryStepReplaysFromAnyOfThem) {
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  const std::vector<std::string> names = {"Fp8Current",  "Fp8Delayed", "Block",
                                          "Mx",          "Rowwise",    "Fp8Delayed",
                                          "BlockHopper", "Probe",      "RowwiseGwHp"};
  auto run = [&](Engine& engine, int64_t last) {
    std::vector<uint64_t> hashes;
    while (engine.step() < last) {
      PrecisionPlan plan = plan_named(names[static_cast<size_t>(engine.step()) % names.size()]);
      plan.version = engine.step() + 1;
      engine.set_plan(plan);
      hashes.push_back(engine.train_step().weights_hash);
    }
    return hashes;
  };
  Engine whole(config);
  whole.initialize();
  const std::vector<uint64_t> expected = run(whole, 12);
  for (int64_t stop : {2, 4, 6, 7, 9}) {
    Engine first(config);
    first.initialize();
    std::vector<uint64_t> hashes = run(first, stop);
    Engine second(config);
    second.load(write_checkpoint(first, directory.path() / std::to_string(stop)));
    EXPECT_EQ(second.plan().version, stop);
    std::vector<uint64_t> rest = run(second, 12);
    hashes.insert(hashes.end(), rest.begin(), rest.end());
    EXPECT_EQ(hashes, expected) << "restarted after step " << stop;
  }
}

TEST(ExactReplayOfData, SeedAndDataMatterAndShardingDoesNot) {
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  auto hash_after = [](const EngineConfig& with) {
    Engine engine(with);
    engine.initialize();
    return train_hashes(engine, 3).back();
  };
  uint64_t expected = hash_after(config);
  EngineConfig other_seed = config;
  other_seed.seed = 2;
  EXPECT_NE(hash_after(other_seed), expected);

  std::vector<uint32_t> all;
  for (auto [key, count] : {std::pair{1, 500}, std::pair{2, 37}, std::pair{3, 1016}}) {
    std::vector<uint32_t> part = learnable_tokens(static_cast<uint64_t>(key), 64, count);
    all.insert(all.end(), part.begin(), part.end());
  }
  EngineConfig one_shard = config;
  one_shard.data = directory.path() / "one";
  write_token_dataset(one_shard.data, {all}, learnable_tokens(4, 64, 200), 64);
  EXPECT_EQ(hash_after(one_shard), expected);
  for (uint32_t& token : all) token ^= 1;
  EngineConfig other_data = config;
  other_data.data = directory.path() / "other";
  write_token_dataset(other_data.data, {all}, learnable_tokens(4, 64, 200), 64);
  EXPECT_NE(hash_after(other_data), expected);
}

}  // namespace
}  // namespace gnomon::test

// One engine on all ranks whose weights are shared out, beside one whose ranks have all of them:
// the same bits, in less memory.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/errors.h"
#include "base/files.h"
#include "storage/safetensors.h"
#include "tests/engine/engine_fixture.h"
#include "tests/ranks/ranks.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/memory_need.h"
#include "trainer/engine/statistics_collector.h"
#include "trainer/engine/weight_units.h"

namespace gnomon::test {
namespace {

struct Case {
  std::string name;
  std::string plan = "bf16";
  std::string weight_wire = "full";
  Recompute recompute = Recompute::kNone;
  bool tied = true;
  Compute compute = Compute::kBf16;
  int layers = 3;
  int width = 32, ffn = 48;
  OptimizerKind optimizer = OptimizerKind::kAdamw;
  bool qk_norm = false;
};

PrecisionPlan plan_of(const std::string& name) {
  if (name == "bf16") return PrecisionPlan::bf16();
  return PrecisionPlan::fp8(recipe_from_name(name));
}

void expect_same_step(const StepResult& found, const StepResult& expected) {
  EXPECT_EQ(found.loss, expected.loss) << "step " << expected.step;
  EXPECT_EQ(found.grad_norm, expected.grad_norm) << "step " << expected.step;
  EXPECT_EQ(found.weights_hash, expected.weights_hash) << "step " << expected.step;
}

int64_t arena_bytes(const Engine& engine, const std::string& name) {
  for (const ArenaSize& arena : engine.arenas()) {
    if (arena.name == name) return arena.bytes;
  }
  return 0;
}

class ShardedEngines : public testing::TestWithParam<Case> {
 protected:
  ShardedEngines() {
    const Case& it = GetParam();
    config.model.layers = it.layers;
    config.model.width = it.width;
    config.model.ffn = it.ffn;
    config.model.tie_embeddings = it.tied;
    config.model.qk_norm = it.qk_norm;
    config.compute = it.compute;
    config.optimizer.name = it.optimizer;
    config.memory.recompute = it.recompute;
    config.batch.accumulation = 2 * collectives().size();
    config.heldout_sequences = 5;  // in micro-batches of two: three of them
  }
  std::unique_ptr<Engine> make(Sharding shard, EngineRanks* with) {
    EngineConfig own = config;
    own.shard = shard;
    return std::make_unique<Engine>(own, EngineRole::kLive, with);
  }
  std::unique_ptr<Engine> start(Sharding shard, EngineRanks* with = &ranks()) {
    auto engine = make(shard, with);
    engine->set_plan(plan_of(GetParam().plan).with_run({.weights = GetParam().weight_wire}));
    engine->initialize();
    return engine;
  }

  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
};

TEST_P(ShardedEngines, HaveTheBitsOfThoseThatHaveAllWeights) {
  const auto whole = start(Sharding::kOptimizer), sharded = start(Sharding::kWeights);
  EXPECT_EQ(sharded->weights_hash(), whole->weights_hash());
  whole->prepare();
  sharded->prepare();
  const PrecisionPlan bf16 = PrecisionPlan::bf16();
  for (int i = 0; i < 4; ++i) {
    expect_same_step(sharded->train_step(), whole->train_step());
    EXPECT_EQ(sharded->evaluate(bf16), whole->evaluate(bf16));
    EXPECT_EQ(sharded->evaluate(sharded->plan()), whole->evaluate(whole->plan()));
  }
}

TEST_P(ShardedEngines, WriteTheSameCheckpointsAndReadThem) {
  const auto whole = start(Sharding::kOptimizer), sharded = start(Sharding::kWeights);
  train_hashes(*whole, 3);
  train_hashes(*sharded, 3);
  const auto of_whole = write_checkpoint(*whole, directory.path() / "whole");
  const auto of_sharded = write_checkpoint(*sharded, directory.path() / "sharded");
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    EXPECT_EQ(read_file(of_sharded / file), read_file(of_whole / file)) << file;
  }
  const uint64_t hash = whole->weights_hash();
  std::vector<StepResult> expected;
  for (int i = 0; i < 2; ++i) expected.push_back(whole->train_step());
  const auto goes_on = [&](Engine& engine, const std::filesystem::path& checkpoint) {
    engine.load(checkpoint);
    EXPECT_EQ(engine.weights_hash(), hash);
    for (const StepResult& step : expected) expect_same_step(engine.train_step(), step);
  };
  goes_on(*make(Sharding::kWeights, &ranks()), of_whole);
  goes_on(*make(Sharding::kOptimizer, &ranks()), of_sharded);
  goes_on(*sharded, of_sharded);
  const auto alone = make(Sharding::kWeights, nullptr);
  alone->load(of_sharded);
  EXPECT_EQ(alone->weights_hash(), hash);
  EXPECT_EQ(alone->train_step().loss, expected.front().loss);
}

TEST_P(ShardedEngines, ComeBackToASnapshot) {
  const auto whole = start(Sharding::kOptimizer), sharded = start(Sharding::kWeights);
  sharded->allocate_snapshot_memory();
  train_hashes(*whole, 2);
  train_hashes(*sharded, 2);
  sharded->snapshot();
  sharded->perturb(3, 0x1p-7);
  sharded->set_plan(PrecisionPlan::bf16());
  train_hashes(*sharded, 2);
  sharded->evaluate(PrecisionPlan::bf16());  // layers of other weights are left in their places
  sharded->restore();
  for (int i = 0; i < 2; ++i) expect_same_step(sharded->train_step(), whole->train_step());
}

INSTANTIATE_TEST_SUITE_P(
    Cases, ShardedEngines,
    testing::Values(
        Case{"bf16"}, Case{"current", "current"}, Case{"delayed", "delayed"},
        Case{"block", "block"}, Case{"rowwise", "rowwise"},
        Case{.name = "lion", .plan = "current", .optimizer = OptimizerKind::kLion},
        Case{.name = "untied", .plan = "current", .tied = false},
        Case{.name = "one_layer", .plan = "current", .tied = false, .layers = 1},
        Case{.name = "two_layers", .plan = "delayed", .layers = 2},
        Case{.name = "codes_by_block", .plan = "current", .weight_wire = "e4m3"},
        Case{.name = "codes_by_tensor", .weight_wire = "e4m3:tensor", .tied = false},
        Case{.name = "wide_codes", .plan = "delayed", .weight_wire = "e5m2", .tied = false},
        // Layers begin inside of a block of the wires; there are gaps between parameters.
        Case{.name = "ragged_codes", .weight_wire = "e4m3", .tied = false, .width = 40, .ffn = 43},
        Case{
            .name = "ragged_codes_by_tensor", .weight_wire = "e4m3:tensor", .width = 40, .ffn = 43},
        Case{.name = "ragged", .recompute = Recompute::kBlock, .width = 40, .ffn = 43},
        Case{.name = "all_again", .plan = "current", .recompute = Recompute::kBlock, .tied = false},
        Case{.name = "swiglu_again", .plan = "block", .recompute = Recompute::kSwiglu},
        Case{.name = "norm_of_heads",
             .plan = "current",
             .recompute = Recompute::kBlock,
             .qk_norm = true},
        Case{.name = "fp32", .compute = Compute::kFp32},
        Case{.name = "fp32_codes", .weight_wire = "e4m3", .compute = Compute::kFp32}),
    [](const auto& instance) { return instance.param.name; });

class Shards : public testing::Test {
 protected:
  Shards() {
    config.batch.accumulation = collectives().size();
    config.shard = Sharding::kWeights;
  }
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
};

// In a deep model nearly all is shared out.
TEST_F(Shards, TakeTheMemoryThatTheArithmeticSays) {
  config.model.layers = 24;
  const Engine alone(config);
  const Engine together(config, EngineRole::kReplay, &ranks());
  EngineConfig all = config;
  all.shard = Sharding::kOptimizer;
  const Engine whole(all, EngineRole::kReplay, &ranks());
  EXPECT_EQ(arena_bytes(whole, "weights"), arena_bytes(alone, "weights"));
  const ParameterLayout layout(config.model);
  const WeightUnits units(layout, collectives().size());
  const auto bytes = [](int64_t elements) { return 2 * elements; };
  int64_t expected = 0;
  for (const WeightUnit& unit : units.all()) expected += bytes(unit.parts.size(0));
  expected += bytes(units.gathered_rest().size());
  // Two layers and the embedding, as they are and as copies.
  const int64_t layer = units[units.layer(0)].gathered.size();
  expected += 2 * (2 * bytes(layer) + bytes(units[0].gathered.size()));
  const int64_t found = arena_bytes(together, "weights");
  EXPECT_NEAR(static_cast<double>(found), static_cast<double>(expected), 4096);
  EXPECT_LT(found, arena_bytes(whole, "weights") / 2);
  // What would be refused before it is taken: of the rank with the longest parts.
  const auto backend = make_cpu_backend(1);
  const int64_t need = memory_need(config, collectives().size(), *backend).front().bytes;
  EXPECT_GE(need, found);
  EXPECT_LE(need, found + std::ssize(units.all()) * bytes(WireLayout::kBlock));
  for (const char* name : {"gradients", "activations", "workspace", "optimizer"}) {
    EXPECT_EQ(arena_bytes(together, name), arena_bytes(whole, name)) << name;
  }
  EXPECT_EQ(arena_bytes(together, "gathered weights"), 0);
  const Engine live(config, EngineRole::kLive, &ranks());
  EXPECT_GE(arena_bytes(live, "gathered weights"), bytes(layout.elements()));
}

TEST_F(Shards, FeelFaultsOfWeightsWhereTheyAreKept) {
  Fault flip;
  flip.kind = FaultKind::kBitFlip;
  flip.start_step = flip.end_step = 2;
  flip.element = 3;
  flip.bit = 28;
  Fault norm = flip;
  flip.site = "model.layers.1.mlp.down_proj.weight";
  norm.site = "model.norm.weight";
  config.faults = {flip,
                   norm,
                   {.kind = FaultKind::kStuckBit,
                    .site = "lm_head",
                    .tensor = "weight",
                    .start_step = 3,
                    .element = 5,
                    .bit = 31}};
  EngineConfig all = config;
  all.shard = Sharding::kOptimizer;
  Engine sharded(config, EngineRole::kLive, &ranks()), whole(all, EngineRole::kLive, &ranks());
  for (Engine* engine : {&sharded, &whole}) {
    engine->set_plan(PrecisionPlan().with_run({.weights = "e4m3"}));
    engine->initialize();
  }
  for (int i = 0; i < 5; ++i) expect_same_step(sharded.train_step(), whole.train_step());
}

TEST_F(Shards, ComputeGradientsTwiceWithTheBitsOfOnce) {
  Engine once(config, EngineRole::kLive, &ranks()), twice(config, EngineRole::kLive, &ranks());
  for (Engine* engine : {&once, &twice}) {
    engine->set_plan(PrecisionPlan::fp8(Recipe::kDelayed));
    engine->initialize();
  }
  for (int i = 0; i < 4; ++i) {
    const StepResult result = twice.train_step(nullptr, true);
    EXPECT_EQ(result.mismatch, "");
    expect_same_step(result, once.train_step());
  }
}

TEST_F(Shards, ChangeTheirCommunicationAndHaveTheBitsOfWholeWeights) {
  EngineConfig all = config;
  all.shard = Sharding::kOptimizer;
  Engine sharded(config, EngineRole::kLive, &ranks()), whole(all, EngineRole::kLive, &ranks());
  for (Engine* engine : {&sharded, &whole}) engine->initialize();
  for (const char* weights : {"e4m3", "full", "e5m2:tensor", "e4m3"}) {
    const PrecisionPlan plan = PrecisionPlan().with_run({.gradients = weights, .weights = weights});
    for (Engine* engine : {&sharded, &whole}) engine->set_plan(plan);
    for (int i = 0; i < 2; ++i) expect_same_step(sharded.train_step(), whole.train_step());
  }
}

TEST_F(Shards, RefuseStaleWeightsOnAllRanksAndNameTheKey) {
  config.faults = {
      {.kind = FaultKind::kStaleWeight, .site = "model.layers.1.mlp.down_proj", .start_step = 2}};
  try {
    const Engine engine(config, EngineRole::kLive, &ranks());
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    for (const char* part : {"shard", "\"optimizer\"", "stale_weight"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
  const Engine alone(config);  // which has all weights anyway
  config.shard = Sharding::kOptimizer;
  const Engine whole(config, EngineRole::kLive, &ranks());
}

TEST_F(Shards, AreInspectedByRankZeroWhileTheOthersGather) {
  EngineConfig all = config;
  all.shard = Sharding::kOptimizer;
  Engine sharded(config, EngineRole::kLive, &ranks()), whole(all, EngineRole::kLive, &ranks());
  std::vector<double> losses;
  for (Engine* engine : {&sharded, &whole}) {
    engine->set_plan(PrecisionPlan::fp8());
    engine->initialize();
    const auto collector = engine->statistics({}, "run.toml");
    losses.push_back(engine->inspect(1, *collector));
    losses.push_back(static_cast<double>(engine->train_step(collector.get()).weights_hash));
  }
  EXPECT_EQ(losses[0], losses[2]);
  EXPECT_EQ(losses[1], losses[3]);
}

TEST_F(Shards, AreSaidInACheckpoint) {
  EXPECT_EQ(EngineConfig::from_json(config.to_json(), "here").shard, Sharding::kWeights);
}

}  // namespace
}  // namespace gnomon::test

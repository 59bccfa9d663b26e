// A replay on a run's own engine, between two of its steps, leaves no trace: the state is kept,
// brought back, and every later step has the bits of a run that was never interrupted.
#include <gtest/gtest.h>

#include <set>

#include "tests/engine/engine_fixture.h"
#include "trainer/engine/engine.h"
#include "trainer/replay.h"

namespace gnomon::test {
namespace {

constexpr const char* kDelayedPlanOfSnapshot =
    "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"delayed\"\namax_history = 16\n";

// What a step leaves, to the bit.
struct Trace {
  int64_t step = 0;
  double loss = 0, grad_norm = 0, heldout = 0;
  uint64_t weights = 0, batch = 0;
  bool operator==(const Trace&) const = default;
};

Trace trace_of(Engine& engine) {
  const StepResult step = engine.train_step();
  return {step.step,         step.loss,      step.grad_norm, engine.evaluate(engine.plan()),
          step.weights_hash, step.batch_hash};
}

class Snapshot : public testing::Test {
 protected:
  Snapshot() : config(small_engine(directory.path())) {}

  // 24 steps; after each of `at` every arm is replayed from the checkpoint of step 4, or of step 0.
  std::vector<Trace> run(const std::set<int64_t>& at,
                         const std::string& plan = kDelayedPlanOfSnapshot, int64_t from = 4) {
    Engine engine(config);
    engine.set_plan(PrecisionPlan::parse(plan));
    engine.initialize();
    engine.allocate_snapshot_memory();
    std::vector<Trace> traces;
    std::filesystem::path start, end;
    const std::filesystem::path root = directory.path() / ("run" + std::to_string(++runs));
    if (from == 0) start = write_checkpoint(engine, root);
    while (engine.step() < 24) {
      traces.push_back(trace_of(engine));
      if (engine.step() == from) start = write_checkpoint(engine, root);
      if (engine.step() == from + 4) end = write_checkpoint(engine, root);
      if (!at.contains(engine.step())) continue;
      engine.snapshot();
      verify(engine, start, end);
      engine.restore();
    }
    return traces;
  }
  void verify(Engine& engine, const std::filesystem::path& start,
              const std::filesystem::path& end) {
    const uint64_t before = engine.weights_hash();
    for (const char* arm : {"bf16", "same", "fakequant", "bf16-perturbed"}) {
      const ReplayResult result = replay_on(engine, {.checkpoint = start,
                                                     .steps = 4,
                                                     .arm = arm,
                                                     .end_checkpoint = end,
                                                     .evaluate_endpoints = true,
                                                     .perturb = arm == std::string("bf16") ? 3 : 0,
                                                     .role = EngineRole::kInline});
      EXPECT_EQ(result.steps.size(), 4u);
      if (arm == std::string("bf16")) {
        EXPECT_NE(engine.weights_hash(), before);
      }
    }
  }
  Fault& fault(FaultKind kind, const std::string& site, int64_t start) {
    Fault& added = config.faults.emplace_back();
    added.kind = kind;
    added.site = site;
    added.start_step = start;
    return added;
  }

  TemporaryDirectory directory;
  EngineConfig config;
  int runs = 0;
};

TEST_F(Snapshot, EveryArmAfterSeveralStepsLeavesTheRunAsItWas) {
  const std::vector<Trace> whole = run({});
  EXPECT_EQ(run({8, 9, 15, 20}), whole);
  EXPECT_NE(whole[8].weights, whole[9].weights);
}

TEST_F(Snapshot, WithMomentsInFp8AndBf16) {
  for (const auto& [first, second] : {std::pair{"fp8", "bf16"}, std::pair{"bf16", "fp8"}}) {
    const std::string plan = PrecisionPlan::parse(kDelayedPlanOfSnapshot)
                                 .with_run({.first_moment = first, .second_moment = second})
                                 .to_toml();
    EXPECT_EQ(run({8, 13}, plan), run({}, plan));
  }
}

TEST_F(Snapshot, InFp32) {
  config.compute = Compute::kFp32;
  EXPECT_EQ(run({8, 13}, ""), run({}, ""));
}

// A copy made in step 6 and next in step 16: the replay from step 4 makes others.
TEST_F(Snapshot, WithAStaleWeightThatIsNotMadeAnewForLong) {
  fault(FaultKind::kStaleWeight, "model.layers.0.mlp.up_proj", 6).steps = 10;
  EXPECT_EQ(run({8, 13}), run({}));
}

TEST_F(Snapshot, WithFaultsThatChangeStateAndScales) {
  Fault& flip = fault(FaultKind::kBitFlip, "model.layers.1.mlp.down_proj.weight", 6);
  flip.bit = 20;
  Fault& stuck = fault(FaultKind::kStuckBit, "model.layers.0.self_attn.q_proj", 5);
  stuck.tensor = "weight";
  stuck.bit = 19;
  stuck.value = 1;
  fault(FaultKind::kFrozenAmax, "model.layers.1.self_attn.o_proj", 3).tensor = "input";
  fault(FaultKind::kScaleShift, "model.layers.0.mlp.down_proj", 7).log2_factor = 3;
  Fault& outlier = fault(FaultKind::kOutlierChannel, "model.layers.1.mlp.down_proj", 5);
  outlier.log2_factor = 6;
  outlier.steps = 10;
  const std::vector<Trace> whole = run({});
  EXPECT_EQ(run({8, 13}), whole);
  config.faults.clear();
  EXPECT_NE(run({}).back(), whole.back()) << "they did something";
}

// Matrices whose sizes leave gaps in the flat numbering: what a load leaves in the gaps between
// gradients would be in the next norm.
TEST_F(Snapshot, OfAModelWithGapsBetweenItsParameters) {
  config.model.width = 24;
  config.model.heads = 3;
  config.model.kv_heads = 1;
  config.model.ffn = 20;
  config.model.vocabulary = 67;
  config.model.qkv_bias = true;
  EXPECT_EQ(run({8, 13}, "", 0), run({}, "", 0));
}

// The plan, the mode and the step come back too, also where the replay ended half-way.
TEST_F(Snapshot, AfterAReplayThatWasAbandonedOrFailed) {
  Engine engine(config);
  engine.set_plan(PrecisionPlan::parse(kDelayedPlanOfSnapshot));
  engine.initialize();
  engine.allocate_snapshot_memory();
  const std::filesystem::path start = write_checkpoint(engine, directory.path() / "checkpoints");
  train_hashes(engine, 5);
  const std::string plan = engine.plan().to_toml();
  const uint64_t weights = engine.weights_hash();
  engine.snapshot();
  const auto three = [](int64_t steps) { return steps < 3; };
  EXPECT_THROW(
      replay_on(engine,
                {.checkpoint = start, .steps = 9, .arm = "fakequant", .role = EngineRole::kInline},
                three),
      ReplayAbandoned);
  EXPECT_EQ(engine.step(), 3);
  EXPECT_THROW(replay_on(engine, {.checkpoint = directory.path() / "nowhere", .steps = 9}), Error);
  engine.restore();
  EXPECT_EQ(engine.step(), 5);
  EXPECT_EQ(engine.plan().to_toml(), plan);
  EXPECT_EQ(engine.mode(), EngineMode{});
  EXPECT_EQ(engine.weights_hash(), weights);
  const std::vector<uint64_t> later = train_hashes(engine, 4);
  engine.restore();
  EXPECT_EQ(train_hashes(engine, 4), later) << "as often as it is called";
}

TEST_F(Snapshot, RefusesACheckpointOfOtherSettings) {
  Engine engine(config);
  engine.initialize();
  const std::filesystem::path start = write_checkpoint(engine, directory.path() / "checkpoints");
  config.optimizer.learning_rate = 1e-2;
  Engine other(config);
  other.initialize();
  EXPECT_THROW(replay_on(other, {.checkpoint = start, .steps = 1}), Error);
  config.threads = 2;  // what the fingerprint says
  config.optimizer = engine.config().optimizer;
  Engine threads(config);
  EXPECT_EQ(replay_on(threads, {.checkpoint = start, .steps = 1}).steps.size(), 1u);
}

TEST_F(Snapshot, SaysWhatItsMemoryIs) {
  Engine engine(config);
  const size_t before = engine.arenas().size();
  engine.allocate_snapshot_memory();
  ASSERT_EQ(engine.arenas().size(), before + 1);
  const ArenaSize& taken = engine.arenas().back();
  EXPECT_EQ(taken.name, "state kept while verifying");
  // Masters and two moments in FP32, weights in BF16; a page and the gaps of alignment.
  EXPECT_GE(taken.bytes, 14 * config.model.parameters());
  EXPECT_LE(taken.bytes, 14 * config.model.parameters() + (16 << 10));
}

}  // namespace
}  // namespace gnomon::test

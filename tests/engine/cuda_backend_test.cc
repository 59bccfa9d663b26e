// The engine on the CUDA backend, on a GPU or with its kernels emulated on the CPU, beside the
// engine on the CPU backend: the same run but for the order of sums, and exactly repeatable.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <vector>

#include "tests/engine/engine_fixture.h"
#include "tests/engine/tested_backends.h"
#include "trainer/engine/engine.h"
#include "trainer/replay.h"

namespace gnomon::test {
namespace {

struct TestedRecipe {
  std::string name, rules;
  bool qk_norm = false;
};
void PrintTo(const TestedRecipe& recipe, std::ostream* out) { *out << recipe.name; }

TestedRecipe recipe(const std::string& name, const std::string& keys = "") {
  return {name, "allow_ragged_tiles = true\n[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"" +
                    name + "\"\n" + keys};
}

class CudaBackend : public testing::TestWithParam<TestedRecipe> {
 protected:
  static EngineConfig configuration(const TemporaryDirectory& directory, bool qk_norm = false) {
    EngineConfig config = small_engine(directory.path());
    config.model.width = 48;
    config.model.heads = 3;
    config.model.kv_heads = 1;
    config.model.ffn = 144;
    config.model.qkv_bias = !qk_norm;
    config.model.qk_norm = qk_norm;
    return config;
  }
};

// A device looks at the first rows of a tensor: small shares differ by a factor here.
void expect_alike(const std::optional<CastSummary>& of_cuda,
                  const std::optional<CastSummary>& of_cpu) {
  ASSERT_EQ(of_cuda.has_value(), of_cpu.has_value());
  if (!of_cpu) return;
  EXPECT_NEAR(of_cuda->peak, of_cpu->peak, 0.05 * of_cpu->peak);
  EXPECT_NEAR(std::log(of_cuda->saturated), std::log(of_cpu->saturated), 1);
  EXPECT_NEAR(std::log(of_cuda->flushed), std::log(of_cpu->flushed), 1);
}

TEST_P(CudaBackend, TrainsAsTheCpuDoes) {
  TemporaryDirectory directory;
  const EngineConfig config = configuration(directory, GetParam().qk_norm);
  const PrecisionPlan plan = PrecisionPlan::parse(GetParam().rules);
  Engine cpu(config), cuda(config, EngineRole::kLive, nullptr, &tested_backends());
  for (Engine* engine : {&cpu, &cuda}) {
    engine->initialize();
    engine->set_plan(plan);
  }
  EXPECT_EQ(cuda.weights_hash(), cpu.weights_hash()) << "before the first step";
  for (int step = 1; step <= 3; ++step) {
    const StepResult of_cpu = cpu.train_step(), of_cuda = cuda.train_step();
    EXPECT_EQ(of_cuda.batch_hash, of_cpu.batch_hash);
    expect_alike(of_cuda.casts, of_cpu.casts);
    EXPECT_NEAR(of_cuda.loss, of_cpu.loss, 2e-3 * of_cpu.loss) << step;
    EXPECT_NEAR(of_cuda.grad_norm, of_cpu.grad_norm, 2e-2 * of_cpu.grad_norm) << step;
  }
  EXPECT_NEAR(cuda.evaluate(plan), cpu.evaluate(plan), 2e-3 * cpu.evaluate(plan));
  const double in_bf16 = cpu.evaluate(PrecisionPlan::bf16());
  EXPECT_NEAR(cuda.evaluate(PrecisionPlan::bf16()), in_bf16, 2e-3 * in_bf16);
}

TEST_P(CudaBackend, RepeatsItselfBitForBitAcrossACheckpointToo) {
  TemporaryDirectory directory;
  const EngineConfig config = configuration(directory, GetParam().qk_norm);
  Engine first(config, EngineRole::kLive, nullptr, &tested_backends());
  Engine second(config, EngineRole::kReplay, nullptr, &tested_backends());
  first.initialize();
  first.set_plan(PrecisionPlan::parse(GetParam().rules));
  train_hashes(first, 1);
  const auto checkpoint = write_checkpoint(first, directory.path() / "checkpoints");
  const std::vector<uint64_t> later = train_hashes(first, 2);
  second.load(checkpoint);
  EXPECT_EQ(train_hashes(second, 2), later);
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, CudaBackend,
    testing::Values(
        TestedRecipe{"bf16", ""}, recipe("current"), recipe("current", "power_of_two = true\n"),
        recipe("delayed", "amax_history = 3\nmargin = 1\n"), recipe("rowwise"),
        recipe("rowwise_gw_hp"), recipe("block"), recipe("block", "power_of_two = false\n"),
        recipe("mx"), recipe("none", "forward_format = \"e8m3\"\ngradient_format = \"e8m4\"\n"),
        TestedRecipe{"mixed", recipe("current").rules +
                                  "[[rule]]\nmatch = \"*.k_proj\"\ngemms = \"bf16\"\n"
                                  "[[rule]]\nmatch = \"*.up_proj\"\nonly = [\"wgrad\"]\n"
                                  "recipe = \"block\"\n"},
        recipe("tile64"), TestedRecipe{"norm_of_heads", recipe("current").rules, true}));

std::string refused_key(const EngineConfig& config, const PrecisionPlan& plan = {}) {
  try {
    Engine engine(config, EngineRole::kLive, nullptr, &tested_backends());
    engine.set_plan(plan);
  } catch (const ConfigError& error) {
    return error.file() + "." + error.key();
  }
  return "accepted";
}

TEST(CudaShapes, WhatTheDeviceCannotComputeIsRefusedBeforeTheFirstStep) {
  TemporaryDirectory directory;
  const EngineConfig config = small_engine(directory.path());
  EXPECT_EQ(refused_key(config), "accepted");
  const auto with = [&](auto change) {
    EngineConfig changed = config;
    change(changed);
    return changed;
  };
  EXPECT_EQ(refused_key(with([](EngineConfig& it) { it.model.ffn = 40; })), "model.ffn");
  EXPECT_EQ(refused_key(with([](EngineConfig& it) { it.model.head_width = 12; })),
            "model.head_dim");
  EXPECT_EQ(refused_key(with([](EngineConfig& it) { it.model.head_width = 512; })),
            "model.head_dim");
  EXPECT_EQ(refused_key(with([](EngineConfig& it) { it.model.width = 32768; })), "model.width");
  const EngineConfig odd = with([](EngineConfig& it) { it.model.vocabulary = 70; });
  EXPECT_EQ(refused_key(odd), "accepted");
  EXPECT_EQ(refused_key(odd, PrecisionPlan::fp8()), "model.vocabulary");
  const EngineConfig few = with([](EngineConfig& it) { it.batch.tokens = 12; });
  EXPECT_EQ(refused_key(few, PrecisionPlan::fp8()), "batch.tokens");
  // What no plan may have there is not prepared.
  for (const EngineConfig& bf16 : {odd, few}) {
    Recordings seen;
    const BackendMakers backends = tested_backends(seen);
    Engine engine(bf16, EngineRole::kLive, nullptr, &backends);
    engine.initialize();
    EXPECT_NO_THROW(engine.prepare());
  }
}

// Steps whose work was recorded, and what may come between them.
std::vector<uint64_t> varied_run(const EngineConfig& config, Recordings& seen) {
  const BackendMakers backends = tested_backends(seen);
  Engine engine(config, EngineRole::kLive, nullptr, &backends);
  engine.initialize();
  const PrecisionPlan current = PrecisionPlan::parse(recipe("current").rules);
  const PrecisionPlan delayed = PrecisionPlan::parse(recipe("delayed", "amax_history = 3\n").rules);
  std::vector<uint64_t> hashes;
  // Blocks have more scales than rows: their memory is taken anew, with another address.
  const PrecisionPlan rows = PrecisionPlan::parse(recipe("rowwise").rules);
  const PrecisionPlan blocks = PrecisionPlan::parse(recipe("block").rules);
  for (const PrecisionPlan& plan : {current, delayed, current, delayed, rows, blocks, rows}) {
    engine.set_plan(plan);
    // Copies of the weights are there when the second step is recorded.
    hashes.push_back(train_hashes(engine, 1)[0]);
    engine.evaluate(plan);
    for (uint64_t hash : train_hashes(engine, 2)) hashes.push_back(hash);
  }
  return hashes;
}

EngineConfig one_layer(const TemporaryDirectory& directory) {
  EngineConfig config = small_engine(directory.path());
  config.model.layers = 1;
  config.model.ffn = 160;  // two blocks
  return config;
}

TEST(CudaRepeats, RecordedWorkGivesTheSameBits) {
  TemporaryDirectory directory;
  const EngineConfig config = one_layer(directory);
  Recordings refused{.refused = true}, seen;
  EXPECT_EQ(varied_run(config, seen), varied_run(config, refused));
  // 21 steps of two micro-batches; work is recorded when it comes for the second time, and anew
  // after memory was taken anew.
  EXPECT_GE(seen.replays, 15);
  EXPECT_EQ(refused.replays, 0);
}

TEST(CudaRepeats, RecordedWorkCountsItsCastsToo) {
  TemporaryDirectory directory;
  const EngineConfig config = one_layer(directory);
  Recordings refused{.refused = true}, seen;
  const auto casts = [&](Recordings& recordings) {
    const BackendMakers backends = tested_backends(recordings);
    Engine engine(config, EngineRole::kLive, nullptr, &backends);
    engine.set_plan(PrecisionPlan::parse(recipe("delayed", "amax_history = 3\n").rules));
    engine.initialize();
    std::vector<std::optional<CastSummary>> found;
    for (int step = 0; step < 4; ++step) found.push_back(engine.train_step().casts);
    return found;
  };
  const auto found = casts(seen);
  EXPECT_EQ(found, casts(refused));
  EXPECT_GE(seen.replays, 2);
  ASSERT_TRUE(found.back());
  EXPECT_GT(found.back()->peak, 0.2);
}

// Steps, replays on the run's own engine between two of them, and a way back to a checkpoint.
std::vector<uint64_t> interrupted_run(const EngineConfig& config,
                                      const std::filesystem::path& folder, Recordings& seen) {
  const BackendMakers backends = tested_backends(seen);
  Engine engine(config, EngineRole::kLive, nullptr, &backends);
  engine.set_plan(PrecisionPlan::parse(recipe("delayed", "amax_history = 3\n").rules));
  engine.initialize();
  engine.allocate_snapshot_memory();
  std::vector<uint64_t> hashes;
  const auto train = [&](int steps) {
    for (uint64_t hash : train_hashes(engine, steps)) hashes.push_back(hash);
  };
  train(3);
  const auto checkpoint = write_checkpoint(engine, folder);
  train(2);
  engine.snapshot();
  for (const char* arm : {"bf16", "fakequant", "same"}) {
    replay_on(engine,
              {.checkpoint = checkpoint, .steps = 2, .arm = arm, .role = EngineRole::kInline});
    hashes.push_back(engine.weights_hash());
  }
  engine.restore();
  train(2);
  engine.load(checkpoint);
  train(2);
  return hashes;
}

TEST(CudaRepeats, ReplaysOnTheRunsOwnEngineAndRollbacksLeaveThemTheirBits) {
  TemporaryDirectory directory;
  const EngineConfig config = one_layer(directory);
  Recordings refused{.refused = true}, seen;
  const auto hashes = interrupted_run(config, directory.path() / "recorded", seen);
  EXPECT_EQ(hashes, interrupted_run(config, directory.path() / "not", refused));
  EXPECT_GE(seen.replays, 12);
  // 3 steps, 2 steps, three replays, 2 steps, and the first 2 of those behind the checkpoint again.
  ASSERT_EQ(hashes.size(), 12u);
  EXPECT_EQ(hashes[10], hashes[3]);
  EXPECT_EQ(hashes[11], hashes[4]);
  EXPECT_EQ(hashes[7], hashes[4]) << "the arm `same`";
}

TEST(CudaRepeats, AreNotForStepsThatFaultsMayChange) {
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  config.model.layers = 1;
  config.faults = {{.kind = FaultKind::kScaleShift,
                    .site = "model.layers.0.mlp.down_proj",
                    .start_step = 3,
                    .log2_factor = 7}};
  Recordings seen;
  const BackendMakers backends = tested_backends(seen);
  Engine engine(config, EngineRole::kLive, nullptr, &backends);
  engine.initialize();
  engine.set_plan(PrecisionPlan::fp8());
  train_hashes(engine, 4);
  EXPECT_EQ(seen.replays, 0);
}

// All tensors of a checkpoint, one after another.
std::string bytes_of(const CheckpointContent& content) {
  std::string all;
  for (const auto* views : {&content.model, &content.optimizer}) {
    for (const TensorView& view : *views) {
      all.append(static_cast<const char*>(view.data), static_cast<size_t>(view.bytes()));
    }
  }
  return all;
}

// Emulated, copies are made as late as they may be.
TEST(CudaCheckpoint, IsOfTheStepItWasBegunAtWhateverIsTrainedMeanwhile) {
  TemporaryDirectory directory;
  Engine engine(small_engine(directory.path()), EngineRole::kLive, nullptr, &tested_backends());
  engine.initialize();
  train_hashes(engine, 1);
  const std::string expected = bytes_of(engine.checkpoint());
  const CheckpointContent content = engine.checkpoint_in_place();
  HostRoom room(engine.memory(), std::ssize(expected), "a test");
  std::vector<Memory::Piece> pieces;
  std::byte* next = room.data();
  for (const auto* views : {&content.model, &content.optimizer}) {
    for (const TensorView& view : *views) {
      const auto size = static_cast<size_t>(view.bytes());
      pieces.push_back({{static_cast<const std::byte*>(view.data), size}, next});
      next += size;
    }
  }
  const auto copies = engine.memory().start_copy_out(pieces);
  train_hashes(engine, 1);
  copies->wait();
  const std::string found(reinterpret_cast<const char*>(room.data()), expected.size());
  EXPECT_EQ(found, expected);
  EXPECT_NE(bytes_of(engine.checkpoint()), expected);
}

TEST(CudaBackendFaults, ActOnTheDeviceToo) {
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  const std::string down = "model.layers.1.mlp.down_proj";
  const PrecisionPlan plan = PrecisionPlan::parse(recipe("current").rules);
  for (const Fault& fault :
       {Fault{.kind = FaultKind::kScaleShift, .site = down, .start_step = 1, .log2_factor = 7},
        Fault{.kind = FaultKind::kDroppedKBlock,
        .site = down,
        .start_step = 1,
        .gemm = "fprop",
        .terms = 32}}) {
    config.faults = {fault};
    Engine cpu(config), cuda(config, EngineRole::kLive, nullptr, &tested_backends());
    config.faults.clear();
    Engine sound(config);
    for (Engine* engine : {&cpu, &cuda, &sound}) {
      engine->initialize();
      engine->set_plan(plan);
    }
    const StepResult on_cpu = cpu.train_step(), on_cuda = cuda.train_step();
    expect_alike(on_cuda.casts, on_cpu.casts);
    const double of_cpu = on_cpu.loss, of_cuda = on_cuda.loss;
    const double of_sound = sound.train_step().loss;
    EXPECT_NEAR(of_cuda, of_cpu, 1e-3 * of_cpu) << fault_kind_name(fault.kind);
    EXPECT_GT(std::abs(of_cpu - of_sound), 2 * std::abs(of_cuda - of_cpu))
        << fault_kind_name(fault.kind) << " is felt";
  }
}

}  // namespace
}  // namespace gnomon::test

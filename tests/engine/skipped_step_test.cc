// AdamW's bias correction counts updates: a step that was skipped is none. Shown against the
// formula by hand, and by replays from checkpoints on both sides of skipped steps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/errors.h"
#include "storage/checkpoint_store.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/tested_backends.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/optimizer.h"

namespace gnomon::test {
namespace {

constexpr MomentFormat kFp32 = MomentFormat::kFp32, kBf16 = MomentFormat::kBf16,
                       kFp8 = MomentFormat::kFp8;

// Whatever step the first update comes with, it is the first.
TEST(SkippedStep, TheOptimizersFirstUpdateIsCorrectedAsTheFirst) {
  const ParameterLayout layout(small_model());
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  OptimizerConfig config;
  config.warmup_steps = 0;
  config.weight_decay = 0.25;
  config.clip = 0;
  Optimizer optimizer(config, layout, *backend);
  const auto count = static_cast<size_t>(layout.elements());
  std::vector<float> gradients(count, 0.125f);
  std::vector<bf16> weights(count);
  double w = 0.5, m = 0, v = 0;
  std::ranges::fill(optimizer.masters(), 0.5f);
  int updates = 0;
  for (const int64_t step : {4, 5, 9}) {  // 1 to 3 and 6 to 8 were skipped
    optimizer.update(step, 1.0, gradients, weights);
    ++updates;
    m = config.beta1 * m + (1 - config.beta1) * 0.125;
    v = config.beta2 * v + (1 - config.beta2) * 0.125 * 0.125;
    const double mean = m / (1 - std::pow(config.beta1, updates));
    const double square = v / (1 - std::pow(config.beta2, updates));
    w -= config.at(step) * (mean / (std::sqrt(square) + config.eps) + config.weight_decay * w);
    EXPECT_NEAR(optimizer.masters()[0], w, 1e-6) << "step " << step;
  }
}

// Bits of queries and keys are stuck in `steps`: their products overflow, and no loss is finite.
void skip(EngineConfig& config, const std::vector<int64_t>& steps) {
  for (const int64_t step : steps) {
    for (const char* site : {"q_proj", "k_proj"}) {
      Fault& fault = config.faults.emplace_back();
      fault.kind = FaultKind::kStuckBit;
      fault.site = fmt::format("model.layers.0.self_attn.{}", site);
      fault.tensor = "output";
      fault.element = 1;
      fault.bit = 14;
      fault.start_step = step;
      fault.end_step = step + 1;
    }
  }
}

struct SkipCase {
  std::string name;
  MomentFormat first = kFp32, second = kFp32;
  bool cuda = false;
};

class SkippedSteps : public testing::TestWithParam<SkipCase> {
 protected:
  SkippedSteps() {
    config.optimizer.warmup_steps = 0;
    config.batch.sequences = 1;
    config.batch.accumulation = 1;
    config.model.layers = 1;
    skip(config, {1, 4});
  }
  std::unique_ptr<Engine> make() {
    return std::make_unique<Engine>(config, EngineRole::kLive, nullptr,
                                    GetParam().cuda ? &backends : nullptr);
  }
  std::unique_ptr<Engine> start() {
    auto engine = make();
    engine->set_plan(
        PrecisionPlan().with_run({.first_moment = moment_format_name(GetParam().first),
                                  .second_moment = moment_format_name(GetParam().second)}));
    engine->initialize();
    return engine;
  }
  static std::vector<float> masters_of(const Engine& engine) {
    const CheckpointContent content = engine.checkpoint();
    std::vector<float> all;
    for (const TensorView& tensor : content.optimizer) {
      if (!tensor.name.starts_with("master.")) continue;
      const auto* data = static_cast<const float*>(tensor.data);
      all.insert(all.end(), data, data + tensor.bytes() / 4);
    }
    return all;
  }

  const BackendMakers backends = tested_backends();
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
};

// The first update moves every weight by about the learning rate, its sign being the gradient's:
// m̂/√v̂ is g/|g|.
TEST_P(SkippedSteps, TheUpdateAfterASkippedFirstStepHasItsFullSize) {
  config.optimizer.weight_decay = 0;
  config.optimizer.clip = 0;
  config.optimizer.eps = 1e-14;
  const std::unique_ptr<Engine> engine = start();
  const std::vector<float> before = masters_of(*engine);
  const StepResult skipped = engine->train_step();
  ASSERT_FALSE(skipped.finite) << skipped.loss << " " << skipped.grad_norm;
  ASSERT_EQ(masters_of(*engine), before);
  const StepResult first = engine->train_step();
  ASSERT_TRUE(first.finite);
  const std::vector<float> after = masters_of(*engine);
  int64_t moved = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const double change = std::abs(static_cast<double>(after[i]) - static_cast<double>(before[i]));
    if (change == 0) continue;  // a token that no batch has
    ++moved;
    ASSERT_NEAR(change / first.learning_rate, 1.0, 0.01) << i;
  }
  EXPECT_GT(moved, std::ssize(before) / 2);
}

TEST_P(SkippedSteps, AReplayFromAnyCheckpointHasTheBitsOfTheRun) {
  const std::unique_ptr<Engine> whole = start();
  std::map<int64_t, std::filesystem::path> checkpoints;
  std::vector<StepResult> steps;
  while (whole->step() < 8) {
    checkpoints[whole->step()] =
        write_checkpoint(*whole, directory.path() / std::to_string(whole->step()));
    steps.push_back(whole->train_step());
    EXPECT_EQ(steps.back().finite, steps.back().step != 1 && steps.back().step != 4);
  }
  const std::unique_ptr<Engine> other = make();
  for (const auto& [step, checkpoint] : checkpoints) {
    for (Engine* engine : {other.get(), whole.get()}) {  // another's replay, and a rollback
      engine->load(checkpoint);
      while (engine->step() < 8) {
        const StepResult again = engine->train_step();
        ASSERT_EQ(again.weights_hash, steps[static_cast<size_t>(again.step) - 1].weights_hash)
            << "from step " << step << ", step " << again.step;
      }
    }
  }
}

TEST_P(SkippedSteps, ASnapshotKeepsTheCount) {
  const std::unique_ptr<Engine> engine = start();
  const auto at_start = write_checkpoint(*engine, directory.path() / "start");
  engine->allocate_snapshot_memory();
  train_hashes(*engine, 5);
  engine->snapshot();
  const std::vector<uint64_t> expected = train_hashes(*engine, 3);
  engine->load(at_start);
  train_hashes(*engine, 2);
  engine->restore();
  EXPECT_EQ(train_hashes(*engine, 3), expected);
}

INSTANTIATE_TEST_SUITE_P(Cases, SkippedSteps,
                         testing::Values(SkipCase{"fp32"}, SkipCase{"bf16", kBf16, kBf16},
                                         SkipCase{"fp8", kFp8, kFp8},
                                         SkipCase{"fp8_fp32", kFp8, kFp32},
                                         SkipCase{"cuda", kFp32, kFp32, true},
                                         SkipCase{"cuda_fp8", kFp8, kFp8, true}),
                         [](const auto& instance) { return instance.param.name; });

class UpdatesInACheckpoint : public testing::Test {
 protected:
  std::filesystem::path edited(const Engine& engine, const std::string& name,
                               const std::string& from, const std::string& to) {
    CheckpointContent content = engine.checkpoint();
    const size_t at = content.trainer_state_json.find(from);
    EXPECT_NE(at, std::string::npos) << content.trainer_state_json.substr(0, 200);
    if (at != std::string::npos) content.trainer_state_json.replace(at, from.size(), to);
    return CheckpointStore(directory.path() / name).write(1, engine.step(), content).path;
  }

  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
};

TEST_F(UpdatesInACheckpoint, MustBeSaid) {
  Engine engine(config);
  engine.initialize();
  train_hashes(engine, 5);
  const auto cut = edited(engine, "cut", "\"updates\":5,", "");
  Engine other(config);
  try {
    other.load(cut);
    ADD_FAILURE() << "taken";
  } catch (const FormatError& error) {
    EXPECT_NE(std::string(error.what()).find("\"updates\""), std::string::npos) << error.what();
  }
}

TEST_F(UpdatesInACheckpoint, CountThoseThatWereMade) {
  skip(config, {1, 2, 4});
  Engine engine(config);
  engine.initialize();
  train_hashes(engine, 5);
  EXPECT_NE(engine.checkpoint().trainer_state_json.find("\"updates\":2,"), std::string::npos);
  engine.initialize();
  EXPECT_NE(engine.checkpoint().trainer_state_json.find("\"updates\":0,"), std::string::npos);
}

TEST_F(UpdatesInACheckpoint, AreRefusedWhereThereCannotBeSoMany) {
  Engine engine(config);
  engine.initialize();
  train_hashes(engine, 3);
  for (const char* wrong : {"4", "-1", "\"3\""}) {
    const auto damaged =
        edited(engine, fmt::format("as_{}", wrong == std::string("\"3\"") ? "text" : wrong),
               "\"updates\":3,", fmt::format("\"updates\":{},", wrong));
    Engine other(config);
    EXPECT_THROW(other.load(damaged), FormatError) << wrong;
  }
}

}  // namespace
}  // namespace gnomon::test

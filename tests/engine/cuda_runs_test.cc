// Longer runs on the CUDA backend: exactly repeatable over many steps, across a checkpoint and
// changes of the plan; close to the CPU's for as long as two runs stay close. Short where the
// device is emulated.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/engine_fixture.h"
#include "tests/engine/tested_backends.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/synthetic_data.h"

namespace gnomon::test {
namespace {

int steps() { return on_a_gpu() ? 200 : 6; }

PrecisionPlan plan_of(const std::string& recipe) {
  return recipe == "bf16" || recipe == "lion" ? PrecisionPlan::bf16()
                                              : PrecisionPlan::fp8(recipe_from_name(recipe));
}

class CudaRuns : public testing::TestWithParam<std::string> {
 protected:
  CudaRuns() {
    config_ = small_engine(directory_.path());
    if (GetParam() == "lion") {
      config_.optimizer.name = OptimizerKind::kLion;
      config_.optimizer.learning_rate = 3e-4;
    }
    if (!on_a_gpu()) {
      config_.model = {
          .layers = 1, .width = 32, .heads = 2, .kv_heads = 1, .ffn = 48, .vocabulary = 64};
      config_.batch = {.sequences = 1, .tokens = 16, .accumulation = 2};
      return;
    }
    constexpr int kVocabulary = 512;
    config_.model = {.layers = 4,
                     .width = 512,
                     .heads = 8,
                     .kv_heads = 4,
                     .ffn = 1408,
                     .vocabulary = kVocabulary};
    config_.batch = {.sequences = 4, .tokens = 256, .accumulation = 2};
    config_.threads = 8;
    const auto data = directory_.path() / "larger";
    write_token_dataset(data, {learnable_tokens(1, kVocabulary, int64_t{1} << 19)},
                        learnable_tokens(2, kVocabulary, int64_t{1} << 14), kVocabulary);
    config_.data = data;
  }

  TemporaryDirectory directory_;
  EngineConfig config_;
};

TEST_P(CudaRuns, RepeatThemselvesOverManyStepsAndAcrossACheckpoint) {
  Engine first(config_, EngineRole::kLive, nullptr, &tested_backends());
  first.initialize();
  first.set_plan(plan_of(GetParam()));
  std::vector<uint64_t> hashes = train_hashes(first, steps() / 2);
  const auto checkpoint = write_checkpoint(first, directory_.path() / "checkpoints");
  for (uint64_t hash : train_hashes(first, steps() / 2)) hashes.push_back(hash);

  Engine again(config_, EngineRole::kLive, nullptr, &tested_backends());
  again.initialize();
  again.set_plan(plan_of(GetParam()));
  EXPECT_EQ(train_hashes(again, steps()), hashes) << "from the start";

  config_.threads += 3;  // a device's bits depend on no thread of the host
  Engine from_checkpoint(config_, EngineRole::kReplay, nullptr, &tested_backends());
  from_checkpoint.load(checkpoint);
  const std::vector<uint64_t> later(hashes.begin() + steps() / 2, hashes.end());
  EXPECT_EQ(train_hashes(from_checkpoint, steps() / 2), later) << "from the checkpoint";
  EXPECT_EQ(from_checkpoint.fingerprint(), first.fingerprint());
}

TEST_P(CudaRuns, LearnAsTheCpuDoes) {
  Engine cpu(config_), cuda(config_, EngineRole::kLive, nullptr, &tested_backends());
  for (Engine* engine : {&cpu, &cuda}) {
    engine->initialize();
    engine->set_plan(plan_of(GetParam()));
  }
  const int compared = on_a_gpu() ? 20 : 4;
  for (int step = 1; step <= compared; ++step) {
    const double of_cpu = cpu.train_step().loss, of_cuda = cuda.train_step().loss;
    EXPECT_NEAR(of_cuda, of_cpu, 5e-3 * of_cpu) << "step " << step;
  }
  const double of_cpu = cpu.evaluate(PrecisionPlan::bf16());
  EXPECT_NEAR(cuda.evaluate(PrecisionPlan::bf16()), of_cpu, 5e-3 * of_cpu);
}

TEST_P(CudaRuns, ChangesOfThePlanAreRepeatedToo) {
  const auto run = [&] {
    Engine engine(config_, EngineRole::kLive, nullptr, &tested_backends());
    engine.initialize();
    std::vector<uint64_t> hashes;
    for (const std::string& recipe : {GetParam(), std::string("bf16"), GetParam()}) {
      engine.set_plan(plan_of(recipe));
      for (uint64_t hash : train_hashes(engine, steps() / 3)) hashes.push_back(hash);
      engine.evaluate(PrecisionPlan::bf16());  // changes nothing
    }
    return hashes;
  };
  EXPECT_EQ(run(), run());
}

// The second computation repeats recorded passes, or is the first to be recorded.
TEST_P(CudaRuns, GradientsComputedTwiceAreTheSame) {
  std::vector<uint64_t> hashes[2];
  for (const bool twice : {false, true}) {
    Engine engine(config_, EngineRole::kLive, nullptr, &tested_backends());
    engine.initialize();
    engine.set_plan(plan_of(GetParam()));
    for (int i = 0; i < steps() / 2; ++i) {
      const StepResult result = engine.train_step(nullptr, twice);
      EXPECT_EQ(result.mismatch, "");
      hashes[twice ? 1 : 0].push_back(result.weights_hash);
    }
  }
  EXPECT_EQ(hashes[1], hashes[0]);
}

INSTANTIATE_TEST_SUITE_P(Recipes, CudaRuns,
                         testing::Values("bf16", "current", "delayed", "rowwise", "block", "lion"));

}  // namespace
}  // namespace gnomon::test

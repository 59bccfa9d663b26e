// Every update compares the state that it reads with what the update before has written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/engine_fixture.h"
#include "trainer/engine/engine.h"

namespace gnomon::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::string kStruck = "model.layers.1.mlp.down_proj.weight";

struct Case {
  std::string name;
  OptimizerKind optimizer = OptimizerKind::kAdamw;
  std::string moments = "fp32";
  Compute compute = Compute::kBf16;
};

class StateSumsOf : public testing::TestWithParam<Case> {
 protected:
  StateSumsOf() {
    config.optimizer.name = GetParam().optimizer;
    config.compute = GetParam().compute;
  }
  PrecisionPlan plan(const std::string& moments) const {
    const bool has_second = optimizer_row(config.optimizer.name).has(Moment::kSecond);
    return PrecisionPlan::bf16().with_run({moments, has_second ? moments : "fp32", "full", "full"});
  }
  std::unique_ptr<Engine> start() {
    auto engine = std::make_unique<Engine>(config);
    engine->set_plan(plan(GetParam().moments));
    engine->initialize();
    return engine;
  }
  static void train(Engine& engine, int64_t to, std::vector<int64_t>& changed) {
    while (engine.step() < to) {
      const StepResult result = engine.train_step();
      if (result.state_changed) changed.push_back(result.step);
    }
  }

  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
};

// The lowest bit of one weight of all: no loss shows it.
TEST_P(StateSumsOf, AFlippedBitIsSeenByTheNextUpdateAndByNoOther) {
  config.faults = {{.kind = FaultKind::kBitFlip, .site = kStruck, .start_step = 4, .element = 7}};
  std::vector<int64_t> changed;
  train(*start(), 9, changed);
  EXPECT_THAT(changed, ElementsAre(5));
}

TEST_P(StateSumsOf, ABitThatIsStuckIsSeenWhereverItIsOtherwise) {
  Fault stuck{.kind = FaultKind::kStuckBit, .site = "model.layers.0.mlp.up_proj", .start_step = 3};
  stuck.tensor = "weight";
  stuck.bit = 2;
  stuck.value = 1;
  config.faults = {stuck};
  std::vector<int64_t> changed;
  train(*start(), 20, changed);
  EXPECT_GT(changed.size(), 3u);
  EXPECT_GT(changed.front(), 3);
}

// Whatever else writes the state on purpose.
TEST_P(StateSumsOf, NothingIsSeenWhereTheEngineItselfWrites) {
  std::vector<int64_t> changed;
  const std::unique_ptr<Engine> engine = start();
  engine->allocate_snapshot_memory();
  train(*engine, 3, changed);
  const auto checkpoint = write_checkpoint(*engine, directory.path() / "checkpoints");
  train(*engine, 5, changed);
  engine->snapshot();
  engine->load(checkpoint);
  engine->perturb(3, 1e-4);
  train(*engine, 6, changed);
  engine->restore();
  train(*engine, 7, changed);
  if (GetParam().moments != "fp32") {
    for (const char* moments : {"fp32", "bf16"}) {
      engine->set_plan(plan(moments));
      train(*engine, engine->step() + 2, changed);
    }
  }
  engine->initialize();
  train(*engine, 2, changed);
  EXPECT_THAT(changed, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    States, StateSumsOf,
    testing::Values(Case{"adamw"}, Case{"bf16_moments", OptimizerKind::kAdamw, "bf16"},
                    Case{"fp8_moments", OptimizerKind::kAdamw, "fp8"},
                    Case{"lion", OptimizerKind::kLion},
                    Case{"lion_fp8", OptimizerKind::kLion, "fp8"},
                    Case{"fp32", OptimizerKind::kAdamw, "fp32", Compute::kFp32}),
    [](const auto& instance) { return instance.param.name; });

// A fault of numerics that is planted in the moments is none of the memory.
TEST(StateSums, MomentsThatAreRoundedWronglyWereWrittenSo) {
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  Fault fault{.kind = FaultKind::kFp8SecondMoment, .site = "*", .start_step = 3};
  fault.format = "e4m3";
  fault.log2_factor = -3;
  config.faults = {fault};
  Engine engine(config);
  engine.set_plan(PrecisionPlan::bf16().with_run({"fp8", "fp8", "full", "full"}));
  engine.initialize();
  for (int i = 0; i < 6; ++i) EXPECT_FALSE(engine.train_step().state_changed);
}

}  // namespace
}  // namespace gnomon::test

// Runs with Lion: one moment in memory, checkpoints and replays, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "storage/safetensors.h"
#include "tests/engine/engine_fixture.h"
#include "trainer/engine/engine.h"

namespace gnomon::test {
namespace {

EngineConfig lion_engine(const std::filesystem::path& directory) {
  EngineConfig config = small_engine(directory);
  config.optimizer.name = OptimizerKind::kLion;
  config.optimizer.learning_rate = 1e-3;
  config.optimizer.beta2 = 0.99;
  return config;
}

int64_t lion_state_bytes(const Engine& engine) {
  for (const ArenaSize& arena : engine.arenas()) {
    if (arena.name == "optimizer") return arena.bytes;
  }
  return 0;
}

class LionRuns : public testing::TestWithParam<MomentFormat> {
 protected:
  PrecisionPlan plan(const PrecisionPlan& gemms = {}) const {
    return gemms.with_run({.first_moment = moment_format_name(GetParam())});
  }

  TemporaryDirectory directory;
  EngineConfig config = lion_engine(directory.path());
};

TEST_P(LionRuns, AShadowReplaysACheckpointBitForBit) {
  Engine engine(config);
  engine.set_plan(plan(PrecisionPlan::fp8()));
  engine.initialize();
  const std::vector<uint64_t> first = train_hashes(engine, 6);
  const auto checkpoint = write_checkpoint(engine, directory.path() / "checkpoints");
  const std::vector<uint64_t> expected = train_hashes(engine, 6);
  ASSERT_NE(expected.front(), first.back());

  const EngineConfig written = read_engine_config(checkpoint);
  EXPECT_EQ(written.optimizer, config.optimizer);
  Engine shadow(written, EngineRole::kReplay);
  shadow.load(checkpoint);
  EXPECT_EQ(train_hashes(shadow, 6), expected);
  // As between two steps of the run itself.
  engine.allocate_snapshot_memory();
  engine.snapshot();
  const std::vector<uint64_t> later = train_hashes(engine, 3);
  engine.load(checkpoint);
  EXPECT_EQ(train_hashes(engine, 6), expected);
  engine.restore();
  EXPECT_EQ(train_hashes(engine, 3), later);
}

TEST_P(LionRuns, TheCheckpointHasOneMoment) {
  Engine engine(config);
  engine.set_plan(plan());
  engine.initialize();
  train_hashes(engine, 2);
  const auto checkpoint = write_checkpoint(engine, directory.path() / "checkpoints");
  const SafetensorsFile file(checkpoint / "optimizer.safetensors");
  const TensorView* moment = file.find("exp_avg.model.layers.0.mlp.down_proj.weight");
  ASSERT_NE(moment, nullptr);
  EXPECT_EQ(moment->dtype, GetParam() == MomentFormat::kFp32   ? "F32"
                           : GetParam() == MomentFormat::kBf16 ? "BF16"
                                                               : "F8_E4M3");
  EXPECT_EQ(file.find("exp_avg_scales") != nullptr, GetParam() == MomentFormat::kFp8);
  EXPECT_TRUE(std::ranges::none_of(file.tensors(), [](const TensorView& tensor) {
    return tensor.name.starts_with("exp_avg_sq");
  }));
}

TEST_P(LionRuns, TheLossFalls) {
  config.optimizer.warmup_steps = 20;
  config.optimizer.total_steps = 300;
  Engine engine(config);
  engine.set_plan(plan());
  engine.initialize();
  double last = 0;
  for (int step = 1; step <= 300; ++step) {
    const double loss = engine.train_step().loss;
    if (step > 250) last += loss / 50;
  }
  EXPECT_LT(last, 4.08);  // ln 64 is 4.16
}

INSTANTIATE_TEST_SUITE_P(Moments, LionRuns,
                         testing::Values(MomentFormat::kFp32, MomentFormat::kBf16,
                                         MomentFormat::kFp8));

TEST(LionMemory, IsThatOfMastersAndOneMoment) {
  TemporaryDirectory directory;
  EngineConfig config = lion_engine(directory.path());
  const int64_t lion = lion_state_bytes(Engine(config));
  config.optimizer.name = OptimizerKind::kAdamw;
  const int64_t adamw = lion_state_bytes(Engine(config));
  EXPECT_NEAR(static_cast<double>(lion) / static_cast<double>(adamw), 2.0 / 3, 0.01);
}

TEST(LionPlans, ThatStoreASecondMomentInLessAreRefused) {
  TemporaryDirectory directory;
  EngineConfig config = lion_engine(directory.path());
  config.memory.moments = MomentFormat::kFp8;  // room for the first alone decides
  Engine engine(config);
  engine.set_plan(PrecisionPlan().with_run({.first_moment = "fp8"}));
  engine.initialize();
  try {
    engine.set_plan(PrecisionPlan().with_run({.first_moment = "fp8", .second_moment = "fp8"}));
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.key(), "second_moment");
    EXPECT_THAT(error.accepted(), testing::HasSubstr("\"lion\", which has no second moment"));
  }
  EXPECT_THROW(engine.set_plan(PrecisionPlan::bf16()), ConfigError);  // needs FP32
}

TEST(LionCheckpoints, AreRefusedByAnEngineWithAnotherOptimizer) {
  TemporaryDirectory directory;
  EngineConfig config = lion_engine(directory.path());
  Engine lion(config);
  config.optimizer.name = OptimizerKind::kAdamw;
  Engine adamw(config);
  for (auto [writer, reader] : {std::pair(&lion, &adamw), std::pair(&adamw, &lion)}) {
    writer->initialize();
    writer->train_step();
    const auto root = directory.path() / (writer == &lion ? "lion" : "adamw");
    const auto checkpoint = write_checkpoint(*writer, root);
    try {
      reader->load(checkpoint);
      ADD_FAILURE() << "accepted";
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.key(), "optimizer.name");
      EXPECT_EQ(error.value(), writer == &lion ? "lion" : "adamw");
    }
  }
}

// The analysis by site takes Lion's step: errors of weight gradients turn some of its signs, and
// those of input gradients are weighted by the slope of a clipped sign.
TEST(LionScores, SayWhatTheNextUpdateCostsAndChangeNothing) {
  TemporaryDirectory directory;
  Engine engine(lion_engine(directory.path()));
  engine.initialize();
  train_hashes(engine, 10);
  const uint64_t before = engine.weights_hash();
  for (const char* gemm : {"wgrad", "dgrad"}) {
    const PrecisionPlan plan = PrecisionPlan::parse(
        std::string("[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"current\"\nonly = [\"") +
        gemm + "\"]\n");
    const std::vector<SiteScoreRow> rows = engine.scores(plan, 11);
    EXPECT_EQ(rows.size(), engine.config().model.sites().size());
    EXPECT_TRUE(std::ranges::all_of(
        rows, [](const SiteScoreRow& row) { return std::isfinite(row.psi) && row.phi == 0; }));
    EXPECT_TRUE(std::ranges::any_of(rows, [](const SiteScoreRow& row) { return row.psi != 0; }))
        << gemm;
  }
  EXPECT_EQ(engine.weights_hash(), before);
}

}  // namespace
}  // namespace gnomon::test

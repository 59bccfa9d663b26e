// Runs whose moments are stored in BF16 and FP8: memory, checkpoints, exact replay and the loss.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/errors.h"
#include "storage/safetensors.h"
#include "tests/engine/engine_fixture.h"
#include "trainer/engine/engine.h"

namespace gnomon::test {
namespace {

using Formats = std::pair<MomentFormat, MomentFormat>;
constexpr MomentFormat kFp32 = MomentFormat::kFp32, kBf16 = MomentFormat::kBf16,
                       kFp8 = MomentFormat::kFp8;

EngineConfig with_moments(EngineConfig config, Formats formats) {
  config.optimizer.first_moment = formats.first;
  config.optimizer.second_moment = formats.second;
  return config;
}

int64_t optimizer_bytes(const Engine& engine) {
  for (const ArenaSize& arena : engine.arenas()) {
    if (arena.name == "optimizer") return arena.bytes;
  }
  return 0;
}

class MomentRuns : public testing::TestWithParam<Formats> {
 protected:
  TemporaryDirectory directory;
  EngineConfig config = with_moments(small_engine(directory.path()), GetParam());
};

TEST_P(MomentRuns, ARestartFromACheckpointGivesTheSameBits) {
  Engine engine(config);
  engine.initialize();
  std::vector<uint64_t> first = train_hashes(engine, 12);
  std::filesystem::path checkpoint = write_checkpoint(engine, directory.path() / "checkpoints");
  std::vector<uint64_t> expected = train_hashes(engine, 8);
  Engine other(read_engine_config(checkpoint));
  other.load(checkpoint);
  EXPECT_EQ(train_hashes(other, 8), expected);
  engine.initialize();
  EXPECT_EQ(train_hashes(engine, 12), first);
}

TEST_P(MomentRuns, TheCheckpointHoldsWhatIsStored) {
  Engine engine(config);
  engine.initialize();
  train_hashes(engine, 2);
  std::filesystem::path checkpoint = write_checkpoint(engine, directory.path() / "checkpoints");
  SafetensorsFile file(checkpoint / "optimizer.safetensors");
  auto check = [&](const std::string& name, MomentFormat format, const std::string& fp8) {
    const TensorView* tensor = file.find(name + ".model.layers.0.mlp.down_proj.weight");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->dtype, format == kFp32 ? "F32" : format == kBf16 ? "BF16" : fp8);
    const TensorView* scales = file.find(name + "_scales");
    ASSERT_EQ(scales != nullptr, format == kFp8);
    if (scales != nullptr) {
      EXPECT_EQ(scales->dtype, "F32");
    }
  };
  check("exp_avg", GetParam().first, "F8_E4M3");
  check("exp_avg_sq", GetParam().second, "F8_E5M2");
}

TEST_P(MomentRuns, AnEngineWithOtherMomentsRefusesTheCheckpoint) {
  Engine engine(config);
  engine.initialize();
  std::filesystem::path checkpoint = write_checkpoint(engine, directory.path() / "checkpoints");
  Formats others = GetParam();
  others.second = others.second == kFp8 ? kFp32 : kFp8;
  Engine other(with_moments(config, others));
  try {
    other.load(checkpoint);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    std::string text = error.what();
    EXPECT_NE(text.find("second_moment"), std::string::npos) << text;
    EXPECT_NE(text.find(moment_format_name(others.second)), std::string::npos) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, MomentRuns,
                         testing::Values(Formats{kFp32, kFp32}, Formats{kBf16, kBf16},
                                         Formats{kFp8, kFp8}, Formats{kBf16, kFp8},
                                         Formats{kFp8, kFp32}),
                         [](const auto& instance) {
                           return moment_format_name(instance.param.first) + "_" +
                                  moment_format_name(instance.param.second);
                         });

TEST(MomentMemory, IsThatOfTheBytesStored) {
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  int64_t fp32 = optimizer_bytes(Engine(config));
  int64_t bf16 = optimizer_bytes(Engine(with_moments(config, {kBf16, kBf16})));
  int64_t fp8 = optimizer_bytes(Engine(with_moments(config, {kFp8, kFp8})));
  EXPECT_NEAR(static_cast<double>(bf16) / static_cast<double>(fp32), 8.0 / 12, 0.01);
  EXPECT_NEAR(static_cast<double>(fp8) / static_cast<double>(fp32), (6 + 8.0 / 128) / 12, 0.01);
}

// The yardstick is what another seed does to FP32 moments: a format passes when its mean distance
// from FP32 over the seeds is within two standard errors of that spread.
TEST(MomentLoss, EveryFormatEndsWhereFp32Ends) {
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  config.optimizer.learning_rate = 5e-3;
  config.optimizer.total_steps = 300;
  config.optimizer.warmup_steps = 20;
  constexpr int kSeeds = 4;
  auto losses = [&](Formats formats) {
    std::vector<double> ends;
    for (int seed = 1; seed <= kSeeds; ++seed) {
      EngineConfig run = with_moments(config, formats);
      run.seed = seed;
      Engine engine(run);
      engine.initialize();
      double last = 0;
      for (int step = 1; step <= 300; ++step) {
        double loss = engine.train_step().loss;
        if (step > 250) last += loss / 50;
      }
      ends.push_back(last);
    }
    return ends;
  };
  auto mean_of = [](const std::vector<double>& values) {
    double sum = 0;
    for (double value : values) sum += value;
    return sum / static_cast<double>(values.size());
  };
  std::vector<double> fp32 = losses({kFp32, kFp32});
  double mean = mean_of(fp32), squares = 0;
  for (double loss : fp32) squares += (loss - mean) * (loss - mean);
  double spread = std::sqrt(squares / (kSeeds - 1));
  EXPECT_LT(mean, 3.9);  // it learns: ln 64 is 4.16
  for (Formats formats :
       {Formats{kBf16, kBf16}, Formats{kFp8, kFp32}, Formats{kFp32, kFp8}, Formats{kFp8, kFp8}}) {
    double gap = mean_of(losses(formats)) - mean;
    std::string name = moment_format_name(formats.first) + "_" + moment_format_name(formats.second);
    RecordProperty(name + "_gap_nats", std::to_string(gap));
    EXPECT_LT(std::abs(gap), 2 * spread / std::sqrt(kSeeds)) << name << ", spread " << spread;
  }
}

}  // namespace
}  // namespace gnomon::test

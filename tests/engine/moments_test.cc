// Runs whose moments are stored in BF16 and FP8: memory, checkpoints, exact replay and the loss.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/errors.h"
#include "storage/safetensors.h"
#include "tests/engine/engine_fixture.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/parameters.h"

namespace gnomon::test {
namespace {

using Formats = std::pair<MomentFormat, MomentFormat>;
constexpr MomentFormat kFp32 = MomentFormat::kFp32, kBf16 = MomentFormat::kBf16,
                       kFp8 = MomentFormat::kFp8;

PrecisionPlan with_moments(Formats formats, const PrecisionPlan& plan = {}) {
  return plan.with_run({.first_moment = moment_format_name(formats.first),
                        .second_moment = moment_format_name(formats.second)});
}

EngineConfig with_room(EngineConfig config, MomentFormat widest) {
  config.memory.moments = widest;
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
  std::unique_ptr<Engine> start() {
    auto engine = std::make_unique<Engine>(config);
    engine->set_plan(with_moments(GetParam()));
    engine->initialize();
    return engine;
  }
  EngineConfig config = small_engine(directory.path());
};

TEST_P(MomentRuns, ARestartFromACheckpointGivesTheSameBits) {
  const auto engine = start();
  std::vector<uint64_t> first = train_hashes(*engine, 12);
  std::filesystem::path checkpoint = write_checkpoint(*engine, directory.path() / "checkpoints");
  std::vector<uint64_t> expected = train_hashes(*engine, 8);
  Engine other(read_engine_config(checkpoint));
  other.load(checkpoint);
  EXPECT_EQ(train_hashes(other, 8), expected);
  engine->initialize();
  EXPECT_EQ(train_hashes(*engine, 12), first);
}

TEST_P(MomentRuns, TheCheckpointHoldsWhatIsStored) {
  const auto engine = start();
  train_hashes(*engine, 2);
  std::filesystem::path checkpoint = write_checkpoint(*engine, directory.path() / "checkpoints");
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

// A checkpoint of one plan, and the plan of another form taken there: by the run, by a replay, and
// by an engine that loads it under its own plan.
TEST_P(MomentRuns, AChangeOfPlanIsExactWhoeverMakesIt) {
  const auto engine = start();
  train_hashes(*engine, 6);
  const auto checkpoint = write_checkpoint(*engine, directory.path() / "checkpoints");
  for (Formats formats : {Formats{kFp32, kFp32}, Formats{kFp8, kFp8}, Formats{kBf16, kFp8}}) {
    const PrecisionPlan other = with_moments(formats, PrecisionPlan::fp8());
    engine->load(checkpoint);
    engine->set_plan(other);
    const std::vector<uint64_t> expected = train_hashes(*engine, 4);
    Engine replay(config, EngineRole::kReplay);
    replay.load(checkpoint);
    replay.set_plan(other);
    EXPECT_EQ(train_hashes(replay, 4), expected);
    Engine own(config);
    own.set_plan(other);
    own.load(checkpoint, false);
    EXPECT_EQ(train_hashes(own, 4), expected);
    // And what was changed goes on from a checkpoint.
    const auto later = write_checkpoint(*engine, directory.path() / "later");
    const std::vector<uint64_t> behind = train_hashes(*engine, 2);
    replay.load(later);
    EXPECT_EQ(train_hashes(replay, 2), behind);
  }
}

// What a checkpoint's moments of one parameter stand for.
std::vector<float> moments_of(const std::filesystem::path& checkpoint, const std::string& name,
                              MomentFormat format, const ModelConfig& model) {
  const SafetensorsFile file(checkpoint / "optimizer.safetensors");
  const ParameterLayout layout(model);
  const Parameter& weight = layout.weight_of("model.layers.0.mlp.down_proj");
  const void* data = file.find(name + "." + weight.name)->data;
  const Format codes = name == "exp_avg" ? Format::kE4m3 : Format::kE5m2;
  std::vector<float> values;
  for (int64_t i = 0; i < weight.size; ++i) {
    if (format == kFp32) values.push_back(static_cast<const float*>(data)[i]);
    if (format == kBf16) values.push_back(to_float(static_cast<const bf16*>(data)[i]));
    if (format != kFp8) continue;
    const auto* scales = static_cast<const float*>(file.find(name + "_scales")->data);
    values.push_back(decode(codes, static_cast<const uint8_t*>(data)[i]) *
                     scales[(weight.offset + i) / kMomentBlock]);
  }
  return values;
}

TEST_P(MomentRuns, TheChangeToFp32LosesNothing) {
  const auto engine = start();
  train_hashes(*engine, 3);
  const auto before = write_checkpoint(*engine, directory.path() / "before");
  engine->set_plan(PrecisionPlan::bf16());
  const auto after = write_checkpoint(*engine, directory.path() / "after");
  for (const auto& [name, format] :
       {std::pair{"exp_avg", GetParam().first}, std::pair{"exp_avg_sq", GetParam().second}}) {
    const std::vector<float> values = moments_of(before, name, format, config.model);
    EXPECT_EQ(moments_of(after, name, kFp32, config.model), values) << name;
    EXPECT_GT(std::ranges::max(values), 0) << name;
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

TEST(MomentMemory, IsThatOfTheWidestFormatAskedFor) {
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  int64_t fp32 = optimizer_bytes(Engine(config));
  int64_t bf16 = optimizer_bytes(Engine(with_room(config, kBf16)));
  int64_t fp8 = optimizer_bytes(Engine(with_room(config, kFp8)));
  EXPECT_NEAR(static_cast<double>(bf16) / static_cast<double>(fp32), 8.0 / 12, 0.01);
  EXPECT_NEAR(static_cast<double>(fp8) / static_cast<double>(fp32), (6 + 8.0 / 128) / 12, 0.01);
}

TEST(MomentMemory, APlanThatItHasNoRoomForIsRefusedAndChangesNothing) {
  TemporaryDirectory directory;
  const EngineConfig config = with_room(small_engine(directory.path()), kFp8);
  Engine engine(config), untouched(config);
  for (Engine* it : {&engine, &untouched}) {
    it->set_plan(with_moments({kFp8, kFp8}));
    it->initialize();
    train_hashes(*it, 3);
  }
  try {
    engine.set_plan(with_moments({kFp8, kBf16}, PrecisionPlan::fp8()));
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.file() + "." + error.key(), "memory.moments");
    EXPECT_EQ(error.value(), "fp8");
    EXPECT_NE(error.accepted().find("\"bf16\" for a plan with moments in bf16"), std::string::npos)
        << error.accepted();
  }
  EXPECT_EQ(train_hashes(engine, 3), train_hashes(untouched, 3));
  EXPECT_THROW(engine.set_plan(PrecisionPlan::bf16()), ConfigError);
  Engine wide(small_engine(directory.path() / "wide"));
  wide.initialize();
  const auto checkpoint = write_checkpoint(wide, directory.path() / "checkpoints");
  EXPECT_THROW(engine.load(checkpoint), ConfigError);
}

// What the new form cannot say is lost once; what it can is not.
TEST(MomentValues, GoThroughAChangeOfFormat) {
  constexpr int64_t kCount = 300;
  std::vector<float> values(kCount), back(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    values[static_cast<size_t>(i)] =
        i % 7 == 0 ? 0.0f : std::exp2(static_cast<float>(i % 19) - 12.0f) * 1.3f;
  }
  for (Moment moment : {Moment::kFirst, Moment::kSecond}) {
    for (MomentFormat format : {kFp32, kBf16, kFp8}) {
      std::vector<std::byte> room(static_cast<size_t>(moment_bytes_needed(format, kCount)));
      const MomentSpan stored = moments_in(room, format, kCount);
      encode_moments(values, moment, 5, 9, 256, stored);
      decode_moments(stored, moment, back);
      const double step = format == kFp32 ? 0 : format == kBf16 ? 0x1p-7 : 0.25;
      for (int64_t i = 0; i < kCount; ++i) {
        const double value = static_cast<double>(values[static_cast<size_t>(i)]);
        const double stood = static_cast<double>(back[static_cast<size_t>(i)]);
        EXPECT_NEAR(stood, value, step * value + (moment == Moment::kFirst ? 1e-3 : 0)) << i;
        if (moment == Moment::kSecond) {
          EXPECT_EQ(stood == 0, value == 0) << i;
        }
      }
      std::vector<std::byte> again(room.size());
      encode_moments(back, moment, 6, 9, 256, moments_in(again, format, kCount));
      std::vector<float> twice(kCount);
      decode_moments(moments_in(again, format, kCount), moment, twice);
      EXPECT_EQ(twice, back);
    }
  }
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
      EngineConfig run = config;
      run.seed = seed;
      Engine engine(run);
      engine.set_plan(with_moments(formats));
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

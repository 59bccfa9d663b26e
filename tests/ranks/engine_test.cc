// One engine on all ranks against one engine in this process.
#include "trainer/engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/errors.h"
#include "base/files.h"
#include "tests/engine/engine_fixture.h"
#include "tests/ranks/ranks.h"
#include "trainer/engine/parameters.h"

namespace gnomon::test {
namespace {

struct Case {
  std::string name;
  std::string plan = "bf16";
  MomentFormat moments = MomentFormat::kFp32;
  std::string gradient_wire = "full";
  std::string weight_wire = "full";
  OptimizerKind optimizer = OptimizerKind::kAdamw;
  bool has_second_moment() const { return optimizer_row(optimizer).has(Moment::kSecond); }
  bool qk_norm = false;
};

PrecisionPlan gemms_of(const std::string& name) {
  if (name == "bf16") return PrecisionPlan::bf16();
  if (name == "current") return PrecisionPlan::fp8(Recipe::kCurrent);
  return PrecisionPlan::parse(
      "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"delayed\"\namax_history = 3\n");
}

PrecisionPlan plan_of(const Case& of) {
  const std::string moments = moment_format_name(of.moments);
  return gemms_of(of.plan).with_run(
      {moments, of.has_second_moment() ? moments : "fp32", of.gradient_wire, of.weight_wire});
}

class RankEngines : public testing::TestWithParam<Case> {
 protected:
  RankEngines() {
    config.batch.accumulation = 4;
    config.optimizer.name = GetParam().optimizer;
    if (config.optimizer.name == OptimizerKind::kLion) config.optimizer.learning_rate = 3e-4;
    config.model.qk_norm = GetParam().qk_norm;
  }
  std::unique_ptr<Engine> start(EngineRanks* with) {
    auto engine = std::make_unique<Engine>(config, EngineRole::kLive, with);
    engine->set_plan(plan_of(GetParam()));
    engine->initialize();
    return engine;
  }
  static std::vector<double> losses(Engine& engine, int steps) {
    std::vector<double> all;
    for (int i = 0; i < steps; ++i) all.push_back(engine.train_step().loss);
    return all;
  }

  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
};

TEST_P(RankEngines, RepeatBitForBit) {
  std::unique_ptr<Engine> engine = start(&ranks());
  EXPECT_EQ(engine->fingerprint().world_size, collectives().size());
  std::vector<uint64_t> first = train_hashes(*engine, 8);
  std::unique_ptr<Engine> other = start(&ranks());
  EXPECT_EQ(train_hashes(*other, 8), first);
  EXPECT_NE(first.front(), first.back());
}

TEST_P(RankEngines, ARestartMidwayGivesTheSameBits) {
  std::unique_ptr<Engine> engine = start(&ranks());
  train_hashes(*engine, 6);
  std::filesystem::path checkpoint = write_checkpoint(*engine, directory.path() / "checkpoints");
  double heldout = engine->evaluate(engine->plan());
  std::vector<uint64_t> expected = train_hashes(*engine, 6);
  Engine other(read_engine_config(checkpoint), EngineRole::kReplay, &ranks());
  other.load(checkpoint);
  EXPECT_EQ(other.evaluate(other.plan()), heldout);
  EXPECT_EQ(train_hashes(other, 6), expected);
}

// The same batches, micro-batch by micro-batch; only the order of the gradient's sum differs.
TEST_P(RankEngines, LossesAreThoseOfOneProcessToRounding) {
  std::vector<double> together = losses(*start(&ranks()), 10);
  std::vector<double> alone = losses(*start(nullptr), 10);
  EXPECT_EQ(together[0], alone[0]);
  bool compressed = GetParam().gradient_wire != "full" || GetParam().weight_wire != "full";
  for (size_t i = 0; i < alone.size(); ++i) {
    EXPECT_NEAR(together[i], alone[i], (compressed ? 2e-2 : 5e-3) * alone[i]) << i;
  }
}

// Weights are cast on every rank, each micro-batch on one: the shares are those of one process.
TEST_P(RankEngines, CastsOfTheFirstStepAreThoseOfOneProcess) {
  const std::optional<CastSummary> together = start(&ranks())->train_step().casts;
  EXPECT_EQ(together, start(nullptr)->train_step().casts);
  EXPECT_EQ(together.has_value(), GetParam().plan != "bf16");
}

TEST_P(RankEngines, ACheckpointOfAllRanksLoadsInOneProcessAndTheOtherWayRound) {
  for (bool from_many : {true, false}) {
    std::unique_ptr<Engine> writer = start(from_many ? &ranks() : nullptr);
    train_hashes(*writer, 4);
    std::filesystem::path checkpoint =
        write_checkpoint(*writer, directory.path() / (from_many ? "from_many" : "from_one"));
    Engine reader(config, EngineRole::kLive, from_many ? nullptr : &ranks());
    reader.load(checkpoint);
    EXPECT_EQ(reader.step(), 4);
    EXPECT_EQ(reader.weights_hash(), writer->weights_hash());
    EXPECT_EQ(reader.evaluate(PrecisionPlan::bf16()), writer->evaluate(PrecisionPlan::bf16()));
    // And so are masters and moments: written again they are the same file.
    std::filesystem::path again =
        write_checkpoint(reader, directory.path() / (from_many ? "again_one" : "again_many"));
    EXPECT_EQ(verify_checkpoint(again).manifest_hash, verify_checkpoint(checkpoint).manifest_hash);
    double next = reader.train_step().loss;
    EXPECT_NEAR(next, writer->train_step().loss, 1e-9);
  }
}

TEST_P(RankEngines, GradientsComputedTwiceHaveTheBitsOfOnce) {
  const std::vector<uint64_t> once = train_hashes(*start(&ranks()), 4);
  std::unique_ptr<Engine> engine = start(&ranks());
  for (const uint64_t expected : once) {
    const StepResult result = engine->train_step(nullptr, true);
    EXPECT_EQ(result.weights_hash, expected) << result.step;
    EXPECT_EQ(result.mismatch, "");
  }
}

// Queries and keys overflow in steps 1 and 4, on every rank: they are no updates on any.
TEST_P(RankEngines, ASkippedStepIsNoUpdateAndReplaysToTheSameBits) {
  config.model.qk_norm = false;  // heads that are normed do not overflow
  for (const int64_t step : {1, 4}) {
    for (const char* site :
         {"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"}) {
      Fault& fault = config.faults.emplace_back();
      fault.kind = FaultKind::kStuckBit;
      fault.site = site;
      fault.tensor = "output";
      fault.element = 1;
      fault.bit = 14;
      fault.start_step = step;
      fault.end_step = step + 1;
    }
  }
  config.optimizer.warmup_steps = 0;
  std::unique_ptr<Engine> engine = start(&ranks());
  EXPECT_FALSE(engine->train_step().finite);
  EXPECT_TRUE(engine->train_step().finite);
  const std::filesystem::path checkpoint =
      write_checkpoint(*engine, directory.path() / "checkpoints");
  EXPECT_NE(read_file(checkpoint / "trainer_state.json").find("\"updates\":1,"), std::string::npos);
  const std::vector<uint64_t> expected = train_hashes(*engine, 4);
  Engine other(config, EngineRole::kLive, &ranks());
  other.load(checkpoint);
  EXPECT_EQ(train_hashes(other, 4), expected);
}

// Moments and communication of other forms, taken by the run and by a replay from its checkpoint.
TEST_P(RankEngines, AChangeOfPlanIsExactWhoeverMakesIt) {
  std::unique_ptr<Engine> engine = start(&ranks());
  train_hashes(*engine, 3);
  const auto checkpoint = write_checkpoint(*engine, directory.path() / "checkpoints");
  const PrecisionPlan other = gemms_of("current").with_run(
      {"fp8", GetParam().has_second_moment() ? "bf16" : "fp32", "e4m3", "e5m2:tensor"});
  for (const PrecisionPlan& plan : {other, PrecisionPlan::bf16()}) {
    engine->load(checkpoint);
    engine->set_plan(plan);
    const std::vector<uint64_t> expected = train_hashes(*engine, 3);
    Engine replay(config, EngineRole::kReplay, &ranks());
    replay.load(checkpoint);
    replay.set_plan(plan);
    EXPECT_EQ(train_hashes(replay, 3), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, RankEngines,
    testing::Values(Case{"bf16"}, Case{"current", "current"}, Case{"delayed", "delayed"},
                    Case{"fp8_moments", "bf16", MomentFormat::kFp8},
                    Case{"bf16_moments", "current", MomentFormat::kBf16},
                    Case{.name = "lion", .optimizer = OptimizerKind::kLion},
                    Case{.name = "lion_fp8_moment",
                         .plan = "current",
                         .moments = MomentFormat::kFp8,
                         .optimizer = OptimizerKind::kLion},
                    Case{"wires_by_block", "bf16", MomentFormat::kFp32, "e5m2", "e4m3"},
                    Case{"wires_by_tensor", "bf16", MomentFormat::kFp32, "e4m3:tensor",
                         "e4m3:tensor"},
                    Case{.name = "norm_of_heads", .plan = "current", .qk_norm = true}),
    [](const auto& instance) { return instance.param.name; });

class WireFault : public testing::Test {
 protected:
  std::vector<uint64_t> run(bool faulty, const std::string& gradients, EngineRanks* with) {
    EngineConfig own = config;
    // E5M2 reaches further down.
    const int log2_factor = gradients.starts_with("e5m2") ? 26 : 14;
    if (faulty) {
      own.faults = {
          {.kind = FaultKind::kWireScaleShift, .start_step = 3, .log2_factor = log2_factor}};
    }
    Engine engine(own, EngineRole::kLive, with);
    engine.set_plan(PrecisionPlan().with_run({.gradients = gradients}));
    engine.initialize();
    return train_hashes(engine, 5);
  }
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
};

TEST_F(WireFault, ActsWhereGradientsAreSentInFp8AndNowhereElse) {
  config.batch.accumulation = 4;
  for (const char* gradients : {"e4m3", "e5m2:tensor"}) {
    const std::vector<uint64_t> healthy = run(false, gradients, &ranks());
    const std::vector<uint64_t> faulty = run(true, gradients, &ranks());
    const auto differ = std::ranges::mismatch(healthy, faulty);
    EXPECT_EQ(differ.in1 - healthy.begin() + 1, 3) << gradients;
    EXPECT_EQ(run(true, gradients, &ranks()), faulty) << gradients;
    EXPECT_EQ(run(true, gradients, nullptr), run(false, gradients, nullptr)) << gradients;
  }
  EXPECT_EQ(run(true, "full", &ranks()), run(false, "full", &ranks()));
}

// The yardstick is what another seed does to a run in which nothing is compressed: a format passes
// when its mean distance over the seeds is within two standard errors of that spread, as for
// moments (tests/engine/moments_test.cc).
TEST(CommunicationLoss, EveryFormatEndsWhereUncompressedRanksEnd) {
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  config.optimizer.learning_rate = 5e-3;
  config.optimizer.total_steps = 200;
  config.optimizer.warmup_steps = 20;
  constexpr int kSeeds = 4;
  auto losses = [&](const std::string& gradients, const std::string& weights) {
    std::vector<double> ends;
    for (int seed = 1; seed <= kSeeds; ++seed) {
      EngineConfig run = config;
      run.seed = seed;
      Engine engine(run, EngineRole::kReplay, &ranks());
      engine.set_plan(PrecisionPlan().with_run({.gradients = gradients, .weights = weights}));
      engine.initialize();
      double last = 0;
      for (int step = 1; step <= 200; ++step) {
        double loss = engine.train_step().loss;
        if (step > 160) last += loss / 40;
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
  std::vector<double> full = losses("full", "full");
  double mean = mean_of(full), squares = 0;
  for (double loss : full) squares += (loss - mean) * (loss - mean);
  double spread = std::sqrt(squares / (kSeeds - 1));
  EXPECT_LT(mean, 4.0);  // it learns: ln 64 is 4.16
  struct Wires {
    const char *gradients, *weights;
  };
  for (const Wires& it :
       {Wires{"e4m3", "full"}, Wires{"e5m2", "full"}, Wires{"e4m3:tensor", "full"},
        Wires{"e5m2:tensor", "full"}, Wires{"full", "e4m3"}, Wires{"full", "e4m3:tensor"},
        Wires{"e5m2", "e4m3"}}) {
    double gap = mean_of(losses(it.gradients, it.weights)) - mean;
    RecordProperty(std::string(it.gradients) + "_" + it.weights + "_gap_nats", std::to_string(gap));
    EXPECT_LT(std::abs(gap), 2 * spread / std::sqrt(kSeeds))
        << "gradients " << it.gradients << ", weights " << it.weights << ", spread " << spread;
  }
}

class RanksOnly : public testing::Test {
 protected:
  RanksOnly() { config.batch.accumulation = 4; }
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
};

TEST_F(RanksOnly, EachOwnsAPartOfMastersAndMoments) {
  auto bytes = [](const Engine& engine) {
    for (const ArenaSize& arena : engine.arenas()) {
      if (arena.name == "optimizer") return static_cast<double>(arena.bytes);
    }
    return 0.0;
  };
  Engine alone(config);
  Engine together(config, EngineRole::kReplay, &ranks());
  EXPECT_NEAR(bytes(together) * collectives().size() / bytes(alone), 1.0, 0.05);
}

TEST_F(RanksOnly, MicroBatchesThatCannotBeSharedAreRefusedOnAll) {
  config.batch.accumulation = 2 * collectives().size() + 1;
  try {
    Engine engine(config, EngineRole::kLive, &ranks());
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("accumulation"), std::string::npos) << error.what();
  }
  config.batch.accumulation = collectives().size();
  Engine engine(config, EngineRole::kLive, &ranks());
  engine.initialize();
  EXPECT_TRUE(engine.train_step().finite);
}

TEST_F(RanksOnly, AnAnalysisBySiteIsRefusedAndDisturbsNoRank) {
  Engine engine(config, EngineRole::kReplay, &ranks());
  const PrecisionPlan plan = PrecisionPlan::fp8(Recipe::kCurrent);
  engine.set_plan(plan);
  engine.initialize();
  try {
    engine.scores(plan, 1);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("one rank"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(engine.train_step().finite);
}

TEST_F(RanksOnly, ACheckpointThatCannotBeReadLeavesEveryRankAsItWas) {
  Engine engine(config, EngineRole::kLive, &ranks());
  engine.initialize();
  std::vector<uint64_t> first = train_hashes(engine, 3);
  EXPECT_THROW(engine.load(directory.path() / "nowhere"), Error);
  EXPECT_EQ(engine.step(), 3);
  std::vector<uint64_t> rest = train_hashes(engine, 3);
  Engine other(config, EngineRole::kLive, &ranks());
  other.initialize();
  train_hashes(other, 3);
  EXPECT_EQ(train_hashes(other, 3), rest);
}

TEST_F(RanksOnly, ABitFlipReachesEveryRanksWeights) {
  Fault fault;
  fault.kind = FaultKind::kBitFlip;
  fault.site = "model.norm.weight";  // the last elements: the last rank's
  fault.start_step = 2;
  fault.end_step = 2;
  fault.element = 3;
  fault.bit = 28;
  config.faults = {fault};
  Engine together(config, EngineRole::kLive, &ranks());
  together.initialize();
  std::vector<uint64_t> with = train_hashes(together, 3);
  config.faults.clear();
  Engine healthy(config, EngineRole::kLive, &ranks());
  healthy.initialize();
  std::vector<uint64_t> without = train_hashes(healthy, 3);
  EXPECT_EQ(with[0], without[0]);
  EXPECT_NE(with[1], without[1]);
}

// One rank's gradient is wrong, and so the sums of all: that rank is named and no other.
TEST_F(RanksOnly, AFlippedGradientIsFoundOnItsRankAndLeavesNothing) {
  const auto run = [&](bool twice, std::vector<std::string>& differences) {
    Engine engine(config, EngineRole::kLive, &ranks());
    engine.initialize();
    std::vector<uint64_t> hashes;
    while (engine.step() < 4) {
      const StepResult result = engine.train_step(nullptr, twice);
      differences.push_back(result.mismatch);
      if (!result.committed) break;
      hashes.push_back(result.weights_hash);
    }
    return hashes;
  };
  std::vector<std::string> none, found;
  const std::vector<uint64_t> healthy = run(false, none);
  Fault flip{.kind = FaultKind::kBitFlip,
             .site = "model.norm.weight",  // the last elements: the last rank's
             .tensor = "gradient",
             .start_step = 3,
             .element = 3,
             .bit = 30};  // large enough for its update to show in BF16
  config.faults = {flip};
  EXPECT_NE(run(false, none), healthy);
  EXPECT_EQ(run(true, found), healthy);
  const std::string rank = "rank " + std::to_string(collectives().size() - 1) + " of " +
                           std::to_string(collectives().size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].starts_with(rank), i == 2) << found[i];
    EXPECT_EQ(found[i].empty(), i != 2) << found[i];
  }
  flip.bit = 27;
  config.faults.push_back(flip);
  found.clear();
  EXPECT_EQ(run(true, found).size(), 2u) << "three results";
  EXPECT_NE(found.back().find("with neither"), std::string::npos) << found.back();
}

TEST_F(RanksOnly, FaultsOfTheOptimizersStateAreThoseOfOneProcess) {
  const std::string down = "model.layers.1.mlp.down_proj";
  config.faults = {{.kind = FaultKind::kFp8SecondMoment,
                    .site = "*",
                    .start_step = 2,
                    .log2_factor = -14,
                    .format = "e4m3"},
                   {.kind = FaultKind::kStaleWeight, .site = down, .start_step = 2},
                   {.kind = FaultKind::kStuckBit,
                    .site = "lm_head",
                    .tensor = "weight",
                    .start_step = 2,
                    .element = 5,
                    .bit = 31},
                   {.kind = FaultKind::kSkippedBatch, .start_step = 2, .steps = 1}};
  Engine together(config, EngineRole::kLive, &ranks());
  together.initialize();
  together.set_plan(PrecisionPlan::fp8().with_run({.second_moment = "fp8"}));
  train_hashes(together, 3);
  const auto checkpoint = write_checkpoint(together, directory.path() / "checkpoints");
  const std::vector<uint64_t> expected = train_hashes(together, 3);
  Engine again(config, EngineRole::kLive, &ranks());
  again.load(checkpoint);
  EXPECT_EQ(train_hashes(again, 3), expected);
  // One scale for the whole tensor, whichever rank has its largest moment: what is under half of
  // the smallest step of E4M3 with it is lost on every rank, and nothing else is.
  if (collectives().rank() != 0) return;
  const SafetensorsFile file(checkpoint / "optimizer.safetensors");
  const auto* scales = static_cast<const float*>(file.find("exp_avg_sq_scales")->data);
  const ParameterLayout layout(config.model);
  for (const std::string& site : config.model.sites()) {
    const Parameter& weight = layout.weight_of(site);
    const auto* codes = static_cast<const uint8_t*>(file.find("exp_avg_sq." + weight.name)->data);
    std::vector<float> values;
    for (int64_t i = 0; i < weight.size; ++i) {
      values.push_back(decode(Format::kE5m2, codes[i]) *
                       scales[(weight.offset + i) / kMomentBlock]);
    }
    const float lost = std::ranges::max(values) / 448 * 0x1p14f * 0x1p-10f;
    EXPECT_GT(std::ranges::count(values, 0.0f), weight.size / 10) << site;
    for (float value : values) ASSERT_TRUE(value == 0 || value > 0.8f * lost) << site << value;
  }
}

TEST_F(RanksOnly, ArmsAreTheSameOnEveryRank) {
  Engine writer(config, EngineRole::kLive, &ranks());
  writer.set_plan(PrecisionPlan::fp8());
  writer.initialize();
  train_hashes(writer, 2);
  const auto checkpoint = write_checkpoint(writer, directory.path() / "checkpoints");
  Engine together(config, EngineRole::kReplay, &ranks());
  Engine alone(config, EngineRole::kReplay);
  for (Engine* engine : {&together, &alone}) {
    engine->load(checkpoint);
    engine->set_mode({.role = EngineRole::kReplay, .fakequant = true, .order_seed = 7});
    engine->perturb(11, 0x1p-9);
  }
  EXPECT_EQ(together.weights_hash(), alone.weights_hash());
  EXPECT_NE(together.weights_hash(), writer.weights_hash());
  // Another order than the data's: the same loss only if every rank reads in it.
  EXPECT_NEAR(together.train_step().loss, alone.train_step().loss, 1e-12);
}

TEST_F(RanksOnly, PlansChangeOnEveryRank) {
  auto run = [&] {
    Engine engine(config, EngineRole::kLive, &ranks());
    engine.initialize();
    std::vector<uint64_t> hashes = train_hashes(engine, 2);
    engine.set_plan(PrecisionPlan::fp8(Recipe::kDelayed));
    for (uint64_t hash : train_hashes(engine, 3)) hashes.push_back(hash);
    engine.set_plan(PrecisionPlan::bf16());
    for (uint64_t hash : train_hashes(engine, 2)) hashes.push_back(hash);
    return hashes;
  };
  EXPECT_EQ(run(), run());
}

}  // namespace
}  // namespace gnomon::test

// Faults act where they should and nowhere else.
#include "trainer/engine/faults.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/philox.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/recording_backend.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/linear.h"

namespace gnomon::test {
namespace {

const char* const kDelayedByFour = R"(
[[rule]]
match = "*"
gemms = "fp8"
recipe = "delayed"
amax_history = 4
)";

class FaultTest : public testing::Test {
 protected:
  FaultTest() : config(small_engine(directory.path())) {}

  std::vector<uint64_t> run(const std::vector<Fault>& faults, const PrecisionPlan& plan,
                            int steps = 10, EngineRole role = EngineRole::kLive) {
    EngineConfig with = config;
    with.faults = faults;
    Engine engine(with, role);
    engine.set_plan(plan);
    engine.initialize();
    return train_hashes(engine, steps);
  }
  // The first step (1, 2, ...) whose weights differ; 0 when none does.
  static int64_t first_difference(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i] != b[i]) return static_cast<int64_t>(i) + 1;
    }
    return 0;
  }

  TemporaryDirectory directory;
  EngineConfig config;
  PrecisionPlan bf16 = PrecisionPlan::bf16();
  PrecisionPlan delayed = PrecisionPlan::parse(kDelayedByFour);
  PrecisionPlan current = PrecisionPlan::fp8(Recipe::kCurrent);
  Fault shift{.kind = FaultKind::kScaleShift,
              .site = "model.layers.1.mlp.down_proj",
              .tensor = "input",
              .start_step = 4,
              .log2_factor = 6};
  Fault frozen{.kind = FaultKind::kFrozenAmax,
               .site = "model.layers.0.mlp.up_proj",
               .tensor = "weight",
               .start_step = 3};
};

TEST_F(FaultTest, AScaleShiftIsFeltByFp8FromItsFirstStep) {
  for (const PrecisionPlan* plan : {&current, &delayed}) {
    for (const char* tensor : {"input", "weight", "gradient"}) {
      shift.tensor = tensor;
      EXPECT_EQ(first_difference(run({}, *plan), run({shift}, *plan)), 4) << tensor;
    }
  }
}

TEST_F(FaultTest, AScaleShiftIsFeltByEveryRecipeWithTiles) {
  const PrecisionPlan block = PrecisionPlan::fp8(Recipe::kBlock);
  const PrecisionPlan rowwise = PrecisionPlan::fp8(Recipe::kRowwise);
  const PrecisionPlan hopper = PrecisionPlan::parse(
      "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"block\"\naccumulate = \"hopper\"\n");
  for (const PrecisionPlan* plan : {&block, &rowwise, &hopper}) {
    for (const char* tensor : {"input", "weight", "gradient"}) {
      shift.tensor = tensor;
      EXPECT_EQ(first_difference(run({}, *plan), run({shift}, *plan)), 4) << tensor;
    }
    EXPECT_EQ(run({frozen}, *plan), run({}, *plan));
  }
}

TEST_F(FaultTest, AScaleShiftIsNotFeltInBf16) {
  EXPECT_EQ(run({shift, frozen}, bf16), run({}, bf16));
  PrecisionPlan pinned = current.with_bf16_sites({shift.site});
  EXPECT_EQ(run({shift}, pinned), run({}, pinned));
}

TEST_F(FaultTest, AScaleShiftSaturatesRatherThanScales) {
  // Were the product merely multiplied by 2^n and back, the loss would not move at all.
  auto loss = [&](int log2_factor) {
    EngineConfig with = config;
    Fault fault = shift;
    fault.start_step = 1;
    fault.log2_factor = log2_factor;
    if (log2_factor != 0) with.faults = {fault};
    Engine engine(with);
    engine.set_plan(current);
    engine.initialize();
    double sum = 0;
    for (int i = 0; i < 30; ++i) sum = engine.train_step().loss;
    return sum;
  };
  double healthy = loss(0);
  EXPECT_NEAR(loss(1), healthy, 0.1 * healthy);  // a factor of 2 costs a bit of range
  EXPECT_TRUE(std::isfinite(loss(12)));
  EXPECT_NE(loss(12), healthy);
}

TEST_F(FaultTest, AFaultEndsAtItsEndStep) {
  EngineConfig with = config;
  shift.start_step = 1;
  shift.end_step = 4;
  with.faults = {shift};
  Engine faulty(with);
  faulty.set_plan(current);
  faulty.initialize();
  train_hashes(faulty, 3);
  std::filesystem::path checkpoint = write_checkpoint(faulty, directory.path() / "checkpoints");
  Engine healthy(config);
  healthy.load(checkpoint);
  EXPECT_EQ(train_hashes(faulty, 4), train_hashes(healthy, 4));
}

TEST_F(FaultTest, AFrozenHistoryIsFeltOnlyByDelayedScaling) {
  EXPECT_EQ(run({frozen}, current), run({}, current));
  EXPECT_EQ(run({frozen}, bf16), run({}, bf16));
  // The weights grow while the learning rate warms up. Frozen in step 3, felt from step 4 on.
  int64_t felt = first_difference(run({}, delayed, 20), run({frozen}, delayed, 20));
  EXPECT_GE(felt, 4);
}

// Activations that grow by a quarter each step, as in a run that becomes unstable. Returns the
// share of them beyond FP8's largest value in the last of 16 steps.
double saturated_share(const char* recipe, bool frozen) {
  constexpr int kSteps = 16;
  constexpr double kGrowth = 1.25;
  constexpr int64_t kRows = 32, kWidth = 64;
  const std::string site = "model.layers.0.mlp.down_proj";
  std::vector<Fault> faults;
  if (frozen) {
    faults = {{.kind = FaultKind::kFrozenAmax, .site = site, .tensor = "input", .start_step = 2}};
  }
  RecordingBackend backend(1);
  ScalingState scaling(1);
  const FaultView view(faults, {site}, 1);
  LinearLayers linears(backend, &view, scaling);
  PrecisionPlan plan = PrecisionPlan::parse(
      std::string("[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\namax_history = 4\nmargin = 1\n") +
      "recipe = \"" + recipe + "\"\n");
  std::vector<SitePrecision> sites = {plan.resolve(site, 1)};
  std::vector<bf16> x(kRows * kWidth), w(kWidth * kWidth), y(kRows * kWidth);
  OwnOperand<bf16> input(host_memory()), own_weight(host_memory());
  std::ranges::fill(w, to_bf16(0.01f));
  double share = 0;
  for (int step = 1; step <= kSteps; ++step) {
    for (size_t i = 0; i < x.size(); ++i) {
      float uniform = philox_uniform(philox(5, 0, i)[0]) - 0.5f;
      x[i] = to_bf16(uniform * static_cast<float>(std::pow(kGrowth, step)));
    }
    backend.clear();
    linears.begin({.sites = &sites, .step = step, .record = true});
    linears.fprop({.in = kWidth, .out = {kWidth}}, input.of(x), std::span(&own_weight.of(w), 1),
                  kRows, y.data());
    linears.report_observed();
    scaling.finish_step(sites,
                        [&](int at, TensorRole role) { return view.frozen(at, role, step); });
    const QuantisedTensor& quantised = *std::ranges::find_if(
        backend.quantised(),
        [&](const QuantisedTensor& it) { return it.source.size() == x.size(); });
    share = static_cast<double>(std::ranges::count_if(
                quantised.source,
                [&](double value) { return std::abs(value * quantised.scale) > 450; })) /
            static_cast<double>(x.size());
  }
  return share;
}

TEST(FrozenAmax, SaturatesActivationsThatGrow) {
  EXPECT_EQ(saturated_share("delayed", false), 0);  // the margin covers a step's growth
  EXPECT_GT(saturated_share("delayed", true), 0.8);
  EXPECT_EQ(saturated_share("current", true), 0);
}

TEST_F(FaultTest, ACorruptBatchIsFeltByEveryPrecisionAndByReplays) {
  Fault corrupt{.kind = FaultKind::kCorruptBatch, .start_step = 5, .end_step = 6};
  for (const PrecisionPlan* plan : {&bf16, &current}) {
    std::vector<uint64_t> faulty = run({corrupt}, *plan);
    EXPECT_EQ(first_difference(run({}, *plan), faulty), 5);
    EXPECT_EQ(run({corrupt}, *plan, 10, EngineRole::kReplay), faulty);
  }
}

TEST_F(FaultTest, ABitFlipStrikesTheLiveTrainerOnly) {
  Fault flip{.kind = FaultKind::kBitFlip,
             .site = "model.layers.0.self_attn.v_proj.weight",
             .start_step = 4,
             .element = 17,
             .bit = 30};
  for (const PrecisionPlan* plan : {&bf16, &current}) {
    std::vector<uint64_t> healthy = run({}, *plan);
    EXPECT_EQ(first_difference(healthy, run({flip}, *plan)), 4);
    EXPECT_EQ(run({flip}, *plan, 10, EngineRole::kReplay), healthy);
  }
}

TEST_F(FaultTest, ABitFlipStrikesOnceEvenAfterARollback) {
  Fault flip{.kind = FaultKind::kBitFlip,
             .site = "model.norm.weight",
             .start_step = 4,
             .element = 3,
             .bit = 22};
  std::vector<uint64_t> healthy = run({}, bf16, 6);
  EngineConfig with = config;
  with.faults = {flip};
  Engine engine(with);
  engine.initialize();
  train_hashes(engine, 2);
  std::filesystem::path checkpoint = write_checkpoint(engine, directory.path() / "checkpoints");
  std::vector<uint64_t> struck = train_hashes(engine, 4);
  EXPECT_EQ(struck[0], healthy[2]);
  EXPECT_NE(struck[1], healthy[3]);
  engine.load(checkpoint);
  std::vector<uint64_t> again = train_hashes(engine, 4);
  EXPECT_EQ(again, std::vector<uint64_t>(healthy.begin() + 2, healthy.end()));
}

TEST_F(FaultTest, ABitFlipChangesOneMasterAndItsCopyByThatBit) {
  Fault flip{.kind = FaultKind::kBitFlip,
             .site = "model.norm.weight",
             .start_step = 1,
             .element = 3,
             .bit = 22};
  EngineConfig with = config;
  with.faults = {flip};
  Engine struck(with);
  Engine healthy(config);
  for (Engine* engine : {&struck, &healthy}) {
    engine->initialize();
    engine->train_step();
  }
  CheckpointContent a = struck.checkpoint();
  CheckpointContent b = healthy.checkpoint();
  int64_t masters_changed = 0;
  for (size_t i = 0; i < a.optimizer.size(); ++i) {
    const auto* x = static_cast<const uint32_t*>(a.optimizer[i].data);
    const auto* y = static_cast<const uint32_t*>(b.optimizer[i].data);
    for (int64_t j = 0; j < a.optimizer[i].bytes() / 4; ++j) {
      if (x[j] == y[j]) continue;
      ++masters_changed;
      EXPECT_EQ(a.optimizer[i].name, "master.model.norm.weight");
      EXPECT_EQ(j, 3);
      EXPECT_EQ(x[j] ^ y[j], uint32_t{1} << 22);
    }
  }
  EXPECT_EQ(masters_changed, 1);
  EXPECT_NE(struck.weights_hash(), healthy.weights_hash());
}

TEST_F(FaultTest, AFaultWithoutASiteIsRefused) {
  auto refused = [&](const Fault& fault) {
    EngineConfig with = config;
    with.faults = {fault};
    EXPECT_THROW(Engine{with}, ConfigError) << fault.describe();
  };
  Fault fault = shift;
  fault.site = "model.layers.7.mlp.down_proj";
  refused(fault);
  fault = shift;
  fault.tensor = "output";
  refused(fault);
  refused({.kind = FaultKind::kBitFlip, .site = "model.layers.0.self_attn.v_proj"});
  refused({.kind = FaultKind::kBitFlip, .site = "model.norm.weight", .element = 32});
  refused({.kind = FaultKind::kBitFlip, .site = "model.norm.weight", .bit = 32});
}

TEST(FaultNames, RoundTripAndRefuseOthers) {
  for (FaultKind kind : {FaultKind::kFrozenAmax, FaultKind::kScaleShift, FaultKind::kCorruptBatch,
                         FaultKind::kBitFlip}) {
    EXPECT_EQ(fault_kind_from_name(fault_kind_name(kind)), kind);
    EXPECT_NE(Fault{kind}.describe(), "");
  }
  EXPECT_THROW(fault_kind_from_name("gremlin"), Error);
}

}  // namespace
}  // namespace gnomon::test

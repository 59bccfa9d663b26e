// Every fault of the library acts in its steps, in the arms that its traits name, and nowhere else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "tests/engine/engine_fixture.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/fault_view.h"

namespace gnomon::test {
namespace {

constexpr int64_t kStart = 4, kEnd = 8;
constexpr int kRunSteps = 11;

PrecisionPlan fp8_plan(const std::string& keys) {
  return PrecisionPlan::parse("[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n" + keys);
}

// One of each kind, strong enough to be felt by a model of this size.
Fault sample(FaultKind kind) {
  Fault fault{.kind = kind, .start_step = kStart, .end_step = kEnd};
  const FaultTraits& traits = fault_traits(kind);
  if (traits.place == FaultPlace::kSite || traits.place == FaultPlace::kDownProjection) {
    fault.site = kDown;
  }
  if (traits.place == FaultPlace::kSites) fault.site = "model.layers.1.mlp.*";
  switch (kind) {
    case FaultKind::kFrozenAmax:
      fault.tensor = "weight";
      break;
    case FaultKind::kScaleShift:
      fault.log2_factor = 6;
      break;
    case FaultKind::kOutlierChannel:
      fault.log2_factor = 12;
      fault.element = 5;
      fault.steps = 2;
      break;
    case FaultKind::kGradientUnderflow:
      fault.log2_factor = -6;
      break;
    case FaultKind::kReducedMantissa:
      fault.format = "e2m1";
      break;
    case FaultKind::kCoarseRecipe:
      fault.format = "e3m2";
      fault.log2_factor = -1;
      break;
    case FaultKind::kFp8SecondMoment:
      fault.format = "e4m3";
      fault.log2_factor = -14;
      break;
    case FaultKind::kWrongAccumulation:
      fault.fraction_bits = 3;
      break;
    case FaultKind::kDroppedKBlock:
      fault.element = 8;
      fault.terms = 8;
      break;
    case FaultKind::kBitFlip:
      fault.site = kDown + ".weight";
      fault.end_step = 0;
      fault.element = 17;
      break;
    case FaultKind::kStuckBit:
      fault.tensor = "output";
      fault.element = 3;
      fault.bit = 15;
      break;
    case FaultKind::kLearningRateSpike:
      fault.factor = 10;
      break;
    case FaultKind::kSkippedBatch:
      fault.steps = 1;
      break;
    case FaultKind::kWireScaleShift:
      fault.log2_factor = 16;
      break;
    case FaultKind::kE5m2Everywhere:
    case FaultKind::kStaleWeight:
    case FaultKind::kCorruptBatch:
    case FaultKind::kRepeatedBatch:
      break;
  }
  return fault;
}

std::string name_of(const testing::TestParamInfo<FaultKind>& info) {
  return fault_kind_name(info.param);
}

std::vector<FaultKind> all_kinds() {
  std::vector<FaultKind> kinds;
  for (const FaultTraits& traits : all_faults()) {
    // Nothing travels in one process: tests/ranks/engine_test.cc has it.
    if (traits.kind != FaultKind::kWireScaleShift) kinds.push_back(traits.kind);
  }
  return kinds;
}

std::vector<FaultKind> kinds_of_fp8() {
  std::vector<FaultKind> kinds;
  for (FaultKind kind : all_kinds()) {
    const FaultTraits& traits = fault_traits(kind);
    if (traits.origin == FaultOrigin::kNumerics || traits.origin == FaultOrigin::kKernel) {
      kinds.push_back(traits.kind);
    }
  }
  return kinds;
}

class FaultRuns : public testing::Test {
 protected:
  FaultRuns() : config(small_engine(directory.path())) {}

  EngineConfig with(const std::vector<Fault>& faults) const {
    EngineConfig changed = config;
    changed.faults = faults;
    return changed;
  }
  std::unique_ptr<Engine> start(const std::vector<Fault>& faults, const PrecisionPlan& run) const {
    auto engine = std::make_unique<Engine>(with(faults));
    engine->set_plan(run);
    engine->initialize();
    return engine;
  }
  std::vector<uint64_t> run(const std::vector<Fault>& faults, const PrecisionPlan& run_plan) const {
    return train_hashes(*start(faults, run_plan), kRunSteps);
  }
  std::vector<uint64_t> replay(const std::filesystem::path& checkpoint,
                               const std::vector<Fault>& faults, const std::string& arm, int steps,
                               EngineRole role = EngineRole::kReplay) const {
    Engine engine(with(faults), role);
    engine.load(checkpoint);
    if (arm == "bf16") engine.set_plan(PrecisionPlan::bf16());
    engine.set_mode({.role = role, .fakequant = arm == "fakequant"});
    return train_hashes(engine, steps);
  }
  std::filesystem::path checkpoint_of(const std::vector<Fault>& faults, int64_t step) {
    auto engine = start(faults, plan);
    train_hashes(*engine, static_cast<int>(step));
    return write_checkpoint(*engine, directory.path() / fmt_name("at", step));
  }
  static std::string fmt_name(const std::string& what, int64_t step) {
    return what + "-" + std::to_string(step);
  }
  static std::vector<uint64_t> behind(const std::vector<uint64_t>& hashes, int64_t step) {
    return {hashes.begin() + step, hashes.end()};
  }

  TemporaryDirectory directory;
  EngineConfig config;
  // Histories, so that there is one to freeze.
  PrecisionPlan plan =
      fp8_plan("recipe = \"delayed\"\namax_history = 2\n").with_run({.second_moment = "fp8"});
};

class FaultLibrary : public FaultRuns, public testing::WithParamInterface<FaultKind> {};

TEST_P(FaultLibrary, ActsFromItsFirstStepAndCostsNothingBefore) {
  const std::vector<uint64_t> healthy = run({}, plan);
  const std::vector<uint64_t> faulty = run({sample(GetParam())}, plan);
  const auto differ = std::ranges::mismatch(healthy, faulty);
  // What a step leaves behind is missed in the next one: a history, a copy, a moment.
  const bool late = GetParam() == FaultKind::kFrozenAmax || GetParam() == FaultKind::kStaleWeight ||
                    GetParam() == FaultKind::kFp8SecondMoment ||
                    GetParam() == FaultKind::kRepeatedBatch;
  const int64_t felt = late ? kStart + 1 : kStart;
  EXPECT_EQ(differ.in1 - healthy.begin() + 1, felt);
  Fault later = sample(GetParam());
  later.start_step = kRunSteps + 1;
  later.end_step = 0;
  EXPECT_EQ(run({later}, plan), healthy);
}

TEST_P(FaultLibrary, LeavesOffAtItsEnd) {
  const std::vector<Fault> faults = {sample(GetParam())};
  const auto checkpoint = checkpoint_of(faults, kEnd - 1);
  EXPECT_EQ(replay(checkpoint, {}, "same", kRunSteps - (kEnd - 1), EngineRole::kLive),
            behind(run(faults, plan), kEnd - 1));
}

// Three stretches of two steps: the same as three faults of two steps each.
TEST_P(FaultLibrary, ActsInStretches) {
  Fault fault = sample(GetParam());
  if (!fault_traits(GetParam()).has("period")) {
    fault.period = 3;
    EXPECT_THROW(Engine engine(with({fault})), ConfigError);
    return;
  }
  fault.steps = std::min<int64_t>(fault.steps, 1);  // nothing grows
  fault.start_step = 2;
  fault.end_step = 11;
  fault.period = 3;
  fault.duration = 2;
  std::vector<Fault> apart;
  for (int64_t start : {2, 5, 8}) {
    Fault stretch = fault;
    stretch.period = stretch.duration = 0;
    stretch.start_step = start;
    stretch.end_step = start + 2;
    apart.push_back(stretch);
  }
  const std::vector<uint64_t> live = run({fault}, plan);
  EXPECT_EQ(live, run(apart, plan));
  EXPECT_NE(live, run({apart[0], apart[1]}, plan));
  if (!fault_traits(GetParam()).same) return;
  for (int64_t middle : {3, 4, 5}) {
    EXPECT_EQ(replay(checkpoint_of({fault}, middle), {fault}, "same",
                     kRunSteps - static_cast<int>(middle)),
              behind(live, middle))
        << middle;
  }
}

TEST_P(FaultLibrary, IsFeltByTheArmsItsTraitsName) {
  const FaultTraits& traits = fault_traits(GetParam());
  const std::vector<Fault> faults = {sample(GetParam())};
  const auto before = checkpoint_of({}, kStart - 1);
  auto felt = [&](const std::string& arm) {
    return replay(before, faults, arm, kRunSteps - kStart) !=
           replay(before, {}, arm, kRunSteps - kStart);
  };
  EXPECT_EQ(felt("bf16"), traits.bf16);
  EXPECT_EQ(felt("same"), traits.same);
  EXPECT_EQ(felt("fakequant"), traits.fakequant);
}

TEST_P(FaultLibrary, ReplaysToTheBitFromTheMiddleWhereTheRunsOwnArmFeelsIt) {
  const std::vector<Fault> faults = {sample(GetParam())};
  const std::vector<uint64_t> live = run(faults, plan);
  for (int64_t middle : {kStart - 1, kStart + 1, kStart + 2}) {
    const auto checkpoint = checkpoint_of(faults, middle);
    const std::vector<uint64_t> again =
        replay(checkpoint, faults, "same", kRunSteps - static_cast<int>(middle));
    // A flipped bit is in the checkpoints behind it.
    const bool kept = GetParam() == FaultKind::kBitFlip && middle >= kStart;
    EXPECT_EQ(again == behind(live, middle), fault_traits(GetParam()).same || kept) << middle;
  }
}

class FaultOfFp8 : public FaultLibrary {};

// What attribution does: the sites in BF16.
TEST_P(FaultOfFp8, IsCuredByPinningItsSites) {
  std::vector<std::string> sites;
  for (const std::string& site : config.model.sites()) {
    if (site_matches(sample(GetParam()).site, site, config.model.layers)) sites.push_back(site);
  }
  if (GetParam() == FaultKind::kFp8SecondMoment) sites = {"optimizer.second_moment"};
  const PrecisionPlan pinned = plan.with_bf16_sites(sites);
  EXPECT_EQ(run({sample(GetParam())}, pinned), run({}, pinned));
}

TEST_P(FaultLibrary, SurvivesTheCheckpointsJson) {
  const EngineConfig faulty = with({sample(GetParam())});
  EXPECT_EQ(EngineConfig::from_json(faulty.to_json(), "state").to_json(), faulty.to_json());
}

TEST_P(FaultLibrary, DescribesItselfAndIsNamed) {
  const Fault fault = sample(GetParam());
  EXPECT_NE(fault.describe().find("step " + std::to_string(kStart)), std::string::npos);
  EXPECT_EQ(fault_kind_from_name(fault_kind_name(GetParam())), GetParam());
}

INSTANTIATE_TEST_SUITE_P(, FaultLibrary, testing::ValuesIn(all_kinds()), name_of);
INSTANTIATE_TEST_SUITE_P(, FaultOfFp8, testing::ValuesIn(kinds_of_fp8()), name_of);

TEST_F(FaultRuns, OnlyAPersistentFaultOfTheDeviceIsInAReplayOnIt) {
  for (FaultKind kind : {FaultKind::kStuckBit, FaultKind::kBitFlip, FaultKind::kSkippedBatch}) {
    const std::vector<Fault> faults = {sample(kind)};
    const auto before = checkpoint_of(faults, kStart - 1);
    const std::vector<uint64_t> on_device =
        replay(before, faults, "same", kRunSteps - (kStart - 1), EngineRole::kInline);
    const bool persistent = kind == FaultKind::kStuckBit;
    EXPECT_EQ(on_device == behind(run(faults, plan), kStart - 1), persistent)
        << fault_kind_name(kind);
    EXPECT_EQ(on_device == behind(run({}, plan), kStart - 1), !persistent) << fault_kind_name(kind);
  }
}

TEST_F(FaultRuns, AKernelsFaultIsInEveryRecipesKernelAndInNoFakequant) {
  const PrecisionPlan plans[] = {fp8_plan("recipe = \"current\"\n"),
                                 fp8_plan("recipe = \"rowwise\"\n"),
                                 fp8_plan("recipe = \"rowwise\"\npower_of_two = false\n"),
                                 fp8_plan("recipe = \"current\"\naccumulate = \"hopper\"\n")};
  for (const PrecisionPlan& other : plans) {
    plan = other;
    const auto before = checkpoint_of({}, kStart - 1);
    for (FaultKind kind :
         {FaultKind::kDroppedKBlock, FaultKind::kWrongAccumulation, FaultKind::kStaleWeight}) {
      for (const std::string site : {"down_proj", "gate_proj"}) {
        Fault fault = sample(kind);
        fault.site = "model.layers.1.mlp." + site;
        EXPECT_NE(replay(before, {fault}, "same", 3), replay(before, {}, "same", 3))
            << fault.describe() << other.to_toml();
        EXPECT_EQ(replay(before, {fault}, "fakequant", 3), replay(before, {}, "fakequant", 3))
            << fault.describe() << other.to_toml();
      }
    }
  }
}

TEST_F(FaultRuns, AFaultOfOneGemmIsInThatGemm) {
  const auto before = checkpoint_of({}, kStart - 1);
  std::vector<std::vector<uint64_t>> seen = {replay(before, {}, "same", 1)};
  for (const std::string gemm : {"", "fprop", "dgrad", "wgrad"}) {
    Fault fault = sample(FaultKind::kDroppedKBlock);
    fault.gemm = gemm;
    seen.push_back(replay(before, {fault}, "same", 1));
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(std::ranges::count(seen, seen[i]), 1) << i;
  }
}

TEST_F(FaultRuns, AStaleWeightIsMadeAnewAtItsInterval) {
  Fault stale = sample(FaultKind::kStaleWeight);
  stale.end_step = 0;
  auto loss_at = [&](int64_t interval, int64_t step) {
    stale.steps = interval;
    auto engine = start({stale}, plan);
    StepResult result;
    while (result.step < step) result = engine->train_step();
    return result.loss;
  };
  // With an interval of 1 it is never stale; of 2, every other step; of 0, more and more.
  auto healthy = start({}, plan);
  double loss = 0;
  for (int64_t step = 1; step <= kStart; ++step) loss = healthy->train_step().loss;
  EXPECT_EQ(loss_at(0, kStart), loss);
  loss = healthy->train_step().loss;
  EXPECT_EQ(loss_at(1, kStart + 1), loss);
  EXPECT_NE(loss_at(2, kStart + 1), loss);
  EXPECT_NE(loss_at(0, kStart + 2), loss_at(2, kStart + 2));
}

TEST_F(FaultRuns, AnOutlierChannelGrowsEvenlyAndOnlyToItsFactor) {
  Fault fault = sample(FaultKind::kOutlierChannel);
  fault.log2_factor = 8;
  fault.steps = 4;
  fault.end_step = 0;
  const std::vector<std::string> sites = config.model.sites();
  const FaultView view({fault}, sites, config.model.layers);
  const auto site = static_cast<int>(std::ranges::find(sites, kDown) - sites.begin());
  EXPECT_FALSE(view.outlier(site, kStart - 1));
  EXPECT_FALSE(view.outlier(site - 1, kStart));
  std::vector<int> grown;
  for (int64_t step = kStart; step < kStart + 6; ++step) {
    grown.push_back(view.outlier(site, step)->log2_factor);
  }
  EXPECT_EQ(grown, (std::vector<int>{2, 4, 6, 8, 8, 8}));
}

TEST_F(FaultRuns, SecondMomentsUnderflowToZeroInOneScale) {
  Fault fault = sample(FaultKind::kFp8SecondMoment);
  fault.site = "*";
  auto zeros = [&](const std::vector<Fault>& faults) {
    auto engine = start(faults, plan);
    train_hashes(*engine, kStart);
    const CheckpointContent content = engine->checkpoint();
    int64_t count = 0;
    for (const TensorView& tensor : content.optimizer) {
      if (!tensor.name.starts_with("exp_avg_sq.") || !tensor.name.ends_with("proj.weight"))
        continue;
      const auto* codes = static_cast<const uint8_t*>(tensor.data);
      count += std::count(codes, codes + tensor.bytes(), uint8_t{0});
    }
    return count;
  };
  EXPECT_EQ(zeros({}), 0);
  fault.log2_factor = -14;
  const int64_t some = zeros({fault});
  EXPECT_GT(some, 100);
  fault.log2_factor = -16;  // a smaller scale loses more
  EXPECT_GT(zeros({fault}), some);
}

TEST_F(FaultRuns, ALearningRateSpikeIsReportedAsWhatWasUsed) {
  auto engine = start({sample(FaultKind::kLearningRateSpike)}, plan);
  for (int64_t step = 1; step <= kEnd; ++step) {
    const double planned = config.optimizer.at(step);
    EXPECT_EQ(engine->train_step().learning_rate,
              step >= kStart && step < kEnd ? 10 * planned : planned);
  }
}

TEST_F(FaultRuns, ThePlanThatIsReportedDoesNotShowTheFault) {
  auto engine = start({sample(FaultKind::kE5m2Everywhere)}, plan);
  train_hashes(*engine, kStart + 1);
  EXPECT_EQ(engine->plan().to_toml(), plan.to_toml());
}

TEST_F(FaultRuns, AStuckWeightHoldsItsBit) {
  Fault fault = sample(FaultKind::kStuckBit);
  fault.tensor = "weight";
  fault.bit = 31;
  for (int value : {0, 1}) {
    fault.value = value;
    auto engine = start({fault}, plan);
    for (int64_t step = 1; step < kEnd; ++step) {
      engine->train_step();
      const CheckpointContent content = engine->checkpoint();
      const auto tensor =
          std::ranges::find(content.optimizer, "master." + kDown + ".weight", &TensorView::name);
      ASSERT_NE(tensor, content.optimizer.end());
      const float weight = static_cast<const float*>(tensor->data)[3];
      EXPECT_TRUE(step < kStart || std::signbit(weight) == (value == 1)) << step;
    }
  }
}

TEST_F(FaultRuns, WhatCannotBeIsRefusedWithItsKey) {
  auto refused = [&](const Fault& fault, const std::string& key) {
    try {
      Engine engine(with({fault}));
      ADD_FAILURE() << fault.describe();
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.key(), key) << error.what();
    }
  };
  auto changed = [](FaultKind kind, auto change) {
    Fault fault = sample(kind);
    change(fault);
    return fault;
  };
  using Kind = FaultKind;
  refused(changed(Kind::kOutlierChannel, [](Fault& it) { it.element = 48; }), "element");
  refused(changed(Kind::kOutlierChannel, [](Fault& it) { it.log2_factor = 0; }), "log2_factor");
  refused(changed(Kind::kOutlierChannel, [](Fault& it) { it.steps = 0; }), "steps");
  refused(changed(Kind::kOutlierChannel, [](Fault& it) { it.site = "lm_head"; }), "site");
  refused(changed(Kind::kE5m2Everywhere, [](Fault& it) { it.site = "*.conv"; }), "site");
  refused(changed(Kind::kE5m2Everywhere, [](Fault& it) { it.site = "{"; }), "site");
  refused(changed(Kind::kReducedMantissa, [](Fault& it) { it.format = "e4m3"; }), "format");
  refused(changed(Kind::kCoarseRecipe, [](Fault& it) { it.format = "e8m3"; }), "format");
  refused(changed(Kind::kFp8SecondMoment, [](Fault& it) { it.format = "e2m1"; }), "format");
  refused(changed(Kind::kWrongAccumulation, [](Fault& it) { it.fraction_bits = 0; }),
          "fraction_bits");
  refused(changed(Kind::kWrongAccumulation, [](Fault& it) { it.gemm = "prop"; }), "gemm");
  refused(changed(Kind::kDroppedKBlock, [](Fault& it) { it.terms = 0; }), "terms");
  refused(changed(Kind::kDroppedKBlock, [](Fault& it) { it.terms = 30; }), "terms");
  refused(changed(Kind::kDroppedKBlock, [](Fault& it) { it.element = 32; }), "element");
  refused(changed(Kind::kStaleWeight, [](Fault& it) { it.steps = -1; }), "steps");
  refused(changed(Kind::kStuckBit, [](Fault& it) { it.bit = 16; }), "bit");
  refused(changed(Kind::kStuckBit, [](Fault& it) { it.value = 2; }), "value");
  refused(changed(Kind::kStuckBit, [](Fault& it) { it.element = 32; }), "element");
  refused(changed(Kind::kStuckBit, [](Fault& it) { it.tensor = "input"; }), "tensor");
  refused(changed(Kind::kLearningRateSpike, [](Fault& it) { it.factor = 1; }), "factor");
  refused(changed(Kind::kLearningRateSpike, [](Fault& it) { it.factor = -2; }), "factor");
  refused(changed(Kind::kSkippedBatch, [](Fault& it) { it.steps = 0; }), "steps");
  refused(changed(Kind::kCorruptBatch, [](Fault& it) { it.end_step = kStart; }), "end_step");
  refused(changed(Kind::kCorruptBatch, [](Fault& it) { it.duration = 2; }), "period");
  refused(changed(Kind::kCorruptBatch, [](Fault& it) { it.period = 4; }), "duration");
  refused(changed(Kind::kCorruptBatch, [](Fault& it) { it.period = it.duration = 4; }), "duration");
  refused(changed(Kind::kScaleShift, [](Fault& it) { it.steps = -1; }), "steps");
  config.compute = Compute::kFp32;
  refused(sample(Kind::kScaleShift), "kind");
}

TEST_F(FaultRuns, AScaleDrifts) {
  Fault drift = sample(FaultKind::kScaleShift);
  drift.steps = 3;
  const FaultView view({drift}, config.model.sites(), config.model.layers);
  const auto& sites = config.model.sites();
  const int site = static_cast<int>(std::ranges::find(sites, kDown) - sites.begin());
  EXPECT_EQ(view.scale_shift(site, TensorRole::kInput, kStart - 1), 0);
  EXPECT_EQ(view.scale_shift(site, TensorRole::kInput, kStart), 2);
  EXPECT_EQ(view.scale_shift(site, TensorRole::kInput, kStart + 1), 4);
  EXPECT_EQ(view.scale_shift(site, TensorRole::kInput, kStart + 2), 6);
  EXPECT_EQ(view.scale_shift(site, TensorRole::kInput, kStart + 3), 6);
}

}  // namespace
}  // namespace gnomon::test

// An engine whose tensors lie where the host cannot touch them does what one on the host does, bit
// for bit, whatever it is asked.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "base/files.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/guarded_backend.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/statistics_collector.h"

namespace gnomon::test {
namespace {

BackendMakers guarded() {
  return {.bf16 = [](int threads) { return std::make_unique<GuardedBackend<bf16>>(threads); },
          .fp32 = [](int threads) { return std::make_unique<GuardedBackend<float>>(threads); }};
}
const BackendMakers kGuarded = guarded();

PrecisionPlan recipe_plan(const std::string& recipe, const std::string& keys = "") {
  return PrecisionPlan::parse(
      "allow_ragged_tiles = true\n[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"" + recipe +
      "\"\n" + keys);
}

struct Pair {
  explicit Pair(const EngineConfig& config)
      : plain(config), device(config, EngineRole::kLive, nullptr, &kGuarded) {
    for (Engine* engine : {&plain, &device}) engine->initialize();
  }
  void expect_same_steps(int steps) {
    EXPECT_EQ(train_hashes(device, steps), train_hashes(plain, steps));
  }
  void set_plan(const PrecisionPlan& plan) {
    plain.set_plan(plan);
    device.set_plan(plan);
  }
  Engine plain, device;
};

class DeviceMemory : public testing::Test {
 protected:
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
};

// Counts the copies that are made.
template <class Base>
class Counting final : public Base {
 public:
  Counting(int threads, int& copies) : Base(threads), copies_(copies) {}
  void quantize(GemmOperand<bf16>& operand, int64_t rows, int64_t columns, const Rounding& rounding,
                unsigned wanted, CastCounts* counts) override {
    ++copies_;
    Base::quantize(operand, rows, columns, rounding, wanted, counts);
  }

 private:
  int& copies_;
};

template <class Base>
int copies_of_a_step(const EngineConfig& config, const PrecisionPlan& plan) {
  int copies = 0;
  const BackendMakers makers = {
      .bf16 = [&](int threads) { return std::make_unique<Counting<Base>>(threads, copies); }};
  Engine engine(config, EngineRole::kLive, nullptr, &makers);
  engine.set_plan(plan);
  engine.initialize();
  train_hashes(engine, 1);  // with it histories begin
  copies = 0;
  train_hashes(engine, 1);
  return copies;
}

// Where a scale stands at an address, products that share a copy share the address.
TEST_F(DeviceMemory, NoCopyIsMadeTwiceWhereItWasMadeOnceOnTheHost) {
  for (const PrecisionPlan& plan : {recipe_plan("current"), recipe_plan("delayed")}) {
    EXPECT_EQ(copies_of_a_step<GuardedBackend<bf16>>(config, plan),
              copies_of_a_step<ForwardingBackend<bf16>>(config, plan));
  }
}

TEST_F(DeviceMemory, EveryRecipeTrainsToTheSameBits) {
  Pair pair(config);
  pair.plain.prepare();
  pair.device.prepare();
  pair.expect_same_steps(2);
  for (const PrecisionPlan& plan :
       {recipe_plan("current"), recipe_plan("delayed", "amax_history = 4\n"),
        recipe_plan("rowwise"), recipe_plan("block", "power_of_two = false\n"), recipe_plan("mx"),
        recipe_plan("block", "accumulate = \"hopper\"\n")}) {
    pair.set_plan(plan);
    pair.expect_same_steps(3);
    EXPECT_EQ(pair.device.evaluate(plan), pair.plain.evaluate(plan));
  }
}

TEST_F(DeviceMemory, Fp32AndStoredMomentsToo) {
  config.compute = Compute::kFp32;
  Pair(config).expect_same_steps(3);
  config.compute = Compute::kBf16;
  Pair stored(config);
  for (const PrecisionPlan& plan :
       {PrecisionPlan().with_run({.first_moment = "fp8", .second_moment = "bf16"}),
        PrecisionPlan::fp8().with_run({.first_moment = "bf16", .second_moment = "fp8"}),
        PrecisionPlan::bf16()}) {
    stored.set_plan(plan);
    stored.expect_same_steps(3);
  }
}

TEST_F(DeviceMemory, CheckpointsAreTheSameAndLoad) {
  Pair pair(config);
  pair.set_plan(recipe_plan("delayed", "amax_history = 4\n"));
  pair.expect_same_steps(3);
  const auto of_plain = write_checkpoint(pair.plain, directory.path() / "plain");
  const auto of_device = write_checkpoint(pair.device, directory.path() / "device");
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "trainer_state.json"}) {
    EXPECT_EQ(read_file(of_device / file), read_file(of_plain / file)) << file;
  }
  const std::vector<uint64_t> later = train_hashes(pair.plain, 2);
  pair.device.load(of_plain);
  EXPECT_EQ(train_hashes(pair.device, 2), later);
}

TEST_F(DeviceMemory, SnapshotsComeBackAndNudgesAreTheSame) {
  Pair pair(config);
  pair.device.allocate_snapshot_memory();
  pair.expect_same_steps(2);
  pair.device.snapshot();
  pair.plain.perturb(3, 1e-3);
  pair.device.perturb(3, 1e-3);
  pair.expect_same_steps(2);
  pair.device.restore();
  Engine again(config);
  again.initialize();
  train_hashes(again, 2);
  EXPECT_EQ(train_hashes(pair.device, 2), train_hashes(again, 2));
}

TEST_F(DeviceMemory, StatisticsAndScoresAreTheSame) {
  Pair pair(config);
  const PrecisionPlan plan = recipe_plan("current");
  pair.set_plan(plan);
  StatisticsConfig statistics;
  statistics.every = 1;
  statistics.tensors.push_back("weight_gradient");
  statistics.what_if = {"mx"};
  std::vector<std::vector<StatisticsRow>> rows;
  std::vector<std::vector<SiteScoreRow>> scores;
  for (Engine* engine : {&pair.plain, &pair.device}) {
    auto collector = engine->statistics(statistics, "run.toml");
    engine->train_step(collector.get());
    rows.push_back(collector->rows());
    scores.push_back(engine->scores(plan, engine->step() + 1));
  }
  ASSERT_EQ(rows[1].size(), rows[0].size());
  ASSERT_FALSE(rows[0].empty());
  for (size_t i = 0; i < rows[0].size(); ++i) {
    EXPECT_EQ(rows[1][i].site, rows[0][i].site);
    EXPECT_EQ(rows[1][i].numbers, rows[0][i].numbers) << rows[0][i].site;
  }
  ASSERT_EQ(scores[1].size(), scores[0].size());
  ASSERT_FALSE(scores[0].empty());
  for (size_t i = 0; i < scores[0].size(); ++i) {
    EXPECT_EQ(scores[1][i].phi, scores[0][i].phi) << scores[0][i].site;
    EXPECT_EQ(scores[1][i].psi, scores[0][i].psi) << scores[0][i].site;
  }
}

// Those that act on tensors, weights and moments.
TEST_F(DeviceMemory, FaultsStrikeThereAsTheyDoHere) {
  const std::string down = "model.layers.1.mlp.down_proj";
  const std::vector<Fault> faults = {
      {.kind = FaultKind::kScaleShift, .site = down, .start_step = 2, .log2_factor = 6},
      {.kind = FaultKind::kOutlierChannel,
       .site = down,
       .start_step = 2,
       .log2_factor = 12,
       .element = 5,
       .steps = 2},
      {.kind = FaultKind::kFp8SecondMoment, .site = "*", .start_step = 2, .format = "e4m3"},
      {.kind = FaultKind::kDroppedKBlock,
       .site = down,
       .start_step = 2,
       .gemm = "fprop",
       .terms = 16},
      {.kind = FaultKind::kStaleWeight, .site = "lm_head", .start_step = 2, .steps = 2},
      {.kind = FaultKind::kBitFlip,
       .site = down + ".weight",
       .start_step = 2,
       .element = 7,
       .bit = 20},
      {.kind = FaultKind::kStuckBit,
       .site = down,
       .tensor = "output",
       .start_step = 2,
       .element = 3,
       .bit = 12},
  };
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault_kind_name(fault.kind));
    EngineConfig faulty = config;
    faulty.faults = {fault};
    Pair pair(faulty);
    pair.set_plan(recipe_plan("current"));
    pair.expect_same_steps(4);
    const auto file =
        write_checkpoint(pair.device, directory.path() / ("of_" + fault_kind_name(fault.kind)));
    pair.device.load(file);
    pair.expect_same_steps(2);
  }
}

using DeviceMemoryDeathTest = DeviceMemory;

TEST_F(DeviceMemoryDeathTest, ATouchByTheHostWouldBeSeen) {
  GuardedMemory memory;
  std::byte* there = memory.allocate(64, "a test");
  EXPECT_DEATH(there[0] = std::byte{1}, "");
  std::byte here{2};
  memory.write(std::span(&here, 1), there);
  std::byte back{};
  memory.read(std::span<const std::byte>(there, 1), &back);
  EXPECT_EQ(back, here);
  EXPECT_TRUE(memory.holds(there + 63));
  EXPECT_FALSE(memory.holds(&here));
  memory.give_back(there, 64);
}

}  // namespace
}  // namespace gnomon::test

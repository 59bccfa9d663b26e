// Which kernels the engine runs on the CUDA backend, by emulation: a pass over memory that is saved
// is a kernel that is not there. And what of the device's memory comes to the host.
#include <gtest/gtest.h>

#include "kernels/cuda/emulation.h"
#include "tests/engine/emulated_machine.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/tested_backends.h"
#include "trainer/engine/statistics_collector.h"

namespace gnomon::test {
namespace {

using Launched = std::map<std::string, int64_t>;

// Those of one step, once the plan has had one: delayed scaling has a history then.
Launched launched_in_a_step(const std::string& recipe, std::vector<Fault> faults = {}) {
  const TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  config.faults = std::move(faults);
  Recordings refused{.refused = true};
  const BackendMakers backends = tested_backends(refused);
  Engine engine(config, EngineRole::kLive, nullptr, &backends);
  engine.initialize();
  engine.set_plan(PrecisionPlan::parse(recipe));
  engine.train_step();
  cuda::emulation::launched.clear();
  engine.train_step();
  return cuda::emulation::launched;
}

std::string fp8(const std::string& name) {
  return "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"" + name + "\"\n";
}

TEST(CudaLaunches, WhereTheScaleIsKnownSwigluWritesTheCodesToo) {
  const Launched current = launched_in_a_step(fp8("current"));
  const Launched delayed = launched_in_a_step(fp8("delayed"));
  const int64_t times = current.at("swiglu");
  EXPECT_GT(times, 0);
  EXPECT_FALSE(current.contains("swiglu_cast"));
  EXPECT_FALSE(delayed.contains("swiglu"));
  EXPECT_EQ(delayed.at("swiglu_cast"), times);
}

TEST(CudaLaunches, AnOutlierIsMadeInATensorOfItsOwn) {
  const Launched one = launched_in_a_step(fp8("delayed"), {{.kind = FaultKind::kOutlierChannel,
                                                            .site = "model.layers.0.mlp.down_proj",
                                                            .start_step = 2,
                                                            .log2_factor = 4,
                                                            .element = 1,
                                                            .steps = 1}});
  EXPECT_TRUE(one.contains("swiglu"));
  EXPECT_TRUE(one.contains("swiglu_cast")) << "in the other layers";
}

TEST(CudaLaunches, StatisticsBringNothingToTheHostButCounts) {
  const TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  config.model.layers = 1;
  config.model.ffn = 144;
  const BackendMakers backends = tested_backends();
  Engine engine(config, EngineRole::kLive, nullptr, &backends);
  engine.initialize();
  const auto bytes_of = [&](const StatisticsConfig& asked) {
    const auto collector = engine.statistics(asked, "test");
    const int64_t before = FarMemory::bytes_read;
    engine.inspect(1, *collector);
    return FarMemory::bytes_read - before;
  };
  const int64_t nothing = bytes_of({.tensors = {}, .what_if = {}});
  const int64_t rows = config.model.width;
  const StatisticsConfig one = {.match = {"*.down_proj"}, .tensors = {"weight"}, .what_if = {}};
  EXPECT_EQ(bytes_of(one) - nothing,
            (int64_t{4} << 16) + rows * static_cast<int64_t>(sizeof(RowMoments)));
  EXPECT_LT(nothing, 16 * config.model.vocabulary) << "losses alone";
}

}  // namespace
}  // namespace gnomon::test

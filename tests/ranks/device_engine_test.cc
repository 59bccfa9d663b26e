// One engine on all ranks, each with a device of its own that is emulated on the CPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/engine_fixture.h"
#include "tests/ranks/emulated_ranks.h"
#include "tests/ranks/ranks.h"
#include "trainer/engine/engine.h"

namespace gnomon::test {
namespace {

const BackendMakers kBackends = emulated_backends();

struct Case {
  std::string name;
  PrecisionPlan plan = PrecisionPlan::bf16();
  std::string gradient_wire = "full", weight_wire = "full";
  MomentFormat moments = MomentFormat::kFp32;
};

class DeviceEngines : public testing::TestWithParam<Case> {
 protected:
  DeviceEngines() { config.batch.accumulation = collectives().size(); }
  std::unique_ptr<Engine> start(EngineRanks* with, int threads = kThreadsForHost,
                                Sharding shard = Sharding::kOptimizer) {
    EngineConfig own = config;
    own.threads = threads;
    own.shard = shard;
    auto engine = std::make_unique<Engine>(own, EngineRole::kLive, with, &kBackends);
    const std::string moments = moment_format_name(GetParam().moments);
    engine->set_plan(GetParam().plan.with_run(
        {moments, moments, GetParam().gradient_wire, GetParam().weight_wire}));
    engine->initialize();
    return engine;
  }

  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
};

TEST_P(DeviceEngines, RepeatBitForBitAcrossACheckpointToo) {
  const auto engine = start(&ranks());
  EXPECT_EQ(engine->fingerprint().backend, "cuda");
  EXPECT_EQ(engine->fingerprint().world_size, collectives().size());
  train_hashes(*engine, 2);
  const auto checkpoint = write_checkpoint(*engine, directory.path() / "checkpoints");
  const std::vector<uint64_t> later = train_hashes(*engine, 2);
  EXPECT_NE(later.front(), later.back());
  Engine again(read_engine_config(checkpoint), EngineRole::kReplay, &ranks(), &kBackends);
  again.load(checkpoint);
  EXPECT_EQ(train_hashes(again, 2), later);
}

#ifdef GNOMON_NCCL_FOUND
TEST_P(DeviceEngines, HaveTheSameBitsOverNcclAndThroughTheHost) {
  const auto host = start(&ranks()), nccl = start(&ranks(), kThreadsForNccl);
  const std::vector<uint64_t> hashes = train_hashes(*host, 3);
  EXPECT_EQ(train_hashes(*nccl, 3), hashes);
  EXPECT_EQ(nccl->evaluate(GetParam().plan), host->evaluate(GetParam().plan));
}
#endif

TEST_P(DeviceEngines, HaveTheSameBitsWhereTheWeightsAreSharedOut) {
  std::vector<int> ways{kThreadsForHost};
#ifdef GNOMON_NCCL_FOUND
  ways.push_back(kThreadsForNccl);
#endif
  for (int way : ways) {
    const auto whole = start(&ranks(), way), shared = start(&ranks(), way, Sharding::kWeights);
    shared->allocate_snapshot_memory();
    EXPECT_EQ(shared->weights_hash(), whole->weights_hash());
    for (int step = 1; step <= 3; ++step) {
      const StepResult expected = whole->train_step(), found = shared->train_step();
      EXPECT_EQ(found.loss, expected.loss);
      EXPECT_EQ(found.grad_norm, expected.grad_norm);
      EXPECT_EQ(found.weights_hash, expected.weights_hash);
      EXPECT_EQ(shared->evaluate(GetParam().plan), whole->evaluate(GetParam().plan));
    }
    const auto checkpoint = write_checkpoint(*shared, directory.path() / std::to_string(way));
    shared->snapshot();
    const uint64_t next = whole->train_step().weights_hash;
    EXPECT_EQ(shared->train_step().weights_hash, next);
    shared->restore();
    EXPECT_EQ(shared->train_step().weights_hash, next);
    whole->load(checkpoint);
    EXPECT_EQ(whole->train_step().weights_hash, next);
  }
}

// The same batches; only the order of the gradient's sum differs.
TEST_P(DeviceEngines, LossesAreThoseOfOneDeviceToRounding) {
  const auto together = start(&ranks()), alone = start(nullptr);
  const bool compressed = GetParam().gradient_wire != "full" || GetParam().weight_wire != "full";
  for (int step = 1; step <= 4; ++step) {
    const StepResult of_all = together->train_step(), of_one = alone->train_step();
    EXPECT_EQ(of_all.batch_hash, of_one.batch_hash);
    if (step == 1) {
      EXPECT_EQ(of_all.loss, of_one.loss);
    }
    EXPECT_NEAR(of_all.loss, of_one.loss, (compressed ? 2e-2 : 5e-3) * of_one.loss) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, DeviceEngines,
    testing::Values(Case{"bf16"}, Case{"fp8", PrecisionPlan::fp8(Recipe::kCurrent)},
                    Case{"wires_by_block", PrecisionPlan::bf16(), "e5m2", "e4m3"},
                    Case{"wires_by_tensor", PrecisionPlan::fp8(Recipe::kDelayed), "e4m3:tensor",
                         "e4m3:tensor", MomentFormat::kFp8}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace gnomon::test

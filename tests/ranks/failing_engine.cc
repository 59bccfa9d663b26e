// A job whose engine fails on one rank alone: `ranks_failing_engine KIND DIRECTORY [RANK]`.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>

#include "base/errors.h"
#include "kernels/comm/start_collectives.h"
#include "storage/token_shards.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/forwarding_backend.h"
#include "trainer/engine/data_order.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/engine_ranks.h"
#include "trainer/engine/synthetic_data.h"

namespace gnomon::test {
namespace {

struct Failure {
  std::string kind;
  int rank = -1;
} failure;
int this_rank = 0;
int forward_passes = 0;

// As an engine is made, or in the forward pass of its second step.
class FailingBackend final : public ForwardingBackend<bf16> {
 public:
  explicit FailingBackend(int threads) : ForwardingBackend<bf16>(threads) {
    if (this_rank == failure.rank && failure.kind == "creation") throw Error("no device is left");
  }
  void embed(std::span<const int32_t> tokens, std::span<const bf16> table, int64_t width,
             std::span<bf16> y) override {
    ++forward_passes;
    if (this_rank == failure.rank && forward_passes == 2) {
      if (failure.kind == "throws") throw std::runtime_error("a kernel could not be launched");
      if (failure.kind == "error") throw Error("the device fell off the bus");
      if (failure.kind == "memory") throw std::bad_alloc();
    }
    ForwardingBackend<bf16>::embed(tokens, table, width, y);
  }
};

EngineConfig config_in(const std::filesystem::path& directory, int ranks) {
  EngineConfig config = small_engine(directory);
  config.data = directory / "one_shard";
  write_token_dataset(config.data, {learnable_tokens(1, 64, 4000)}, learnable_tokens(4, 64, 200),
                      64);
  config.batch.accumulation = ranks;
  return config;
}

// The last token of step `step` that the micro-batches of this rank read, and of the others.
std::pair<int64_t, int64_t> last_tokens(const EngineConfig& config, int64_t tokens, int64_t step) {
  const int64_t per_rank = config.batch.sequences;
  const DataOrder order(tokens, config.batch.tokens, per_rank * config.batch.accumulation,
                        static_cast<uint64_t>(config.seed));
  int64_t own = 0, others = 0;
  for (int64_t position = 0; position < per_rank * config.batch.accumulation; ++position) {
    int64_t& last = position / per_rank == failure.rank ? own : others;
    last = std::max(last, order.first_token(step, position) + config.batch.tokens + 1);
  }
  return {own, others};
}

std::filesystem::path shard_in(const std::filesystem::path& data) {
  for (const auto& entry : std::filesystem::directory_iterator(data)) {
    if (std::filesystem::file_size(entry) > 4000) return entry.path();
  }
  throw Error("no shard");
}

int lead(EngineRanks& ranks, const std::filesystem::path& directory) {
  EngineConfig config = config_in(directory, ranks.collectives->size());
  constexpr int64_t kTokens = 4000;
  while (failure.rank >= 0 &&
         last_tokens(config, kTokens, 2).first <= last_tokens(config, kTokens, 2).second) {
    ++config.seed;
  }
  Engine engine(config, EngineRole::kLive, &ranks, &*ranks.backends);
  engine.initialize();
  engine.train_step();
  if (failure.kind == "truncated") {
    const int64_t kept = last_tokens(config, kTokens, 2).second;
    std::filesystem::resize_file(shard_in(config.data),
                                 static_cast<uint64_t>(kShardHeaderBytes + 2 * kept));
  }
  engine.train_step();
  std::printf("finished\n");
  return 0;
}

int run(int argc, char** argv) {
  const std::filesystem::path directory = argv[2];
  failure.kind = argv[1];
  if (argc > 3) failure.rank = std::atoi(argv[3]);
  const auto collectives = start_collectives(60);
  this_rank = collectives->rank();
  BackendMakers makers;
  makers.bf16 = [](int threads) { return std::make_unique<FailingBackend>(threads); };
  return lead_or_follow(
      *collectives, [&](EngineRanks& ranks) { return lead(ranks, directory); }, makers);
}

}  // namespace
}  // namespace gnomon::test

int main(int argc, char** argv) {
  try {
    return gnomon::test::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

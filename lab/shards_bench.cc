// Steps of two engines in turn on the same ranks: one whose ranks all have the working weights, and
// one that shares them out. Run by lab/shards.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/stopwatch.h"
#include "kernels/comm/start_collectives.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/engine_ranks.h"
#include "trainer/engine/synthetic_data.h"

namespace {

using namespace gnomon;

int64_t weights_arena(const Engine& engine) {
  for (const ArenaSize& arena : engine.arenas()) {
    if (arena.name == "weights") return arena.bytes;
  }
  return 0;
}

int lead(EngineRanks& ranks, const PrecisionPlan& plan, int rounds) {
  EngineConfig config;
  // The 10M shape of docs/benchmarks.md.
  config.model.layers = 8;
  config.model.width = 320;
  config.model.heads = config.model.kv_heads = 5;
  config.model.ffn = 864;
  config.model.vocabulary = 2048;
  config.batch = {.sequences = 4, .tokens = 256, .accumulation = ranks.collectives->size()};
  const SyntheticData data(std::filesystem::temp_directory_path(), 2048, 1 << 18);
  config.data = data.directory().string();
  std::vector<std::unique_ptr<Engine>> engines;
  for (Sharding shard : {Sharding::kOptimizer, Sharding::kWeights}) {
    config.shard = shard;
    engines.push_back(std::make_unique<Engine>(config, EngineRole::kReplay, &ranks));
    engines.back()->set_plan(plan);
    engines.back()->initialize();
    engines.back()->train_step();
  }
  Durations whole, shared;
  for (int round = 0; round < rounds; ++round) {
    for (size_t i : {size_t{0}, size_t{1}}) {
      const Stopwatch watch;
      engines[i]->train_step();
      (i == 0 ? whole : shared).add(watch.read());
    }
  }
  if (engines[0]->weights_hash() != engines[1]->weights_hash()) {
    fmt::print(stderr, "the two have other weights\n");
    return 1;
  }
  fmt::print("{} {:.1f} {:.1f} {:.3f} {:.3f} {} {}\n", ranks.collectives->name(),
             1e3 * median(whole.seconds), 1e3 * median(shared.seconds),
             median(shared.seconds) / median(whole.seconds),
             median(shared.cpu_seconds) / median(whole.cpu_seconds), weights_arena(*engines[0]),
             weights_arena(*engines[1]));
  return 0;
}

}  // namespace

// shards_bench [PLAN [WEIGHT_WIRE [ROUNDS]]]
int main(int argc, char** argv) {
  const std::string recipe = argc > 1 ? argv[1] : "bf16";
  const std::string wire = argc > 2 ? argv[2] : "full";
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 7;
  const PrecisionPlan plan =
      (recipe == "bf16" ? PrecisionPlan::bf16() : PrecisionPlan::fp8(recipe_from_name(recipe)))
          .with_run({.weights = wire});
  const auto collectives = start_collectives(600);
  return lead_or_follow(*collectives,
                        [&](EngineRanks& ranks) { return lead(ranks, plan, rounds); });
}

#include "trainer/engine/memory_need.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <optional>

#include "base/errors.h"
#include "kernels/comm/collectives.h"
#include "trainer/engine/model.h"
#include "trainer/engine/optimizer_state.h"

namespace gnomon {
namespace {

// Workspaces of libraries (attention's alone may be over 1 GiB), tables, recorded passes, what the
// runtime takes with each kernel.
constexpr int64_t kBesides = int64_t{2} << 30;

std::string gib(int64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / static_cast<double>(1 << 30));
}

int64_t sum_of(const std::vector<ArenaSize>& arenas) {
  int64_t sum = kBesides;
  for (const ArenaSize& arena : arenas) sum += arena.bytes;
  return sum;
}

int64_t largest_part(const EngineConfig& config, int ranks) {
  const ParameterLayout layout(config.model);
  // No part is longer than the last.
  return Partition::even(layout.elements(), ranks, kMomentBlock).size(ranks - 1);
}

struct Change {
  std::string text;
  std::function<void(EngineConfig&)> make;
};

// From what costs little to what costs much; each keeps the step's tokens.
std::vector<Change> changes_of(const EngineConfig& config, int ranks) {
  std::vector<Change> changes;
  const auto recompute = [&](Recompute wanted) {
    if (config.memory.recompute >= wanted) return;
    changes.push_back({fmt::format("memory.recompute = \"{}\"", recompute_name(wanted)),
                       [wanted](EngineConfig& it) { it.memory.recompute = wanted; }});
  };
  recompute(Recompute::kSwiglu);
  if (ranks > 1 && config.shard != Sharding::kWeights) {
    changes.push_back(
        {"ranks.shard = \"weights\"", [](EngineConfig& it) { it.shard = Sharding::kWeights; }});
  }
  for (int parts = 2; config.batch.sequences % parts == 0; parts *= 2) {
    changes.push_back(
        {fmt::format("batch.sequences = {} with batch.accumulation = {}",
                     config.batch.sequences / parts, config.batch.accumulation * parts),
         [parts](EngineConfig& it) {
           it.batch.sequences /= parts;
           it.batch.accumulation *= parts;
         }});
  }
  recompute(Recompute::kBlock);
  if (config.memory.moments != MomentFormat::kFp8) {
    const bool both = optimizer_row(config.optimizer.name).has(Moment::kSecond);
    changes.push_back(
        {fmt::format("memory.moments = \"fp8\", for a plan with {} = \"fp8\" and none "
                     "in BF16",
                     both ? "moments" : "first_moment"),
         [](EngineConfig& it) { it.memory.moments = MomentFormat::kFp8; }});
  }
  return changes;
}

// The changes of which one alone is enough; else all that help most, and whether they are together.
std::string what_would_fit(const EngineConfig& config, int ranks, int64_t free,
                           const std::function<int64_t(const EngineConfig&)>& need) {
  const std::vector<Change> changes = changes_of(config, ranks);
  std::vector<std::string> enough;
  for (const Change& change : changes) {
    EngineConfig changed = config;
    change.make(changed);
    const int64_t needed = need(changed);
    if (needed <= free) enough.push_back(fmt::format("{} ({})", change.text, gib(needed)));
  }
  if (!enough.empty()) return fmt::format("{} would fit", fmt::join(enough, ", or "));
  EngineConfig least = config;
  least.memory.recompute = Recompute::kBlock;
  least.memory.moments = MomentFormat::kFp8;
  least.batch.accumulation *= least.batch.sequences;
  least.batch.sequences = 1;
  if (ranks > 1) least.shard = Sharding::kWeights;
  const int64_t needed = need(least);
  return fmt::format(
      "{}memory.recompute = \"block\", batch.sequences = 1 and moments in FP8 together need {}{}",
      ranks > 1 ? "ranks.shard = \"weights\", " : "", gib(needed),
      needed <= free ? " and would fit"
                     : ", which is too much as well: the model, "
                       "batch.tokens or the number of ranks must "
                       "change");
}

}  // namespace

template <class E>
std::vector<ArenaSize> memory_need(const EngineConfig& config, int ranks, BackendOf<E>& backend) {
  const bool shards = ranks > 1 && config.shard == Sharding::kWeights;
  std::vector<ArenaSize> arenas =
      BasicModel<E>::measure(config.model, config.batch.sequences, config.batch.tokens, backend,
                             config.memory, shards ? WeightRanks{ranks - 1, ranks} : WeightRanks{});
  arenas.push_back(OptimizerState::measure("optimizer", config.optimizer.name,
                                           config.memory.moments, largest_part(config, ranks)));
  return arenas;
}

template <class E>
void check_memory(const EngineConfig& config, int ranks, BackendOf<E>& backend) {
  if (!backend.memory().left()) return;
  const auto need = [&](const EngineConfig& of) { return sum_of(memory_need(of, ranks, backend)); };
  const int64_t needed = need(config);
  const std::optional<MemoryLeft> left = backend.memory().left();
  if (needed <= left->free) return;
  std::vector<std::string> parts;
  for (const ArenaSize& arena : memory_need(config, ranks, backend)) {
    parts.push_back(fmt::format("{} {}", arena.name, gib(arena.bytes)));
  }
  throw Error(fmt::format(
      "too little memory on {}: this run needs {} ({}, libraries {}), and {} of {} are free; {}",
      backend.device(), gib(needed), fmt::join(parts, ", "), gib(kBesides), gib(left->free),
      gib(left->total), what_would_fit(config, ranks, left->free, need)));
}

template std::vector<ArenaSize> memory_need(const EngineConfig&, int, BackendOf<bf16>&);
template std::vector<ArenaSize> memory_need(const EngineConfig&, int, BackendOf<float>&);
template void check_memory(const EngineConfig&, int, BackendOf<bf16>&);
template void check_memory(const EngineConfig&, int, BackendOf<float>&);

}  // namespace gnomon

// What an engine says to those of the other ranks within a call.
#include <fmt/format.h>

#include <array>
#include <vector>

#include "base/errors.h"
#include "base/hash.h"
#include "trainer/engine/engine_impl.h"

namespace gnomon {
namespace {

std::vector<int64_t> starts_of(const ParameterLayout& layout) {
  std::vector<int64_t> starts;
  for (const Parameter& parameter : layout.all()) starts.push_back(parameter.offset);
  return starts;
}

}  // namespace

// A stale copy would be one of a weight that this rank has only while its layer's pass is at it.
void check_faults_of_shards(const EngineConfig& config) {
  for (const Fault& fault : config.faults) {
    if (fault.kind != FaultKind::kStaleWeight) continue;
    throw ConfigError(
        "ranks", 0, "shard", sharding_name(config.shard),
        fmt::format("\"{}\" for a run with the fault {}", sharding_name(Sharding::kOptimizer),
                    fault_kind_name(fault.kind)));
  }
}

// The other ranks are in the same call and wait for this one.
void Engine::Impl::fail_alone(const std::exception& error) const {
  if (ranks->many()) collectives.abort(cause_of(error));
  throw;
}

void Engine::Impl::send_call(EngineCall call, std::string argument, bool flag) {
  send_to_followers(*ranks, call, number, std::move(argument), flag);
}

// Waits for the other ranks, which all have an engine now.
void Engine::Impl::connect() {
  wires = backend->wires(collectives, WireLayout(parts, starts_of(model->layout())));
  working().connect(collectives);
}

// What the micro-batches of all ranks left: losses, the largest magnitudes, the gradients of this
// rank's part.
void Engine::Impl::sum_over_ranks() {
  if (!ranks->many()) return;
  batch_hash = sum_over_ranks(batch_hash);
  collectives.all_reduce_sum(losses);
  scaling.combine_observed([&](std::span<double> amaxes) { collectives.all_reduce_max(amaxes); });
  spoil_gradients(step + 1);
  wires->reduce_scatter(formats.gradients, model->gradients());
}

// In four pieces, whose sums doubles hold exactly.
uint64_t Engine::Impl::sum_over_ranks(uint64_t value) {
  constexpr int kPieceBits = 16;
  std::array<double, 64 / kPieceBits> pieces = {};
  for (size_t i = 0; i < pieces.size(); ++i) {
    pieces[i] = static_cast<double>(value >> (kPieceBits * i) & 0xffff);
  }
  collectives.all_reduce_sum(pieces);
  uint64_t sum = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    sum += static_cast<uint64_t>(pieces[i]) << (kPieceBits * i);
  }
  return sum;
}

// Doubles hold the counts exactly.
void Engine::Impl::sum_over_ranks(std::span<CastCounts> casts) {
  std::vector<double> sums, peaks;
  for (const CastCounts& it : casts) {
    for (int64_t count : {it.values, it.saturated, it.flushed}) {
      sums.push_back(static_cast<double>(count));
    }
    peaks.push_back(static_cast<double>(it.peak));
  }
  collectives.all_reduce_sum(sums);
  collectives.all_reduce_max(peaks);
  for (size_t i = 0; i < casts.size(); ++i) {
    const auto sum = [&](size_t which) { return static_cast<int64_t>(sums[3 * i + which]); };
    casts[i] = {sum(0), sum(1), sum(2), static_cast<float>(peaks[i])};
  }
}

// Their owners have written them to WorkingWeights::updated().
void Engine::Impl::share_weights() {
  if (ranks->many()) return working().share(*wires, formats.weights);
  working().changed();
}

uint64_t Engine::Impl::weights_hash() {
  const uint64_t own = working().hash_terms();
  return PlacedHash::of(working().sharded() ? sum_over_ranks(own) : own,
                        static_cast<uint64_t>(weight_bytes()));
}

// A rank that computed something else is found at the step where it did, as far as all have the
// same weights. `hash` is that of all.
void Engine::Impl::check_weights(uint64_t hash) {
  if (!ranks->many()) return;
  if (working().sharded()) hash = working().hash_of_common();
  uint64_t rank0 = hash;
  collectives.broadcast(std::as_writable_bytes(std::span(&rank0, 1)), 0);
  if (rank0 != hash) {
    collectives.abort(fmt::format("the weights after step {} are {} here and {} on rank 0", step,
                                  hex64(hash), hex64(rank0)));
  }
}

void Engine::Impl::allocate_gathered_weights() {
  gathered_weights = std::make_unique<Arena>("gathered weights");
  gathered_weights->allocate<std::byte>(weight_bytes());
  gathered_weights->commit();
  arenas.push_back({gathered_weights->name(), gathered_weights->bytes()});
}

WeightSpan Engine::Impl::weights_for_checkpoint() {
  if (!working().sharded()) return working().all();
  std::span<std::byte> room;
  if (gathered_weights != nullptr) room = gathered_weights->content();
  room = room.first(std::min(room.size(), static_cast<size_t>(weight_bytes())));
  working().gather(collectives, room);
  const auto elements = [&](auto* first) { return std::span(first, room.size() / sizeof(*first)); };
  if (config.compute == Compute::kFp32) return elements(reinterpret_cast<float*>(room.data()));
  return elements(reinterpret_cast<bf16*>(room.data()));
}

}  // namespace gnomon

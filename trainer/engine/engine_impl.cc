#include "trainer/engine/engine_impl.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.h"
#include "base/hash.h"
#include "trainer/engine/memory_need.h"
#include "trainer/engine/plan_shapes.h"

namespace gnomon {
namespace {

// Whole micro-batches go to a rank, so that every product and every amax is what one process has.
void check_share(const BatchConfig& batch, int ranks) {
  if (batch.accumulation % ranks == 0) return;
  throw ConfigError("batch", 0, "accumulation", std::to_string(batch.accumulation),
                    fmt::format("a multiple of {}, the number of ranks: each takes an equal share "
                                "of a step's micro-batches",
                                ranks));
}

RunFormats formats_of(const RunPrecision& run) {
  return {{moment_format_from_name(run.first_moment), moment_format_from_name(run.second_moment)},
          wire_format_from_name(run.gradients),
          wire_format_from_name(run.weights)};
}

std::vector<int64_t> starts_of(const ParameterLayout& layout) {
  std::vector<int64_t> starts;
  for (const Parameter& parameter : layout.all()) starts.push_back(parameter.offset);
  return starts;
}

}  // namespace

EngineImpl::EngineImpl(EngineConfig engine_config, EngineRole engine_role,
                       EngineRanks* engine_ranks, const BackendMakers* given)
    : group(engine_ranks),
      collectives(group.collectives()),
      config((check_engine_config(engine_config), std::move(engine_config))),
      mode{.role = engine_role},
      faults(config.faults, config.model.sites(), config.model.layers),
      batches(config),
      scaling(static_cast<int>(config.model.sites().size())) {
  faults.set_role(engine_role);
  check_share(config.batch, group.size());
  const BackendMakers makers = given == nullptr ? backend_makers(config.device) : *given;
  if (config.compute == Compute::kFp32) {
    make_model(makers.fp32(config.threads));
  } else {
    make_model(makers.bf16(config.threads));
  }
  const ParameterLayout& layout = model->layout();
  parts = Partition::even(layout.elements(), group.size(), kMomentBlock);
  const int rank = group.rank();
  optimizer = std::make_unique<Optimizer>(
      config.optimizer, layout, *backend, static_cast<uint64_t>(config.seed),
      Shard{parts.begin(rank), parts.begin(rank) + parts.size(rank)}, config.memory.moments);
  sites = resolve(plan).sites;
  formats.moments = optimizer->state().formats();
  for (const Arena* arena : model->arenas()) arenas.push_back({arena->name(), arena->bytes()});
  const Arena& optimizer_arena = optimizer->state().arena();
  arenas.push_back({optimizer_arena.name(), optimizer_arena.bytes()});
  if (engine_role != EngineRole::kReplay) allocate_checkpoint_room(*this);
  losses.reserve(
      static_cast<size_t>(std::max(config.batch.accumulation, config.heldout_sequences)));
  model->expect_evaluations(batches.last_of_heldout());
}

template <class E>
void EngineImpl::make_model(std::unique_ptr<BackendOf<E>> typed) {
  check_device_shapes(config.model, *typed);
  const bool shards = group.many() && config.shard == Sharding::kWeights;
  if (shards) check_faults_of_shards(config);
  check_memory(config, group.size(), *typed);
  model = std::make_unique<BasicModel<E>>(
      config.model, config.batch.sequences, config.batch.tokens, *typed, scaling, &faults,
      config.memory, shards ? WeightRanks{group.rank(), group.size()} : WeightRanks{});
  backend = std::move(typed);
}

ResolvedPlan EngineImpl::resolve(const PrecisionPlan& wanted) const {
  const int64_t n = int64_t{1} * config.batch.sequences * config.batch.tokens;
  check_plan_shapes(wanted, config.model, n);
  check_device_shapes(wanted, config.model, config.batch.tokens, backend->width_multiple(),
                      backend->limits());
  ResolvedPlan resolved{.sites = {}, .formats = formats_of(wanted.of_run())};
  resolved.sites.reserve(model->sites().size());
  for (const std::string& site : model->sites()) {
    SitePrecision precision = wanted.resolve(site, config.model.layers);
    if (config.compute == Compute::kFp32 && precision.any_fp8()) {
      throw ConfigError("engine", 0, "compute", "fp32",
                        "\"bf16\" for a plan with FP8, as this one has at " + site);
    }
    if (precision.any_fp8() && !backend->lacks_fp8().empty()) {
      throw ConfigError("plan", 0, site, "FP8",
                        "BF16 on this device; of FP8, " + backend->lacks_fp8());
    }
    resolved.sites.push_back(precision);
  }
  return resolved;
}

ResolvedPlan EngineImpl::check_plan(const PrecisionPlan& wanted, const std::string& file) const {
  wanted.check_sites(model->sites(), config.model.layers, file);
  ResolvedPlan resolved = resolve(wanted);
  const MomentFormats& moments = resolved.formats.moments;
  const OptimizerRow& row = optimizer_row(config.optimizer.name);
  if (!row.has(Moment::kSecond) && moments.second != MomentFormat::kFp32) {
    throw ConfigError(file, 0, "second_moment", moment_format_name(moments.second),
                      fmt::format("\"fp32\" with optimizer.name = \"{}\", which has no second "
                                  "moment: first_moment is the key in place of moments",
                                  row.name));
  }
  if (optimizer->state().has_room_for(moments)) return resolved;
  const std::string widest = moment_format_name(
      row.has(Moment::kSecond) ? std::min(moments.first, moments.second) : moments.first);
  throw ConfigError("memory", 0, "moments", moment_format_name(config.memory.moments),
                    fmt::format("\"{}\" for a plan with moments in {}, as this one: room for them "
                                "is taken at the start",
                                widest, widest));
}

void EngineImpl::change_formats(const RunFormats& next) {
  if (!ready) {
    optimizer->state().set_formats(next.moments);
  } else if (next.moments != formats.moments) {
    memory().settle();
    optimizer->state().change_formats(next.moments, static_cast<uint64_t>(config.seed), step);
  }
  formats = next;
}

void EngineImpl::connect() {
  wires = backend->wires(collectives, WireLayout(parts, starts_of(model->layout())));
  working().connect(collectives);
}

void EngineImpl::share_weights() {
  if (group.many()) return working().share(*wires, formats.weights);
  working().changed();
}

uint64_t EngineImpl::weights_hash() const {
  const uint64_t own = working().hash_terms();
  return PlacedHash::of(working().sharded() ? group.sum(own) : own,
                        static_cast<uint64_t>(weight_bytes()));
}

void EngineImpl::check_weights(uint64_t hash) const {
  if (!group.many()) return;
  if (working().sharded()) hash = working().hash_of_common();
  uint64_t rank0 = hash;
  collectives.broadcast(std::as_writable_bytes(std::span(&rank0, 1)), 0);
  if (rank0 != hash) {
    collectives.abort(fmt::format("the weights after step {} are {} here and {} on rank 0", step,
                                  hex64(hash), hex64(rank0)));
  }
}

}  // namespace gnomon

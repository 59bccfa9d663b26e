#include "trainer/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <numbers>

#include "base/errors.h"
#include "base/hash.h"
#include "base/philox.h"
#include "trainer/engine/engine_impl.h"
#include "trainer/engine/fingerprint.h"
#include "trainer/engine/hf_import.h"
#include "trainer/engine/memory_need.h"
#include "trainer/engine/normal.h"
#include "trainer/engine/plan_shapes.h"
#include "trainer/engine/statistics_collector.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

void draw_weights(const EngineConfig& config, const ParameterLayout& layout,
                  std::span<float> masters) {
  double to_residual = 1.0 / std::sqrt(2.0 * config.model.layers);
  for (size_t i = 0; i < layout.all().size(); ++i) {
    const Parameter& parameter = layout.all()[i];
    std::span<float> values =
        masters.subspan(static_cast<size_t>(parameter.offset), static_cast<size_t>(parameter.size));
    if (parameter.shape.size() == 2) {
      double deviation = config.model.init_std * (parameter.adds_to_residual ? to_residual : 1.0);
      fill_normal(static_cast<uint64_t>(config.seed), i, deviation, values);
    } else {
      std::ranges::fill(values, parameter.first);
    }
  }
}

Dataset open_data(const EngineConfig& config) {
  Dataset data = Dataset::open(config.data);
  if (data.info.vocabulary > config.model.vocabulary) {
    throw ConfigError(
        "model", 0, "vocabulary", std::to_string(config.model.vocabulary),
        fmt::format("at least {}, the vocabulary of {}", data.info.vocabulary, config.data));
  }
  int64_t needed = int64_t{config.batch.tokens} + 1;
  for (const TokenShards* shards : {&data.train, &data.heldout}) {
    if (shards->tokens() < needed) {
      throw ConfigError("batch", 0, "tokens", std::to_string(config.batch.tokens),
                        fmt::format("at most {}: {} has no longer {} sequence",
                                    std::max<int64_t>(shards->tokens() - 1, 0), config.data,
                                    shards == &data.train ? "training" : "held-out"));
    }
  }
  data.train.set_vocabulary(config.model.vocabulary);
  data.heldout.set_vocabulary(config.model.vocabulary);
  return data;
}

// Between them they run every product that any plan runs: sites that share an input together and
// apart, with one scale and with several.
std::vector<PrecisionPlan> plans_to_prepare(const EngineConfig& config) {
  if (config.compute == Compute::kFp32) return {PrecisionPlan::bf16()};
  std::vector<std::string> first_of_each;
  const std::vector<Site> sites = all_sites(config.model);
  for (size_t i = 0; i + 1 < sites.size(); ++i) {
    const bool begins = i == 0 || sites[i - 1].group != sites[i].group;
    if (begins && sites[i + 1].group == sites[i].group) first_of_each.push_back(sites[i].name);
  }
  PrecisionPlan fp8 = PrecisionPlan::fp8(Recipe::kCurrent);
  return {PrecisionPlan::bf16(), fp8, fp8.with_bf16_sites(first_of_each)};
}

void split_sequence(std::span<const int32_t> sequence, std::vector<int32_t>& tokens,
                    std::vector<int32_t>& targets) {
  tokens.insert(tokens.end(), sequence.begin(), sequence.end() - 1);
  targets.insert(targets.end(), sequence.begin() + 1, sequence.end());
}

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

}  // namespace

Engine::Impl::Impl(EngineConfig engine_config, EngineRole engine_role, EngineRanks* engine_ranks,
                   const BackendMakers* given)
    : single(engine_ranks == nullptr ? make_single_collectives() : nullptr),
      alone{single.get()},
      ranks(engine_ranks == nullptr ? &alone : engine_ranks),
      collectives(*ranks->collectives),
      config((check_engine_config(engine_config), std::move(engine_config))),
      mode{.role = engine_role},
      faults(config.faults, config.model.sites(), config.model.layers),
      data(open_data(config)),
      order(data.train.tokens(), config.batch.tokens,
            int64_t{1} * config.batch.sequences * config.batch.accumulation,
            static_cast<uint64_t>(config.seed)),
      scaling(static_cast<int>(config.model.sites().size())) {
  faults.set_role(engine_role);
  check_share(config.batch, collectives.size());
  const BackendMakers makers = given == nullptr ? backend_makers(config.device) : *given;
  if (config.compute == Compute::kFp32) {
    make_model(makers.fp32(config.threads));
  } else {
    make_model(makers.bf16(config.threads));
  }
  const ParameterLayout& layout = model->layout();
  parts = Partition::even(layout.elements(), collectives.size(), kMomentBlock);
  const int rank = collectives.rank();
  optimizer = std::make_unique<Optimizer>(
      config.optimizer, layout, *backend, static_cast<uint64_t>(config.seed),
      Shard{parts.begin(rank), parts.begin(rank) + parts.size(rank)}, config.memory.moments);
  sites = resolve(plan).sites;
  formats.moments = optimizer->state().formats();
  for (const Arena* arena : model->arenas()) arenas.push_back({arena->name(), arena->bytes()});
  const Arena& optimizer_arena = optimizer->state().arena();
  arenas.push_back({optimizer_arena.name(), optimizer_arena.bytes()});
  if (ranks->many() && rank == 0 && engine_role != EngineRole::kReplay) {
    gathered = std::make_unique<OptimizerState>("gathered optimizer", config.optimizer.name,
                                                config.memory.moments, Shard{0, layout.elements()},
                                                host_memory());
    arenas.push_back({gathered->arena().name(), gathered->arena().bytes()});
    if (working().sharded()) allocate_gathered_weights();
  }
  sequence.resize(static_cast<size_t>(config.batch.tokens) + 1);
  size_t micro_batch = static_cast<size_t>(config.batch.sequences) * (sequence.size() - 1);
  tokens.reserve(micro_batch);
  targets.reserve(micro_batch);
  losses.reserve(
      static_cast<size_t>(std::max(config.batch.accumulation, config.heldout_sequences)));
  int64_t heldout = std::min<int64_t>(config.heldout_sequences,
                                      (data.heldout.tokens() - 1) / config.batch.tokens);
  for (int64_t i = 0; i < heldout; ++i) {
    data.heldout.read(i * config.batch.tokens, sequence);
    split_sequence(sequence, heldout_tokens, heldout_targets);
  }
  model->expect_evaluations(last_evaluated_tokens());
}

int64_t Engine::Impl::last_evaluated_tokens() const {
  return std::ssize(heldout_tokens) % (int64_t{1} * config.batch.sequences * config.batch.tokens);
}

template <class E>
void Engine::Impl::make_model(std::unique_ptr<BackendOf<E>> typed) {
  check_device_shapes(config.model, *typed);
  const bool shards = ranks->many() && config.shard == Sharding::kWeights;
  if (shards) check_faults_of_shards(config);
  check_memory(config, collectives.size(), *typed);
  model = std::make_unique<BasicModel<E>>(
      config.model, config.batch.sequences, config.batch.tokens, *typed, scaling, &faults,
      config.memory, shards ? WeightRanks{collectives.rank(), collectives.size()} : WeightRanks{});
  backend = std::move(typed);
}

ResolvedPlan Engine::Impl::resolve(const PrecisionPlan& wanted) const {
  const int64_t n = int64_t{1} * config.batch.sequences * config.batch.tokens;
  check_plan_shapes(wanted, config.model, n);
  check_device_shapes(wanted, config.model, n, backend->width_multiple());
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

ResolvedPlan Engine::Impl::check_plan(const PrecisionPlan& wanted, const std::string& file) const {
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

void Engine::Impl::change_formats(const RunFormats& next) {
  if (!ready) {
    optimizer->state().set_formats(next.moments);
  } else if (next.moments != formats.moments) {
    memory().settle();
    optimizer->state().change_formats(next.moments, static_cast<uint64_t>(config.seed), step);
  }
  formats = next;
}

void Engine::Impl::read_batch(int64_t at, int64_t micro_batch) {
  tokens.clear();
  targets.clear();
  const int64_t from = faults.batch_of(at);
  for (int64_t i = 0; i < config.batch.sequences; ++i) {
    int64_t position = micro_batch * config.batch.sequences + i;
    if (mode.order_seed != 0) {
      const int64_t all = int64_t{1} * config.batch.sequences * config.batch.accumulation;
      position = Permutation(all, static_cast<uint64_t>(mode.order_seed), at)(position);
    }
    if (faults.corrupt(at)) {
      random_tokens(static_cast<uint64_t>(config.seed), at, position, config.model.vocabulary,
                    sequence);
    } else {
      data.train.read(order.first_token(from, position), sequence);
    }
    batch_hash += hash64(sequence.data(), sequence.size() * sizeof(int32_t));
    split_sequence(sequence, tokens, targets);
  }
}

Engine::Engine(EngineConfig config, EngineRole role, EngineRanks* ranks,
               const BackendMakers* backends) {
  if (ranks == nullptr || !ranks->many()) {
    impl_ = std::make_unique<Impl>(std::move(config), role, ranks, backends);
    impl_->fingerprint = process_fingerprint(*impl_->backend);
    return;
  }
  const int64_t number = ranks->engines++;
  send_to_followers(*ranks, EngineCall::kCreate, number, config.to_json(),
                    role == EngineRole::kLive);
  do_together(*ranks->collectives,
              [&] { impl_ = std::make_unique<Impl>(std::move(config), role, ranks, backends); });
  impl_->number = number;
  const Dataset& data = impl_->data;
  ranks->collectives->agree("the data", data.info.content_hash);
  const Fingerprint own = process_fingerprint(*impl_->backend);
  ranks->collectives->agree("the build", own.build);
  try {
    impl_->fingerprint = fingerprint_of_ranks(own, *ranks->collectives);
    impl_->connect();
  } catch (const std::exception& error) {
    impl_->fail_alone(error);
  }
}

Engine::~Engine() {
  if (impl_ != nullptr) impl_->send_call(EngineCall::kDestroy);
}

const EngineConfig& Engine::config() const { return impl_->config; }
const std::vector<ArenaSize>& Engine::arenas() const { return impl_->arenas; }
int64_t Engine::step() const { return impl_->step; }
const PrecisionPlan& Engine::plan() const { return impl_->plan; }
int64_t Engine::heldout_tokens() const {
  return static_cast<int64_t>(impl_->heldout_tokens.size());
}
uint64_t Engine::weights_hash() const try {
  if (impl_->working().sharded()) impl_->send_call(EngineCall::kWeightsHash);
  return impl_->weights_hash();
} catch (const std::exception& error) {
  impl_->fail_alone(error);
}

Fingerprint Engine::fingerprint() const { return impl_->fingerprint; }

std::string Engine::lacks_fp8() const { return impl_->backend->lacks_fp8(); }

void Engine::initialize() try {
  Impl& self = *impl_;
  self.send_call(EngineCall::kInitialize);
  self.memory().settle();
  self.optimizer->state().clear_moments(*self.backend);
  // Gradients are no state: their memory serves for all masters, of which a rank keeps its part.
  fill_on_host(self.memory(), self.model->gradients(), [&](std::span<float> masters) {
    std::ranges::fill(masters, 0.0f);
    if (self.config.from.empty()) {
      draw_weights(self.config, self.model->layout(), masters);
    } else {
      read_hf_weights(self.config.from, self.config.model, masters);
    }
    write_from_host(self.memory(), std::span<const float>(self.optimizer->shard().of(masters)),
                    self.optimizer->masters());
    self.model->set_weights(masters);
  });
  self.scaling.clear();
  self.step = 0;
  self.ready = true;
} catch (const std::exception& error) {
  impl_->fail_alone(error);
}

void Engine::prepare() try {
  Impl& self = *impl_;
  GNOMON_ASSERT(self.ready);
  self.send_call(EngineCall::kPrepare);
  const BatchConfig& batch = self.config.batch;
  const int64_t micro_batch = int64_t{1} * batch.sequences * batch.tokens;
  const int64_t rest = self.last_evaluated_tokens();
  for (const PrecisionPlan& plan : plans_to_prepare(self.config)) {
    const std::vector<SitePrecision> sites = self.resolve(plan).sites;
    PassPlan pass{.sites = &sites, .step = self.step, .record = false};
    for (int micro = 0; micro < std::min(batch.accumulation, 2); ++micro) {
      self.model->prepare(pass, micro_batch, micro > 0);
    }
    if (rest > 0) self.model->prepare_forward(pass, rest);  // of an evaluation
  }
  self.optimizer->norm(self.model->gradients());
} catch (const std::exception& error) {
  impl_->fail_alone(error);
}

void Engine::check_plan(const PrecisionPlan& plan) const { impl_->check_plan(plan, "plan"); }

void Engine::set_plan(const PrecisionPlan& plan) {
  Impl& self = *impl_;
  ResolvedPlan resolved = self.check_plan(plan, "plan");
  self.send_call(EngineCall::kSetPlan, plan.to_toml());
  try {
    self.change_formats(resolved.formats);
  } catch (const std::exception& error) {
    self.fail_alone(error);
  }
  self.scaling.change(resolved.sites);
  self.sites = std::move(resolved.sites);
  self.plan = plan;
}

const EngineMode& Engine::mode() const { return impl_->mode; }

void Engine::set_mode(const EngineMode& mode) {
  if (mode == impl_->mode) return;
  impl_->send_call(EngineCall::kSetMode, mode_argument(mode));
  impl_->mode = mode;
  impl_->faults.set_role(mode.role);
}

void Engine::perturb(int64_t seed, double scale) try {
  Impl& self = *impl_;
  GNOMON_ASSERT(self.ready);
  self.send_call(EngineCall::kPerturb, perturb_argument(seed, scale));
  self.memory().settle();
  const Shard& shard = self.optimizer->shard();
  edit_on_host(self.memory(), self.optimizer->masters(), [&](std::span<float> masters) {
    perturb_values(static_cast<uint64_t>(seed), shard.begin, scale, masters);
    std::visit(
        [&]<class E>(std::span<E> updated) {
          fill_on_host(self.memory(), updated, [&](std::span<E> room) {
            std::ranges::transform(masters, room.begin(), from_float<E>);
          });
        },
        self.working().updated(shard));
  });
  self.share_weights();
} catch (const std::exception& error) {
  impl_->fail_alone(error);
}

StepResult Engine::train_step(StatisticsCollector* collector, bool twice) try {
  Impl& self = *impl_;
  GNOMON_ASSERT(self.ready);
  self.send_call(EngineCall::kTrainStep, {}, twice);
  Clock::time_point start = Clock::now();
  const BatchConfig& batch = self.config.batch;
  int64_t step = self.step + 1;
  const std::vector<SitePrecision>& sites = self.in_truth(self.sites, step);
  self.model->begin_step(step);
  StepResult result;
  result.step = step;
  if (twice) {
    self.compute_gradients_twice(step, sites, collector, result);
    if (!result.committed) return result;
  } else {
    self.compute_gradients(step, sites, collector, nullptr);
  }
  result.casts = self.summarize_casts();
  double loss_sum = 0;
  for (double loss : self.losses) loss_sum += loss;
  const std::span<const float> gradients = self.own_gradients();
  double squares = self.optimizer->sum_of_squares(gradients);
  self.collectives.all_reduce_sum(std::span(&squares, 1));
  result.loss = loss_sum / static_cast<double>(batch.tokens_per_step());
  result.grad_norm = std::sqrt(squares);
  result.learning_rate = self.config.optimizer.at(step) * self.faults.learning_rate_factor(step);
  result.tokens = batch.tokens_per_step();
  result.finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  self.memory().settle();  // a checkpoint may still be copied from what changes now
  if (result.finite) {
    self.optimizer->update(step, result.learning_rate, result.grad_norm, gradients,
                           self.working().updated(self.optimizer->shard()));
    self.spoil_second_moments(step);
    self.share_weights();
  }
  self.scaling.finish_step(
      sites, [&](int site, TensorRole role) { return self.faults.frozen(site, role, step); });
  self.step = step;
  self.strike_weights();
  result.batch_hash = self.batch_hash;
  result.weights_hash = self.weights_hash();
  self.check_weights(result.weights_hash);
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return result;
} catch (const std::exception& error) {
  impl_->fail_alone(error);
}

}  // namespace gnomon

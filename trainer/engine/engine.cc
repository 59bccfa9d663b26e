#include "trainer/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/errors.h"
#include "trainer/engine/engine_impl.h"
#include "trainer/engine/fingerprint.h"
#include "trainer/engine/hf_import.h"
#include "trainer/engine/normal.h"
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

// Between them they run every product that any plan runs: sites that share an input together and
// apart, with one scale and with several. What no plan may have on this device is left out.
std::vector<ResolvedPlan> plans_to_prepare(const EngineImpl& engine) {
  const EngineConfig& config = engine.config;
  std::vector<std::string> first_of_each;
  const std::vector<Site> sites = all_sites(config.model);
  for (size_t i = 0; i + 1 < sites.size(); ++i) {
    const bool begins = i == 0 || sites[i - 1].group != sites[i].group;
    if (begins && sites[i + 1].group == sites[i].group) first_of_each.push_back(sites[i].name);
  }
  PrecisionPlan fp8 = PrecisionPlan::fp8(Recipe::kCurrent);
  if (config.model.vocabulary % engine.backend->width_multiple() != 0) {
    fp8 = fp8.with_bf16_sites({"lm_head"});
  }
  std::vector<ResolvedPlan> plans = {engine.resolve(PrecisionPlan::bf16())};
  for (const PrecisionPlan& plan : {fp8, fp8.with_bf16_sites(first_of_each)}) {
    try {
      plans.push_back(engine.resolve(plan));
    } catch (const ConfigError&) {  // of its FP8
    }
  }
  return plans;
}

}  // namespace

Engine::Engine(EngineConfig config, EngineRole role, EngineRanks* ranks,
               const BackendMakers* backends) {
  if (ranks == nullptr || !ranks->many()) {
    impl_ = std::make_unique<EngineImpl>(std::move(config), role, ranks, backends);
    impl_->fingerprint = process_fingerprint(*impl_->backend);
    return;
  }
  const int64_t number = ranks->engines++;
  send_to_followers(*ranks, EngineCall::kCreate, number, config.to_json(),
                    role == EngineRole::kLive);
  do_together(*ranks->collectives, [&] {
    impl_ = std::make_unique<EngineImpl>(std::move(config), role, ranks, backends);
  });
  impl_->group.set_number(number);
  ranks->collectives->agree("the data", impl_->batches.content_hash());
  const Fingerprint own = process_fingerprint(*impl_->backend);
  ranks->collectives->agree("the build", own.build);
  try {
    impl_->fingerprint = fingerprint_of_ranks(own, *ranks->collectives);
    impl_->connect();
  } catch (const std::exception& error) {
    impl_->group.fail_alone(error);
  }
}

Engine::~Engine() {
  if (impl_ != nullptr) impl_->group.send_call(EngineCall::kDestroy);
}

const EngineConfig& Engine::config() const { return impl_->config; }
const std::vector<ArenaSize>& Engine::arenas() const { return impl_->arenas; }
int64_t Engine::step() const { return impl_->step; }
const PrecisionPlan& Engine::plan() const { return impl_->plan; }
int64_t Engine::heldout_tokens() const { return std::ssize(impl_->batches.heldout_tokens()); }
uint64_t Engine::weights_hash() const try {
  if (impl_->working().sharded()) impl_->group.send_call(EngineCall::kWeightsHash);
  return impl_->weights_hash();
} catch (const std::exception& error) {
  impl_->group.fail_alone(error);
}

Fingerprint Engine::fingerprint() const { return impl_->fingerprint; }

std::string Engine::lacks_fp8() const { return impl_->backend->lacks_fp8(); }

void Engine::initialize() try {
  EngineImpl& self = *impl_;
  self.group.send_call(EngineCall::kInitialize);
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
  impl_->group.fail_alone(error);
}

void Engine::prepare() try {
  EngineImpl& self = *impl_;
  GNOMON_ASSERT(self.ready);
  self.group.send_call(EngineCall::kPrepare);
  const BatchConfig& batch = self.config.batch;
  const int64_t micro_batch = int64_t{1} * batch.sequences * batch.tokens;
  const int64_t rest = self.batches.last_of_heldout();
  for (const ResolvedPlan& plan : plans_to_prepare(self)) {
    PassPlan pass{.sites = &plan.sites, .step = self.step, .record = false};
    for (int micro = 0; micro < std::min(batch.accumulation, 2); ++micro) {
      self.model->prepare(pass, micro_batch, micro > 0);
    }
    if (rest > 0) self.model->prepare_forward(pass, rest);  // of an evaluation
  }
  self.optimizer->norm(self.model->gradients());
} catch (const std::exception& error) {
  impl_->group.fail_alone(error);
}

void Engine::check_plan(const PrecisionPlan& plan) const { impl_->check_plan(plan, "plan"); }

void Engine::set_plan(const PrecisionPlan& plan) {
  EngineImpl& self = *impl_;
  ResolvedPlan resolved = self.check_plan(plan, "plan");
  self.group.send_call(EngineCall::kSetPlan, plan.to_toml());
  try {
    self.change_formats(resolved.formats);
  } catch (const std::exception& error) {
    self.group.fail_alone(error);
  }
  self.scaling.change(resolved.sites);
  self.sites = std::move(resolved.sites);
  self.plan = plan;
}

const EngineMode& Engine::mode() const { return impl_->mode; }

void Engine::set_mode(const EngineMode& mode) {
  if (mode == impl_->mode) return;
  impl_->group.send_call(EngineCall::kSetMode, mode_argument(mode));
  impl_->mode = mode;
  impl_->faults.set_role(mode.role);
}

void Engine::perturb(int64_t seed, double scale) try {
  EngineImpl& self = *impl_;
  GNOMON_ASSERT(self.ready);
  self.group.send_call(EngineCall::kPerturb, perturb_argument(seed, scale));
  self.memory().settle();
  const Shard& shard = self.optimizer->shard();
  edit_on_host(self.memory(), self.optimizer->masters(), [&](std::span<float> masters) {
    self.optimizer->state().forget_sums();
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
  impl_->group.fail_alone(error);
}

StepResult Engine::train_step(StatisticsCollector* collector, bool twice) try {
  EngineImpl& self = *impl_;
  GNOMON_ASSERT(self.ready);
  self.group.send_call(EngineCall::kTrainStep, {}, twice);
  Clock::time_point start = Clock::now();
  const BatchConfig& batch = self.config.batch;
  int64_t step = self.step + 1;
  const std::vector<SitePrecision>& sites = self.in_truth(self.sites, step);
  self.model->begin_step(step);
  StepResult result;
  result.step = step;
  if (twice) {
    compute_gradients_twice(self, step, sites, collector, result);
    if (!result.committed) return result;
  } else {
    compute_gradients(self, step, sites, collector, nullptr);
  }
  result.casts = summarize_casts(self);
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
    const bool kept =
        self.optimizer->update(step, result.learning_rate, result.grad_norm, gradients,
                               self.working().updated(self.optimizer->shard()));
    double changed = kept ? 0 : 1;
    self.collectives.all_reduce_sum(std::span(&changed, 1));
    result.state_changed = changed > 0;
    spoil_second_moments(self, step);
    self.share_weights();
  }
  self.scaling.finish_step(
      sites, [&](int site, TensorRole role) { return self.faults.frozen(site, role, step); });
  self.step = step;
  strike_weights(self);
  result.batch_hash = self.batch_hash;
  result.weights_hash = self.weights_hash();
  self.check_weights(result.weights_hash);
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return result;
} catch (const std::exception& error) {
  impl_->group.fail_alone(error);
}

std::vector<SiteScoreRow> Engine::scores(const PrecisionPlan& plan, int64_t at) {
  GNOMON_ASSERT(impl_->ready && at > impl_->step);
  return score_sites(*impl_, plan, at);
}

void Engine::allocate_snapshot_memory() {
  EngineImpl& self = *impl_;
  GNOMON_ASSERT(self.kept_state == nullptr);
  self.group.send_call(EngineCall::kSnapshotMemory);
  do_together(self.collectives, [&] { self.kept_state = make_snapshot_room(self); });
  self.arenas.push_back({self.kept_state->arena.name(), self.kept_state->arena.bytes()});
}

void Engine::snapshot() try {
  GNOMON_ASSERT(impl_->ready && impl_->kept_state != nullptr);
  impl_->group.send_call(EngineCall::kSnapshot);
  take_snapshot(*impl_);
} catch (const std::exception& error) {
  impl_->group.fail_alone(error);
}

void Engine::restore() try {
  GNOMON_ASSERT(impl_->has_kept);
  impl_->group.send_call(EngineCall::kRestore);
  restore_snapshot(*impl_);
} catch (const std::exception& error) {
  impl_->group.fail_alone(error);
}

double Engine::inspect(int64_t step, StatisticsCollector& collector) try {
  GNOMON_ASSERT(impl_->ready);
  impl_->group.send_call(EngineCall::kInspect);
  return inspect_step(*impl_, step, collector);
} catch (const std::exception& error) {
  impl_->group.fail_alone(error);
}

void Engine::accompany_inspection() {
  GNOMON_ASSERT(impl_->ready);
  impl_->model->accompany(true);
}

std::unique_ptr<StatisticsCollector> Engine::statistics(const StatisticsConfig& statistics,
                                                        const std::string& file) const {
  const EngineImpl& self = *impl_;
  const int layers = self.config.model.layers;
  check_statistics(statistics, self.model->sites(), layers, file);
  if (self.config.compute == Compute::kFp32) {
    throw ConfigError(file, 0, "model.compute", "fp32", "\"bf16\" for tensor statistics");
  }
  return std::make_unique<StatisticsCollector>(statistics, self.model->sites(), layers,
                                               self.model->layout(), *self.backend);
}

double Engine::evaluate(const PrecisionPlan& plan) {
  GNOMON_ASSERT(impl_->ready);
  const std::vector<SitePrecision> planned = impl_->resolve(plan).sites;
  impl_->group.send_call(EngineCall::kEvaluate, plan.to_toml());
  try {
    return evaluate_heldout(*impl_, planned);
  } catch (const std::exception& error) {
    impl_->group.fail_alone(error);
  }
}

std::vector<Engine::Part> Engine::evaluated_parts() const {
  const BatchConfig& batch = impl_->config.batch;
  const int64_t most = int64_t{1} * batch.sequences * batch.tokens;
  std::vector<Part> parts;
  int64_t left = heldout_tokens();
  for (double loss : impl_->losses) {
    parts.push_back({loss, std::min(most, left)});
    left -= parts.back().tokens;
  }
  return parts;
}

CheckpointContent Engine::checkpoint() const {
  CheckpointContent content = checkpoint_in_place();
  bring_to_host(*impl_, content);
  return content;
}

Memory& Engine::memory() const { return impl_->memory(); }

CheckpointContent Engine::checkpoint_in_place() const try {
  GNOMON_ASSERT(impl_->ready);
  impl_->group.send_call(EngineCall::kCheckpoint);
  return content_in_place(*impl_);
} catch (const std::exception& error) {
  impl_->group.fail_alone(error);
}

void Engine::load(const std::filesystem::path& checkpoint, bool with_plan) {
  impl_->group.send_call(EngineCall::kLoad, checkpoint.string(), with_plan);
  // Every rank reads; the state changes only when all could.
  std::function<void()> apply;
  do_together(impl_->collectives, [&] { apply = read_checkpoint(*impl_, checkpoint, with_plan); });
  try {
    apply();
  } catch (const std::exception& error) {
    impl_->group.fail_alone(error);
  }
}

}  // namespace gnomon

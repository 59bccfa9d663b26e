// Passes of an Engine that change no state: held-out losses and looks at tensors.
#include <algorithm>

#include "base/errors.h"
#include "trainer/engine/engine_impl.h"
#include "trainer/engine/statistics_collector.h"

namespace gnomon {

double Engine::inspect(int64_t step, StatisticsCollector& collector) try {
  Impl& self = *impl_;
  GNOMON_ASSERT(self.ready);
  self.send_call(EngineCall::kInspect);
  self.read_batch(step, 0);
  const std::vector<SitePrecision>& sites = self.in_truth(self.sites, step);
  collector.begin(std::ssize(self.tokens), sites);
  PassPlan pass{.sites = &sites,
                .step = step,
                .record = false,
                .observer = &collector,
                .fakequant = self.mode.fakequant};
  const double scale = 1.0 / static_cast<double>(self.config.batch.tokens_per_step());
  const double loss = self.model->forward_backward(pass, self.tokens, self.targets,
                                                   static_cast<float>(scale), false);
  collector.weight_gradients(self.model->gradients());
  return loss / static_cast<double>(self.tokens.size());
} catch (const std::exception& error) {
  impl_->fail_alone(error);
}

void Engine::accompany_inspection() {
  GNOMON_ASSERT(impl_->ready);
  impl_->model->accompany(true);
}

std::unique_ptr<StatisticsCollector> Engine::statistics(const StatisticsConfig& statistics,
                                                        const std::string& file) const {
  const Impl& self = *impl_;
  const int layers = self.config.model.layers;
  check_statistics(statistics, self.model->sites(), layers, file);
  if (self.config.compute == Compute::kFp32) {
    throw ConfigError(file, 0, "model.compute", "fp32", "\"bf16\" for tensor statistics");
  }
  return std::make_unique<StatisticsCollector>(statistics, self.model->sites(), layers,
                                               self.model->layout(), *self.backend);
}

double Engine::evaluate(const PrecisionPlan& plan) {
  Impl& self = *impl_;
  GNOMON_ASSERT(self.ready);
  const std::vector<SitePrecision> planned = self.resolve(plan).sites;
  self.send_call(EngineCall::kEvaluate, plan.to_toml());
  try {
    PassPlan pass{.sites = &self.in_truth(planned, self.step),
                  .step = self.step,
                  .record = false,
                  .fakequant = self.mode.fakequant};
    std::span<const int32_t> tokens = self.heldout_tokens;
    std::span<const int32_t> targets = self.heldout_targets;
    size_t most = static_cast<size_t>(self.config.batch.sequences) *
                  static_cast<size_t>(self.config.batch.tokens);
    // Dealt out in turn and added up in their order: the same bits for any number of ranks.
    self.losses.assign((tokens.size() + most - 1) / most, 0.0);
    const auto ranks = static_cast<size_t>(self.collectives.size());
    for (size_t first = 0; first < self.losses.size(); first += ranks) {
      const size_t i = first + static_cast<size_t>(self.collectives.rank());
      if (i >= self.losses.size()) {
        self.model->accompany(false);
        continue;
      }
      size_t at = i * most, count = std::min(most, tokens.size() - at);
      self.losses[i] =
          self.model->forward(pass, tokens.subspan(at, count), targets.subspan(at, count));
    }
    self.collectives.all_reduce_sum(self.losses);
    double loss_sum = 0;
    for (double loss : self.losses) loss_sum += loss;
    return loss_sum / static_cast<double>(tokens.size());
  } catch (const std::exception& error) {
    self.fail_alone(error);
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

}  // namespace gnomon

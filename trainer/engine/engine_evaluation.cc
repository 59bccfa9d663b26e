// Passes of an Engine that change no state: held-out losses and looks at tensors.
#include <algorithm>

#include "base/errors.h"
#include "trainer/engine/engine_impl.h"
#include "trainer/engine/statistics_collector.h"

namespace gnomon {

double inspect_step(EngineImpl& self, int64_t step, StatisticsCollector& collector) {
  self.read_batch(step, 0);
  const std::vector<SitePrecision>& sites = self.in_truth(self.sites, step);
  collector.begin(std::ssize(self.batches.tokens()), sites);
  PassPlan pass{.sites = &sites,
                .step = step,
                .record = false,
                .observer = &collector,
                .fakequant = self.mode.fakequant};
  const double scale = 1.0 / static_cast<double>(self.config.batch.tokens_per_step());
  const double loss = self.model->forward_backward(
      pass, self.batches.tokens(), self.batches.targets(), static_cast<float>(scale), false);
  collector.weight_gradients(self.model->gradients());
  return loss / static_cast<double>(self.batches.tokens().size());
}

double evaluate_heldout(EngineImpl& self, const std::vector<SitePrecision>& planned) {
  PassPlan pass{.sites = &self.in_truth(planned, self.step),
                .step = self.step,
                .record = false,
                .fakequant = self.mode.fakequant};
  std::span<const int32_t> tokens = self.batches.heldout_tokens();
  std::span<const int32_t> targets = self.batches.heldout_targets();
  size_t most = static_cast<size_t>(self.config.batch.sequences) *
                static_cast<size_t>(self.config.batch.tokens);
  // Dealt out in turn and added up in their order: the same bits for any number of ranks.
  self.losses.assign((tokens.size() + most - 1) / most, 0.0);
  const auto ranks = static_cast<size_t>(self.group.size());
  for (size_t first = 0; first < self.losses.size(); first += ranks) {
    const size_t i = first + static_cast<size_t>(self.group.rank());
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
}

}  // namespace gnomon

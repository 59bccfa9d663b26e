// A step's gradients: computed once, or until two computations agree to the bit.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/host.h"
#include "kernels/devices.h"
#include "trainer/engine/engine_impl.h"
#include "trainer/engine/statistics_collector.h"

namespace gnomon {
namespace {

bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

bool same_losses(const GradientDigest& a, const GradientDigest& b) {
  return std::ranges::equal(a.losses, b.losses, same_bits);
}

// Compares a rank's own part: sums differ on every rank where one rank's gradients do.
bool same_here(const GradientDigest& a, const GradientDigest& b) {
  return a.batch == b.batch && same_losses(a, b) && a.gradients == b.gradients &&
         a.amaxes == b.amaxes;
}

bool same(const GradientDigest& a, const GradientDigest& b) {
  return same_here(a, b) && a.sums == b.sums;
}

// The backward pass comes to matrices in the reverse of their order in the layout, and so to norms
// and biases, which stand behind all matrices there.
std::string first_of_backward(const GradientDigest& a, const GradientDigest& b,
                              const ParameterLayout& layout) {
  const Parameter* first = nullptr;
  for (size_t i = a.gradients.size(); i-- > 0;) {
    if (a.gradients[i] == b.gradients[i]) continue;
    const Parameter& parameter = layout.all()[i];
    const bool matrix = parameter.offset < layout.decayed();
    if (matrix) return parameter.name;
    if (first == nullptr) first = &parameter;
  }
  return first->name;
}

// What differs on this rank before ranks are added up; empty: nothing.
std::string difference_here(const GradientDigest& a, const GradientDigest& b,
                            const ParameterLayout& layout) {
  std::vector<std::string> parts;
  if (a.batch != b.batch) parts.emplace_back("the tokens read");
  if (!same_losses(a, b)) {
    const auto [x, y] = std::ranges::mismatch(a.losses, b.losses, same_bits);
    parts.push_back(
        fmt::format("the loss sum of micro-batch {} ({} and {})", x - a.losses.begin(), *x, *y));
  }
  size_t differ = 0;
  for (size_t i = 0; i < a.gradients.size(); ++i) differ += a.gradients[i] != b.gradients[i];
  if (differ > 0) {
    parts.push_back(
        fmt::format("the gradients of {} of {} parameters, {} the first in the order "
                    "of the backward pass",
                    differ, a.gradients.size(), first_of_backward(a, b, layout)));
  }
  if (a.amaxes != b.amaxes) parts.emplace_back("amaxes for delayed scaling");
  return fmt::format("{}", fmt::join(parts, ", "));
}

// What the micro-batches of all ranks left: losses, the largest magnitudes, the gradients of this
// rank's part.
void sum_over_ranks(EngineImpl& self, int64_t at) {
  self.batch_hash = self.batches.hash();
  if (!self.group.many()) return;
  self.batch_hash = self.group.sum(self.batch_hash);
  self.collectives.all_reduce_sum(self.losses);
  self.scaling.combine_observed(
      [&](std::span<double> amaxes) { self.collectives.all_reduce_max(amaxes); });
  spoil_gradients(self, at);
  self.wires->reduce_scatter(self.formats.gradients, self.model->gradients());
}

GradientDigest digest_gradients(EngineImpl& self) {
  GradientDigest digest;
  digest.batch = self.batches.hash();
  digest.losses = self.losses;
  const auto all = std::span<const float>(self.model->gradients());
  for (const Parameter& parameter : self.model->layout().all()) {
    const auto its =
        all.subspan(static_cast<size_t>(parameter.offset), static_cast<size_t>(parameter.size));
    digest.gradients.push_back(self.backend->hash(std::as_bytes(its)));
  }
  self.scaling.combine_observed(
      [&](std::span<double> amaxes) { digest.amaxes.assign(amaxes.begin(), amaxes.end()); });
  return digest;
}

std::vector<std::string> texts_of_ranks(EngineImpl& self, const std::string& own) {
  std::vector<std::string> texts;
  for (int rank = 0; rank < self.collectives.size(); ++rank) {
    std::string text;
    if (rank == self.collectives.rank() && !own.empty()) {
      const std::string bus = device_bus_id(self.config.device);
      text = fmt::format(
          "{}on {} ({}{}): {}",
          self.group.many() ? fmt::format("rank {} of {} ", rank, self.group.size()) : "",
          host_name(), self.backend->device(), bus.empty() ? "" : " at " + bus, own);
    }
    self.collectives.broadcast_text(text, rank);
    if (!text.empty()) texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace

void compute_gradients(EngineImpl& self, int64_t at, const std::vector<SitePrecision>& precisions,
                       StatisticsCollector* collector, GradientDigest* digest) {
  PassPlan pass{.sites = &precisions, .step = at, .record = true, .fakequant = self.mode.fakequant};
  const auto scale =
      static_cast<float>(1.0 / static_cast<double>(self.config.batch.tokens_per_step()));
  const int64_t first = self.first_micro_batch();
  self.losses.assign(static_cast<size_t>(self.config.batch.accumulation), 0.0);
  self.batches.begin();
  self.scaling.forget_observed();
  self.model->begin_counting();
  // So that the first pass makes copies of the weights, whatever was done since the last update.
  self.working().forget_copies();
  for (int64_t micro = first; micro < first + self.micro_batches(); ++micro) {
    self.read_batch(at, micro);
    pass.observer = micro == 0 ? collector : nullptr;
    if (pass.observer != nullptr) collector->begin(std::ssize(self.batches.tokens()), precisions);
    // A fault may act in one step and not in the next; gathers are not recorded.
    pass.repeat_key =
        self.config.faults.empty() && !self.working().sharded()
            ? self.repeat_keys.key(pass, self.scaling.known(), micro > first, *self.backend)
            : 0;
    self.losses[static_cast<size_t>(micro)] = self.model->forward_backward(
        pass, self.batches.tokens(), self.batches.targets(), scale, micro > first);
    if (pass.observer != nullptr) collector->weight_gradients(self.model->gradients());
  }
  self.model->report_observed();
  flip_gradient(self, at);
  if (digest != nullptr) *digest = digest_gradients(self);
  sum_over_ranks(self, at);
  if (digest != nullptr && self.group.many())
    digest->sums = self.backend->hash(std::as_bytes(self.own_gradients()));
}

std::optional<CastSummary> summarize_casts(EngineImpl& self) {
  std::vector<CastCounts> casts = self.model->casts();
  const auto was_cast = [](const CastCounts& tensor) { return tensor.values > 0; };
  // The same on every rank: each has micro-batches, and plan and backend decide what is counted.
  if (std::ranges::none_of(casts, was_cast)) return std::nullopt;
  if (self.group.many()) self.group.sum(casts);
  double saturated = 0, flushed = 0, peak = 0, tensors = 0;
  for (const CastCounts& tensor : casts) {
    if (!was_cast(tensor)) continue;
    const auto log_of_share = [&](int64_t part) {
      constexpr double kLeast = 1e-6;
      return std::log(static_cast<double>(part) / static_cast<double>(tensor.values) + kLeast);
    };
    saturated += log_of_share(tensor.saturated);
    flushed += log_of_share(tensor.flushed);
    peak = std::max(peak, static_cast<double>(tensor.peak));
    ++tensors;
  }
  return CastSummary{std::exp(saturated / tensors), std::exp(flushed / tensors), peak};
}

void compute_gradients_twice(EngineImpl& self, int64_t at,
                             const std::vector<SitePrecision>& precisions,
                             StatisticsCollector* collector, StepResult& result) {
  std::array<GradientDigest, 3> found;
  // Statistics are of the first computation: a collector counts its looks.
  compute_gradients(self, at, precisions, collector, &found[0]);
  compute_gradients(self, at, precisions, nullptr, &found[1]);
  const auto& [first, second, third] = found;
  std::array<double, 2> differ = {same(first, second) ? 0.0 : 1.0, 0.0};
  self.collectives.all_reduce_sum(differ);
  if (differ[0] == 0) return;
  // The last computation is the one whose gradients are there: a rejected one need not be kept.
  compute_gradients(self, at, precisions, nullptr, &found[2]);
  differ = {same(first, third) ? 0.0 : 1.0, same(second, third) ? 0.0 : 1.0};
  self.collectives.all_reduce_sum(differ);
  result.committed = differ[0] == 0 || differ[1] == 0;
  if (!result.committed) self.scaling.forget_observed();
  const bool shows_at_once = !same_here(first, second);
  const ParameterLayout& layout = self.model->layout();
  std::vector<std::string> texts =
      texts_of_ranks(self, shows_at_once ? difference_here(first, second, layout)
                                         : difference_here(second, third, layout));
  if (texts.empty()) {
    const bool sums = first.sums != second.sums || second.sums != third.sums;
    texts = texts_of_ranks(
        self, sums ? "the sums over ranks, though each rank's own gradients do not" : "");
  }
  result.mismatch = fmt::format("{}; a third computation agrees with {}", fmt::join(texts, "; "),
                                !result.committed ? "neither"
                                : differ[0] == 0  ? "the first"
                                                  : "the second");
}

}  // namespace gnomon

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

}  // namespace

void Engine::Impl::compute_gradients(int64_t at, const std::vector<SitePrecision>& precisions,
                                     StatisticsCollector* collector, GradientDigest* digest) {
  PassPlan pass{.sites = &precisions, .step = at, .record = true, .fakequant = mode.fakequant};
  const auto scale = static_cast<float>(1.0 / static_cast<double>(config.batch.tokens_per_step()));
  const int64_t first = first_micro_batch();
  losses.assign(static_cast<size_t>(config.batch.accumulation), 0.0);
  batch_hash = 0;
  scaling.forget_observed();
  model->begin_counting();
  // So that the first pass makes copies of the weights, whatever was done since the last update.
  working().forget_copies();
  for (int64_t micro = first; micro < first + micro_batches(); ++micro) {
    read_batch(at, micro);
    pass.observer = micro == 0 ? collector : nullptr;
    if (pass.observer != nullptr) collector->begin(std::ssize(tokens), precisions);
    // A fault may act in one step and not in the next; gathers are not recorded.
    pass.repeat_key = config.faults.empty() && !working().sharded()
                          ? repeat_keys.key(pass, scaling.known(), micro > first, *backend)
                          : 0;
    losses[static_cast<size_t>(micro)] =
        model->forward_backward(pass, tokens, targets, scale, micro > first);
    if (pass.observer != nullptr) collector->weight_gradients(model->gradients());
  }
  model->report_observed();
  flip_gradient(at);
  if (digest != nullptr) *digest = digest_gradients();
  sum_over_ranks();
  if (digest != nullptr && ranks->many())
    digest->sums = backend->hash(std::as_bytes(own_gradients()));
}

std::optional<CastSummary> Engine::Impl::summarize_casts() {
  const std::span<CastCounts> casts = model->casts();
  const auto was_cast = [](const CastCounts& tensor) { return tensor.values > 0; };
  // The same on every rank: each has micro-batches, and plan and backend decide what is counted.
  if (std::ranges::none_of(casts, was_cast)) return std::nullopt;
  if (ranks->many()) sum_over_ranks(casts);
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

GradientDigest Engine::Impl::digest_gradients() {
  GradientDigest digest;
  digest.batch = batch_hash;
  digest.losses = losses;
  const auto all = std::span<const float>(model->gradients());
  for (const Parameter& parameter : model->layout().all()) {
    const auto its =
        all.subspan(static_cast<size_t>(parameter.offset), static_cast<size_t>(parameter.size));
    digest.gradients.push_back(backend->hash(std::as_bytes(its)));
  }
  scaling.combine_observed(
      [&](std::span<double> amaxes) { digest.amaxes.assign(amaxes.begin(), amaxes.end()); });
  return digest;
}

std::vector<std::string> Engine::Impl::texts_of_ranks(const std::string& own) {
  std::vector<std::string> texts;
  for (int rank = 0; rank < collectives.size(); ++rank) {
    std::string text;
    if (rank == collectives.rank() && !own.empty()) {
      const std::string bus = device_bus_id(config.device);
      text =
          fmt::format("{}on {} ({}{}): {}",
                      ranks->many() ? fmt::format("rank {} of {} ", rank, collectives.size()) : "",
                      host_name(), backend->device(), bus.empty() ? "" : " at " + bus, own);
    }
    collectives.broadcast_text(text, rank);
    if (!text.empty()) texts.push_back(std::move(text));
  }
  return texts;
}

void Engine::Impl::compute_gradients_twice(int64_t at, const std::vector<SitePrecision>& precisions,
                                           StatisticsCollector* collector, StepResult& result) {
  std::array<GradientDigest, 3> found;
  // Statistics are of the first computation: a collector counts its looks.
  compute_gradients(at, precisions, collector, &found[0]);
  compute_gradients(at, precisions, nullptr, &found[1]);
  const auto& [first, second, third] = found;
  std::array<double, 2> differ = {same(first, second) ? 0.0 : 1.0, 0.0};
  collectives.all_reduce_sum(differ);
  if (differ[0] == 0) return;
  // The last computation is the one whose gradients are there: a rejected one need not be kept.
  compute_gradients(at, precisions, nullptr, &found[2]);
  differ = {same(first, third) ? 0.0 : 1.0, same(second, third) ? 0.0 : 1.0};
  collectives.all_reduce_sum(differ);
  result.committed = differ[0] == 0 || differ[1] == 0;
  if (!result.committed) scaling.forget_observed();
  const bool shows_at_once = !same_here(first, second);
  const ParameterLayout& layout = model->layout();
  std::vector<std::string> texts =
      texts_of_ranks(shows_at_once ? difference_here(first, second, layout)
                                   : difference_here(second, third, layout));
  if (texts.empty()) {
    const bool sums = first.sums != second.sums || second.sums != third.sums;
    texts =
        texts_of_ranks(sums ? "the sums over ranks, though each rank's own gradients do not" : "");
  }
  result.mismatch = fmt::format("{}; a third computation agrees with {}", fmt::join(texts, "; "),
                                !result.committed ? "neither"
                                : differ[0] == 0  ? "the first"
                                                  : "the second");
}

}  // namespace gnomon

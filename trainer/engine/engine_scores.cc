// The passes of an analysis by site (site_scores.h).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <optional>

#include "base/errors.h"
#include "trainer/engine/engine_impl.h"
#include "trainer/engine/site_scores.h"

namespace gnomon {
namespace {

// How far the weights are displaced along V, against their own size: as far as errors of the second
// order stay small beside what BF16 rounds away of the inputs.
constexpr double kDisplacement = 0x1p-6;
// Where an element is smaller than this part of what is usual in its tensor (a rule's size()), V
// takes its slope for that of one of this size: a slope of 1/ε at an element that no gradient has
// reached yet says nothing of errors of real size.
constexpr double kLeastRoot = 0x1p-4;
// φ is an expansion in the site's error. It is no guide where the error is not small beside the
// output, or where φ itself says that the loss moves far; there the loss is measured.
constexpr double kLeastSqnr = 10;     // dB
constexpr double kLargestPhi = 0.05;  // nats
constexpr size_t kPoisonedMost = 8;   // sites
constexpr int64_t kPoisonedPart = 8;  // of the held-out sequences, one in so many

// The moments, on the host.
class Moments {
  std::deque<std::vector<std::byte>> copies_;  // before what is made with it

 public:
  Moments(Memory& memory, const MomentSpans& of)
      : first(bring(memory, of[0])),
        second(bring(memory, of[1])),
        has_second_(moment_elements(second) > 0) {}
  Moments(const Moments&) = delete;
  Moments& operator=(const Moments&) = delete;

  MomentSpan first, second;
  double m(int64_t i) const { return static_cast<double>(moment_value(first, Format::kE4m3, i)); }
  // 0 where the optimizer has none.
  double v(int64_t i) const {
    return has_second_ ? static_cast<double>(moment_value(second, Format::kE5m2, i)) : 0;
  }

 private:
  MomentSpan bring(Memory& memory, const MomentSpan& moments) {
    if (memory.on_host()) return moments;
    const auto copy = [&](auto& values) {
      std::vector<std::byte>& room = copies_.emplace_back(values.size_bytes());
      if (!room.empty()) memory.read(std::as_bytes(values), room.data());
      values = {reinterpret_cast<decltype(values.data())>(room.data()), values.size()};
    };
    MomentSpan found = moments;
    if (auto* fp8 = std::get_if<Fp8Moments>(&found)) {
      copy(fp8->codes);
      copy(fp8->scales);
    } else if (auto* values = std::get_if<std::span<bf16>>(&found)) {
      copy(*values);
    } else {
      copy(std::get<std::span<float>>(found));
    }
    return found;
  }

  bool has_second_;
};

// The model's working weights, for as long as others stand in their place.
class WeightSwap {
 public:
  explicit WeightSwap(DecoderModel& model)
      : model_(model), weights_(std::get<std::span<bf16>>(model.working_weights())) {
    const HostView<bf16> now(model.memory(), weights_);
    own_.assign(now.begin(), now.end());
  }
  WeightSwap(const WeightSwap&) = delete;
  WeightSwap& operator=(const WeightSwap&) = delete;
  ~WeightSwap() { restore(); }

  void put(std::span<const bf16> others) {
    model_.memory().settle();
    write_from_host(model_.memory(), others, weights_);
    model_.weights_changed();
  }
  void restore() { put(own_); }

 private:
  DecoderModel& model_;
  std::span<bf16> weights_;
  std::vector<bf16> own_;
};

// One analysis: the passes in their order, and what they leave.
struct SiteAnalysis {
  SiteAnalysis(EngineImpl& engine, std::vector<SitePrecision> in_fp8, int64_t at)
      : self(engine),
        step(at),
        fp8(std::move(in_fp8)),
        bf16_sites(fp8.size()),
        scorer(dynamic_cast<Backend&>(*engine.backend), engine.faults, engine.scaling,
               {.sites = &fp8, .step = at, .fakequant = engine.mode.fakequant}),
        moments(engine.memory(), engine.optimizer->moments()) {
    for (int site = 0; site < static_cast<int>(fp8.size()); ++site) {
      const std::span<std::byte> stale = self.model->stale_weight(site, at);
      if (!stale.empty()) scorer.set_stale_weight(site, stale);
    }
    const OptimizerConfig& optimizer = self.config.optimizer;
    const double t = static_cast<double>(self.optimizer->state().updates() + 1);
    update = {.learning_rate = optimizer.at(self.step + 1) * self.faults.learning_rate_factor(step),
              .beta1 = optimizer.beta1,
              .beta2 = optimizer.beta2,
              .eps = optimizer.eps,
              .weight_decay = 0,
              .bias_correction1 = 1 - std::pow(optimizer.beta1, t),
              .bias_correction2 = 1 - std::pow(optimizer.beta2, t),
              .gradient_scale = 1,
              .optimizer = optimizer.name};
  }

  PassPlan pass(bool looks) {
    return {.sites = &bf16_sites, .step = step, .observer = looks ? &scorer : nullptr};
  }
  bool any(Gemm gemm) const {
    return std::ranges::any_of(fp8, [&](const SitePrecision& it) { return it.uses_fp8(gemm); });
  }
  std::span<const float> gradients() const { return self.model->gradients(); }
  double clip(double of_norm) const {
    const double most = self.config.optimizer.clip;
    return most > 0 && of_norm > most ? most / of_norm : 1.0;
  }

  void look_at_heldout();
  void look_at_step();
  // Measures the loss with one site alone in FP8, at the sites where φ is no guide.
  void poison();
  double loss_on_part(const std::vector<SitePrecision>& sites);
  double phi(int site) const;
  double pass_over_step(int64_t micro, const PassPlan& how);
  // V.
  template <class Rule>
  void fill_direction(const Rule& rule, std::span<const float> step_gradient,
                      std::span<float> direction) const;
  std::vector<bf16> displaced_weights(double& length) const;
  double wgrad(int site) const;

  EngineImpl& self;
  int64_t step;
  std::vector<SitePrecision> fp8, bf16_sites;
  SiteScorer scorer;
  Moments moments;
  UpdateOf<double> update = {};
  std::vector<float> heldout_gradient;
  std::map<int, double> poisoned;  // by site: L(it alone in FP8) − L16; at most kPoisonedMost
  std::optional<double> least_measured;  // finite one of these
  double norm = 0;                       // of the step's gradient in BF16
};

void SiteAnalysis::look_at_heldout() {
  const std::span<const int32_t> tokens = self.batches.heldout_tokens();
  const std::span<const int32_t> targets = self.batches.heldout_targets();
  const size_t most = static_cast<size_t>(self.config.batch.sequences) *
                      static_cast<size_t>(self.config.batch.tokens);
  scorer.look_at_outputs(std::ssize(tokens));
  const float scale = static_cast<float>(1.0 / static_cast<double>(tokens.size()));
  for (size_t at = 0; at < tokens.size(); at += most) {
    const size_t count = std::min(most, tokens.size() - at);
    self.model->forward_backward(pass(true), tokens.subspan(at, count), targets.subspan(at, count),
                                 scale, at > 0);
  }
  const HostView<float> gradient(self.memory(), gradients());
  heldout_gradient.assign(gradient.begin(), gradient.end());
}

double SiteAnalysis::loss_on_part(const std::vector<SitePrecision>& sites) {
  const int64_t length = self.config.batch.tokens;
  const int64_t sequences = std::ssize(self.batches.heldout_tokens()) / length;
  const auto part = static_cast<size_t>(length * ((sequences + kPoisonedPart - 1) / kPoisonedPart));
  const std::span<const int32_t> tokens = self.batches.heldout_tokens().first(part);
  const std::span<const int32_t> targets = self.batches.heldout_targets().first(part);
  const auto most = static_cast<size_t>(self.config.batch.sequences * length);
  const PassPlan how{
      .sites = &sites, .step = step, .record = false, .fakequant = self.mode.fakequant};
  double sum = 0;
  for (size_t at = 0; at < part; at += most) {
    const size_t count = std::min(most, part - at);
    sum += self.model->forward(how, tokens.subspan(at, count), targets.subspan(at, count));
  }
  return sum / static_cast<double>(part);
}

void SiteAnalysis::poison() {
  std::vector<int> doubtful;
  for (int site = 0; site < static_cast<int>(fp8.size()); ++site) {
    if (!fp8[static_cast<size_t>(site)].uses_fp8(Gemm::kFprop)) continue;
    const SiteScorer::Found& found = scorer.found(site);
    const bool small = found.sqnr_db() >= kLeastSqnr && std::abs(found.phi()) <= kLargestPhi;
    if (!small) doubtful.push_back(site);
  }
  const auto suspicion = [this](int site) {
    const double value = scorer.found(site).phi();
    return std::isfinite(value) ? value : HUGE_VAL;
  };
  std::ranges::stable_sort(doubtful, std::greater<>(), suspicion);
  if (doubtful.size() > kPoisonedMost) doubtful.resize(kPoisonedMost);
  if (doubtful.empty()) return;
  const double in_bf16 = loss_on_part(bf16_sites);
  for (int site : doubtful) {
    std::vector<SitePrecision> alone = bf16_sites;
    alone[static_cast<size_t>(site)] = fp8[static_cast<size_t>(site)];
    const double cost = loss_on_part(alone) - in_bf16;
    poisoned[site] = cost;
    if (std::isfinite(cost)) least_measured = std::min(least_measured.value_or(cost), cost);
  }
}

// A site that was passed over because others were more suspicious counts as no more than these.
double SiteAnalysis::phi(int site) const {
  if (const auto measured = poisoned.find(site); measured != poisoned.end())
    return measured->second;
  const double value = scorer.found(site).phi();
  return least_measured && poisoned.size() >= kPoisonedMost ? std::min(value, *least_measured)
                                                            : value;
}

double SiteAnalysis::pass_over_step(int64_t micro, const PassPlan& how) {
  const double tokens = static_cast<double>(self.config.batch.tokens_per_step());
  return self.model->forward_backward(how, self.batches.tokens(), self.batches.targets(),
                                      static_cast<float>(1.0 / tokens), micro > 0);
}

template <class Rule>
void SiteAnalysis::fill_direction(const Rule& rule, std::span<const float> step_gradient,
                                  std::span<float> direction) const {
  const double clipped = clip(norm);
  for (const Parameter& parameter : self.model->layout().all()) {
    const auto begin = parameter.offset, end = parameter.offset + parameter.size;
    double squares = 0;
    for (int64_t i = begin; i < end; ++i) squares += rule.size(moments.m(i), moments.v(i));
    const double least = kLeastRoot * std::sqrt(squares / static_cast<double>(parameter.size));
    for (int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<size_t>(i);
      const double gradient = static_cast<double>(step_gradient[at]) * clipped;
      const double slope = -clipped * rule.slope(gradient, moments.m(i), moments.v(i), least);
      direction[at] = static_cast<float>(slope * static_cast<double>(heldout_gradient[at]));
    }
  }
}

// `length` is what V was multiplied by.
std::vector<bf16> SiteAnalysis::displaced_weights(double& length) const {
  const HostView<float> masters(self.memory(), self.optimizer->masters());
  const HostView<float> step_gradient(self.memory(), gradients());
  const ParameterLayout& layout = self.model->layout();
  std::vector<float> direction(masters.get().size());
  with_rule(update,
            [&](const auto& rule) { fill_direction(rule, step_gradient.get(), direction); });
  double of_weights = 0, of_direction = 0;
  for (const Parameter& parameter : layout.all()) {
    if (parameter.offset >= layout.decayed() || &parameter == &layout[layout.embedding()]) continue;
    for (int64_t i = parameter.offset; i < parameter.offset + parameter.size; ++i) {
      const double weight = static_cast<double>(masters[static_cast<size_t>(i)]);
      const double v = static_cast<double>(direction[static_cast<size_t>(i)]);
      of_weights += weight * weight;
      of_direction += v * v;
    }
  }
  length = of_direction > 0 ? kDisplacement * std::sqrt(of_weights / of_direction) : 1;
  std::vector<bf16> displaced(direction.size());
  for (size_t i = 0; i < displaced.size(); ++i) {
    displaced[i] = to_bf16(static_cast<float>(static_cast<double>(masters[i]) +
                                              length * static_cast<double>(direction[i])));
  }
  return displaced;
}

void SiteAnalysis::look_at_step() {
  const int64_t micro_batches = self.config.batch.accumulation;
  for (int64_t micro = 0; micro < micro_batches; ++micro) {
    self.read_batch(step, micro);
    pass_over_step(micro, pass(false));
  }
  norm = self.optimizer->norm(gradients());
  double length = 1;
  std::vector<bf16> displaced;
  std::optional<WeightSwap> weights;
  if (any(Gemm::kDgrad)) {
    displaced = displaced_weights(length);
    weights.emplace(*self.model);
  }
  for (int64_t micro = 0; micro < micro_batches; ++micro) {
    self.read_batch(step, micro);
    if (weights) {
      scorer.look_at_displaced_inputs(length);
      weights->put(displaced);
      self.model->forward(pass(true), self.batches.tokens(), self.batches.targets());
      weights->restore();
    }
    scorer.look_at_gradients(micro > 0);
    pass_over_step(micro, pass(true));
  }
}

// The first term of ψ. Clipping is by the norm that the gradient has with this site's in FP8.
double SiteAnalysis::wgrad(int site) const {
  const HostView<float> found(self.memory(), scorer.weight_gradient_error(site));
  const std::span<const float> errors = found.get();
  if (errors.empty()) return 0;
  const int64_t offset =
      self.model->layout().weight_of(self.model->sites()[static_cast<size_t>(site)]).offset;
  const HostView<float> high(self.memory(),
                             gradients().subspan(static_cast<size_t>(offset), errors.size()));
  double squares = norm * norm;
  for (size_t i = 0; i < errors.size(); ++i) {
    const double error = static_cast<double>(errors[i]);
    squares += error * (2 * static_cast<double>(high[i]) + error);
  }
  const double clip16 = clip(norm), clip8 = clip(std::sqrt(std::max(squares, 0.0)));
  double sum = 0;
  with_rule(update, [&](const auto& rule) {
    for (size_t i = 0; i < errors.size(); ++i) {
      const int64_t at = offset + static_cast<int64_t>(i);
      const double dw16 = static_cast<double>(high[i]);
      const auto subtracted = [&](double gradient) {
        double m = moments.m(at), v = moments.v(at);
        return rule.step(gradient, m, v);
      };
      const double less =
          subtracted((dw16 + static_cast<double>(errors[i])) * clip8) - subtracted(dw16 * clip16);
      sum -= static_cast<double>(heldout_gradient[static_cast<size_t>(at)]) * less;
    }
  });
  return sum;
}

}  // namespace

std::vector<SiteScoreRow> score_sites(EngineImpl& self, const PrecisionPlan& plan, int64_t at) {
  plan.check_sites(self.model->sites(), self.config.model.layers);
  if (self.group.many()) {
    throw Error(
        fmt::format("an analysis of a checkpoint by site (arm scores) runs on one rank, "
                    "not on {}",
                    self.group.size()));
  }
  const std::vector<SitePrecision> planned = self.resolve(plan).sites;
  std::vector<SitePrecision> fp8 = self.in_truth(planned, at);
  std::vector<SiteScoreRow> rows;
  if (std::ranges::none_of(fp8, [](const SitePrecision& it) { return it.any_fp8(); })) return rows;
  SiteAnalysis analysis(self, std::move(fp8), at);
  analysis.look_at_heldout();
  analysis.poison();
  const bool backward = analysis.any(Gemm::kDgrad) || analysis.any(Gemm::kWgrad);
  if (backward) analysis.look_at_step();
  for (int site = 0; site < static_cast<int>(analysis.fp8.size()); ++site) {
    if (!analysis.fp8[static_cast<size_t>(site)].any_fp8()) continue;
    const SiteScorer::Found& found = analysis.scorer.found(site);
    rows.push_back({self.model->sites()[static_cast<size_t>(site)], analysis.phi(site),
                    analysis.wgrad(site) + found.dgrad, found.sqnr_db()});
  }
  return rows;
}

}  // namespace gnomon

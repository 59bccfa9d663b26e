#include "lab/accumulation/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>

#include "base/errors.h"

namespace gnomon {
namespace {

bool same(float x, float y) {
  return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y) || (x == 0 && y == 0);
}

void add(const Agreement& it, VariantScore& score) {
  score.outputs += it.outputs;
  score.equal += it.equal;
  score.difference_mean += it.difference;  // a sum until all are there
  score.difference_max = std::max(score.difference_max, it.difference);
  score.relative_error_max = std::max(score.relative_error_max, it.relative_error_max);
}

VariantScore score_of(const Agreement& it) {
  VariantScore score;
  add(it, score);
  return score;
}

ProductReport report_of(const ProblemSpec& spec, const std::string& algorithm,
                        const std::vector<float>& device,
                        const std::vector<std::vector<float>>& emulated) {
  ProductReport report{spec, algorithm, {}, 0};
  std::vector<VariantScore> scores;
  for (const std::vector<float>& ours : emulated) {
    report.agreements.push_back(agreement(device, ours));
    scores.push_back(score_of(report.agreements.back()));
  }
  report.best = best_of(scores);
  return report;
}

void finish(ModeReport& mode) {
  for (VariantScore& score : mode.scores) {
    score.difference_mean /= static_cast<double>(mode.products.size());
  }
  mode.best = best_of(mode.scores);
  const VariantScore& best = mode.scores[mode.best];
  for (size_t v = 0; v < mode.scores.size(); ++v) {
    const bool tied = mode.scores[v].equal == best.equal &&
                      mode.scores[v].difference_mean == best.difference_mean;
    if (tied) mode.tied.push_back(v);
  }
}

}  // namespace

Agreement agreement(std::span<const float> device, std::span<const float> ours) {
  GNOMON_ASSERT(device.size() == ours.size());
  Agreement found{std::ssize(device), 0, 0, 0};
  double gap = 0, squares = 0;
  for (size_t i = 0; i < device.size(); ++i) {
    const double x = static_cast<double>(device[i]), y = static_cast<double>(ours[i]);
    squares += x * x + y * y;
    if (same(device[i], ours[i])) {
      ++found.equal;
      continue;
    }
    gap += (x - y) * (x - y);
    const double error = std::abs(x - y) / std::max(std::abs(x), std::abs(y));
    found.relative_error_max = std::max(found.relative_error_max, std::isnan(error) ? 2 : error);
  }
  // The same as 1 − 2⟨x,y⟩/(‖x‖² + ‖y‖²), without its cancellation; NaN or infinity is all wrong.
  if (gap != 0) found.difference = gap / squares;
  if (!std::isfinite(found.difference)) found.difference = 1;
  return found;
}

std::string EmulatedDevice::name() const {
  return fmt::format("emulated ({}; fast: {})", promoted_.name(), fast_.name());
}

std::vector<DeviceProduct> EmulatedDevice::multiply(const ProductProblem& problem,
                                                    bool fast_accumulate) {
  const Variant& variant = fast_accumulate ? fast_ : promoted_;
  return {{"emulation", gnomon::multiply(variant, problem, threads_)}};
}

double VariantScore::equal_share() const {
  return outputs == 0 ? 0 : static_cast<double>(equal) / static_cast<double>(outputs);
}

size_t best_of(std::span<const VariantScore> scores) {
  GNOMON_ASSERT(!scores.empty());
  auto before = [](const VariantScore& x, const VariantScore& y) {
    return std::tuple(-x.equal, x.difference_mean) < std::tuple(-y.equal, y.difference_mean);
  };
  return static_cast<size_t>(std::ranges::min_element(scores, before) - scores.begin());
}

bool ModeReport::explained() const {
  return scores[best].equal == scores[best].outputs && scores[best].outputs > 0;
}

bool Comparison::defaults_hold() const {
  return std::ranges::all_of(modes, [this](const ModeReport& mode) {
    const Variant wanted = default_variant(mode.fast_accumulate);
    return std::ranges::any_of(mode.tied, [&](size_t v) { return candidates[v] == wanted; });
  });
}

Comparison compare(ProductDevice& device, const std::vector<ProblemSpec>& problems,
                   const std::vector<Variant>& candidates, const ComparisonOptions& options,
                   const std::function<void(const ProblemSpec&, size_t, size_t)>& progress) {
  Comparison comparison{candidates, {}};
  for (bool fast : {false, true}) {
    comparison.modes.push_back({fast, std::vector<VariantScore>(candidates.size()), 0, {}, {}});
  }
  for (size_t p = 0; p < problems.size(); ++p) {
    progress(problems[p], p, problems.size());
    const ProductProblem problem = make_problem(problems[p], options.seed + p);
    const Sample sample = sample_of(problems[p], options.sample);
    const ProductProblem part = part_of(problem, sample);
    std::vector<std::vector<float>> emulated(candidates.size());
#pragma omp parallel for num_threads(options.threads) schedule(dynamic)
    for (size_t v = 0; v < candidates.size(); ++v) emulated[v] = multiply(candidates[v], part, 1);
    for (ModeReport& mode : comparison.modes) {
      for (const DeviceProduct& product : device.multiply(problem, mode.fast_accumulate)) {
        mode.products.push_back(report_of(problems[p], product.algorithm,
                                          part_of(product.d, problems[p], sample), emulated));
        for (size_t v = 0; v < candidates.size(); ++v) {
          add(mode.products.back().agreements[v], mode.scores[v]);
        }
      }
    }
  }
  for (ModeReport& mode : comparison.modes) finish(mode);
  return comparison;
}

}  // namespace gnomon

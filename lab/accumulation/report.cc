#include "lab/accumulation/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "cli/table.h"

namespace gnomon {
namespace {

boost::json::object variant_to_json(const Variant& it) {
  boost::json::object object{{"name", it.name()}};
  if (it.kind != SumKind::kTensorCore) return object;
  object["terms"] = it.sum.terms;
  object["fraction_bits"] = it.sum.fraction_bits;
  object["result_bits"] = it.sum.result_bits;
  object["promote_every"] = it.promote_every;
  return object;
}

boost::json::object score_to_json(const Variant& variant, const VariantScore& score) {
  boost::json::object object = variant_to_json(variant);
  object["equal_share"] = score.equal_share();
  object["difference_mean"] = score.difference_mean;
  object["difference_max"] = score.difference_max;
  object["relative_error_max"] = score.relative_error_max;
  return object;
}

boost::json::object agreement_to_json(const Variant& variant, const Agreement& it) {
  return {{"name", variant.name()},
          {"equal_share", static_cast<double>(it.equal) / static_cast<double>(it.outputs)},
          {"difference", it.difference},
          {"relative_error_max", it.relative_error_max}};
}

// The default of the mode, and the two that are no tensor core's.
std::vector<size_t> landmarks(const std::vector<Variant>& candidates, bool fast_accumulate) {
  std::vector<size_t> found;
  for (size_t v = 0; v < candidates.size(); ++v) {
    if (candidates[v] == default_variant(fast_accumulate) ||
        candidates[v].kind != SumKind::kTensorCore) {
      found.push_back(v);
    }
  }
  return found;
}

boost::json::object product_to_json(const Comparison& comparison, const ModeReport& mode,
                                    const ProductReport& product) {
  const ProblemSpec& s = product.spec;
  boost::json::array others;
  for (size_t v : landmarks(comparison.candidates, mode.fast_accumulate)) {
    others.push_back(agreement_to_json(comparison.candidates[v], product.agreements[v]));
  }
  return {{"a_format", format_name(s.a_format)},
          {"b_format", format_name(s.b_format)},
          {"m", s.m},
          {"n", s.n},
          {"k", s.k},
          {"data", data_kind_name(s.kind)},
          {"algorithm", product.algorithm},
          {"best", agreement_to_json(comparison.candidates[product.best],
                                     product.agreements[product.best])},
          {"others", std::move(others)}};
}

boost::json::object mode_to_json(const Comparison& comparison, const ModeReport& mode) {
  boost::json::array tied, scores, products;
  for (size_t v : mode.tied) tied.push_back(variant_to_json(comparison.candidates[v]));
  for (size_t v = 0; v < mode.scores.size(); ++v) {
    scores.push_back(score_to_json(comparison.candidates[v], mode.scores[v]));
  }
  for (const ProductReport& product : mode.products) {
    products.push_back(product_to_json(comparison, mode, product));
  }
  return {{"fast_accumulate", mode.fast_accumulate},
          {"best", score_to_json(comparison.candidates[mode.best], mode.scores[mode.best])},
          {"tied", std::move(tied)},
          {"explains_every_bit", mode.explained()},
          {"candidates", std::move(scores)},
          {"products", std::move(products)}};
}

std::string mode_in_words(const Comparison& comparison, const ModeReport& mode, int lines) {
  std::vector<size_t> order(mode.scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t x, size_t y) {
    const VariantScore &a = mode.scores[x], &b = mode.scores[y];
    return std::tuple(-a.equal, a.difference_mean) < std::tuple(-b.equal, b.difference_mean);
  });
  order.resize(std::min(order.size(), static_cast<size_t>(lines)));
  for (size_t v : landmarks(comparison.candidates, mode.fast_accumulate)) {
    if (std::ranges::find(order, v) == order.end()) order.push_back(v);
  }
  cli::Table table({"sum", ">bit-equal", ">difference, mean", ">max", ">relative error, max"});
  for (size_t v : order) {
    const VariantScore& score = mode.scores[v];
    table.add({comparison.candidates[v].name(), fmt::format("{:.4f}%", 100 * score.equal_share()),
               fmt::format("{:.3g}", score.difference_mean),
               fmt::format("{:.3g}", score.difference_max),
               fmt::format("{:.3g}", score.relative_error_max)});
  }
  std::vector<std::string> tied;
  for (size_t v : mode.tied) tied.push_back(comparison.candidates[v].name());
  return fmt::format("Fast accumulation {}: {} products\n{}{}: {}\n\n",
                     mode.fast_accumulate ? "on" : "off", mode.products.size(), table.text(),
                     mode.explained() ? "Every bit is explained by"
                                      : "No candidate explains every bit; nearest is",
                     fmt::join(tied, " or "));
}

}  // namespace

boost::json::object comparison_to_json(const Comparison& comparison) {
  boost::json::array modes;
  for (const ModeReport& mode : comparison.modes) modes.push_back(mode_to_json(comparison, mode));
  return {{"defaults_hold", comparison.defaults_hold()}, {"modes", std::move(modes)}};
}

std::string comparison_in_words(const Comparison& comparison, int lines) {
  std::string text;
  for (const ModeReport& mode : comparison.modes) text += mode_in_words(comparison, mode, lines);
  return text + (comparison.defaults_hold()
                     ? "accumulate = \"hopper\" adds as this device does, as far as was looked.\n"
                     : "accumulate = \"hopper\" does not add as this device does.\n");
}

}  // namespace gnomon

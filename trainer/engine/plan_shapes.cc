#include "trainer/engine/plan_shapes.h"

#include <fmt/format.h>

#include "base/errors.h"

namespace gnomon {
namespace {

constexpr int64_t kFp8Multiple = 16;

struct SiteShape {
  int64_t in, out;
};

SiteShape shape_of(const std::string& site, const ModelConfig& model) {
  if (site == "lm_head") return {model.width, model.vocabulary};
  if (site.ends_with("k_proj") || site.ends_with("v_proj")) {
    return {model.width, int64_t{1} * model.kv_heads * model.head_dim()};
  }
  if (site.ends_with("gate_proj") || site.ends_with("up_proj")) return {model.width, model.ffn};
  if (site.ends_with("down_proj")) return {model.ffn, model.width};
  return {model.width, model.width};
}

}  // namespace

void check_plan_shapes(const PrecisionPlan& plan, const ModelConfig& model, int64_t tokens,
                       const std::string& file) {
  if (plan.allow_ragged_tiles) return;
  for (const std::string& site : model.sites()) {
    const SitePrecision precision = plan.resolve(site, model.layers);
    const int64_t multiple = tile_multiple(precision.recipe);
    if (multiple == 1) continue;
    const SiteShape shape = shape_of(site, model);
    auto check = [&](Gemm gemm, const char* what, int64_t size, int64_t needed) {
      if (!precision.uses_fp8(gemm) || size % needed == 0) return;
      const PlanRule* rule =
          plan.last_rule(site, model.layers, [](const PlanRule& it) { return !it.recipe.empty(); });
      throw ConfigError(
          file, rule == nullptr ? 0 : rule->line, "recipe",
          fmt::format("\"{}\"", recipe_name(precision.recipe)),
          fmt::format(
              "\"current\" or \"delayed\" there: the {} of {} {} {}, and this recipe needs a "
              "multiple of {} (allow_ragged_tiles = true at the top of the plan allows it in "
              "emulation)",
              gemm_name(gemm), site, what, size, needed));
    };
    check(Gemm::kFprop, "sums over", shape.in, multiple);
    check(Gemm::kFprop, "has columns:", shape.out, kFp8Multiple);
    check(Gemm::kDgrad, "sums over", shape.out, multiple);
    check(Gemm::kDgrad, "has columns:", shape.in, kFp8Multiple);
    check(Gemm::kWgrad, "sums over", tokens, multiple);
    check(Gemm::kWgrad, "has columns:", shape.in, kFp8Multiple);
  }
}

}  // namespace gnomon

#include "trainer/engine/plan_shapes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/errors.h"
#include "trainer/engine/architecture.h"

namespace gnomon {
namespace {

constexpr int64_t kFp8Multiple = 16;
constexpr int kPromotedOnDevices = 128;  // terms, in cuBLASLt's usual sums of FP8 products

void check_recipes(const PrecisionPlan& plan, const ModelConfig& model, const std::string& file) {
  for (const std::string& site : model.sites()) {
    for (const Gemm gemm : kGemms) {
      const Recipe recipe = plan.resolve(site, model.layers)[gemm].recipe;
      if (!is_foreign(recipe)) continue;
      const PlanRule* rule = plan.last_rule(site, gemm, model.layers,
                                            [](const PlanRule& it) { return !it.recipe.empty(); });
      throw ConfigError(
          file, rule == nullptr ? 0 : rule->line, "recipe",
          fmt::format("\"{}\"", recipe_name(recipe)),
          fmt::format("a recipe that this engine has: {}", fmt::join(recipe_names(is_ours), ", ")));
    }
  }
}

}  // namespace

void check_plan_shapes(const PrecisionPlan& plan, const ModelConfig& model, int64_t tokens,
                       const std::string& file) {
  check_recipes(plan, model, file);
  if (plan.allow_ragged_tiles) return;
  for (const auto& [site, in, out, group, adds] : all_sites(model)) {
    const SitePrecision precision = plan.resolve(site, model.layers);
    auto check = [&](Gemm gemm, const char* what, int64_t size, bool is_summed) {
      const int64_t multiple = recipe_row(precision[gemm].recipe).multiple;
      const int64_t needed = is_summed ? multiple : kFp8Multiple;
      if (!precision.uses_fp8(gemm) || multiple == 1 || size % needed == 0) return;
      const PlanRule* rule = plan.last_rule(site, gemm, model.layers,
                                            [](const PlanRule& it) { return !it.recipe.empty(); });
      throw ConfigError(
          file, rule == nullptr ? 0 : rule->line, "recipe",
          fmt::format("\"{}\"", recipe_name(precision[gemm].recipe)),
          fmt::format(
              "\"current\" or \"delayed\" there: the {} of {} {} {}, and this recipe needs a "
              "multiple of {} (allow_ragged_tiles = true at the top of the plan allows it in "
              "emulation)",
              gemm_name(gemm), site, what, size, needed));
    };
    check(Gemm::kFprop, "sums over", in, true);
    check(Gemm::kFprop, "has columns:", out, false);
    check(Gemm::kDgrad, "sums over", out, true);
    check(Gemm::kDgrad, "has columns:", in, false);
    check(Gemm::kWgrad, "sums over", tokens, true);
    check(Gemm::kWgrad, "has columns:", in, false);
  }
}

void check_device_shapes(const ModelConfig& model, const BackendBase& backend) {
  const int64_t multiple = backend.width_multiple();
  const BackendBase::Limits limits = backend.limits();
  if (model.width > limits.width_most) {
    throw ConfigError("model", 0, "width", std::to_string(model.width),
                      fmt::format("at most {} on this device", limits.width_most));
  }
  const int head_dim = model.head_dim();
  if (head_dim > limits.head_dim_most || head_dim % limits.head_dim_multiple != 0) {
    throw ConfigError("model", 0, "head_dim", std::to_string(head_dim),
                      fmt::format("a multiple of {}, at most {} on this device",
                                  limits.head_dim_multiple, limits.head_dim_most));
  }
  const auto check = [&](const char* key, int64_t size, const char* what) {
    if (size % multiple == 0) return;
    throw ConfigError("model", 0, key, std::to_string(size),
                      fmt::format("{}a multiple of {} on this device", what, multiple));
  };
  check("width", model.width, "");
  check("ffn", model.ffn, "");
  check("heads", model.attention_width(), "heads times head_dim ");
  check("kv_heads", model.kv_width(), "kv_heads times head_dim ");
}

void check_device_shapes(const PrecisionPlan& plan, const ModelConfig& model, int64_t tokens,
                         int64_t multiple, const BackendBase::Limits& limits) {
  for (const std::string& site : model.sites()) {
    const SitePrecision precision = plan.resolve(site, model.layers);
    if (!precision.any_fp8()) continue;
    if (site == "lm_head" && model.vocabulary % multiple != 0) {
      throw ConfigError("model", 0, "vocabulary", std::to_string(model.vocabulary),
                        fmt::format("a multiple of {} on this device where lm_head is in FP8, or "
                                    "lm_head in BF16",
                                    multiple));
    }
    if (tokens % multiple != 0) {
      throw ConfigError(
          "batch", 0, "tokens", std::to_string(tokens),
          fmt::format("a multiple of {} on this device, for {} in FP8", multiple, site));
    }
    for (const GemmPrecision& gemm : precision.gemms) {
      const bool known = gemm.promote_every <= 0 || gemm.promote_every == kPromotedOnDevices;
      if (!gemm.fp8 || limits.promotes_at_will || known) continue;
      throw ConfigError("plan", 0, "promote_every", std::to_string(gemm.promote_every),
                        fmt::format("0 or {} on this device, for {}", kPromotedOnDevices, site));
    }
  }
}

}  // namespace gnomon

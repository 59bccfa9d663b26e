#include "protocol/precision_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.h"
#include "base/files.h"
#include "protocol/site_glob.h"
#include "protocol/toml_reader.h"

namespace gnomon {
namespace {

constexpr int kUnsetMargin = -1000;
constexpr int kMarginMax = 64;
constexpr int kAmaxHistoryMax = 65536;
const std::vector<std::string> kGemmValues = {"fp8", "bf16"};
const std::vector<std::string> kFormats = {"e4m3", "e5m2"};
const std::vector<std::string> kRecipes = {"current", "delayed"};

PlanRule read_rule(TomlTable& table) {
  PlanRule rule;
  rule.line = table.line_of("match");
  if (!table.has("match")) {
    throw ConfigError(table.file(), table.line(), table.path() + ".match", "missing",
                      "a glob over module names, like \"*\" or \"model.layers.{0,last}.*\"");
  }
  rule.match = table.text("match", "");
  const std::string problem = glob_error(rule.match);
  if (!problem.empty()) {
    table.refuse(
        "match",
        "a glob with '*', '?' and balanced braces like \"{0,last}\", but this is " + problem);
  }
  rule.gemms.fill(table.choice("gemms", "", kGemmValues));
  for (Gemm gemm : kGemms) {
    std::string& value = rule.gemms[static_cast<size_t>(gemm)];
    value = table.choice(std::string(gemm_name(gemm)), value, kGemmValues);
  }
  rule.forward_format = table.choice("forward_format", "", kFormats);
  rule.gradient_format = table.choice("gradient_format", "", kFormats);
  rule.recipe = table.choice("recipe", "", kRecipes);
  rule.amax_history = static_cast<int>(table.integer("amax_history", -1, 1, kAmaxHistoryMax));
  rule.margin = static_cast<int>(table.integer("margin", kUnsetMargin, -kMarginMax, kMarginMax));
  table.refuse_unknown_keys();
  return rule;
}

void apply(const PlanRule& rule, SitePrecision& precision) {
  for (size_t g = 0; g < rule.gemms.size(); ++g) {
    if (!rule.gemms[g].empty()) precision.fp8[g] = rule.gemms[g] == "fp8";
  }
  if (!rule.forward_format.empty()) precision.forward_format = rule.forward_format;
  if (!rule.gradient_format.empty()) precision.gradient_format = rule.gradient_format;
  if (!rule.recipe.empty()) {
    precision.recipe = rule.recipe == "delayed" ? Recipe::kDelayed : Recipe::kCurrent;
  }
  if (rule.amax_history >= 0) precision.amax_history = rule.amax_history;
  if (rule.margin != kUnsetMargin) precision.margin = rule.margin;
}

void write_rule(const PlanRule& rule, std::string& out) {
  out += fmt::format("\n[[rule]]\nmatch = {}\n", toml_quoted(rule.match));
  if (!rule.gemms[0].empty() && rule.gemms[0] == rule.gemms[1] && rule.gemms[0] == rule.gemms[2]) {
    out += fmt::format("gemms = {}\n", toml_quoted(rule.gemms[0]));
  } else {
    for (Gemm gemm : kGemms) {
      const std::string& value = rule.gemms[static_cast<size_t>(gemm)];
      if (!value.empty()) out += fmt::format("{} = {}\n", gemm_name(gemm), toml_quoted(value));
    }
  }
  if (!rule.forward_format.empty())
    out += fmt::format("forward_format = {}\n", toml_quoted(rule.forward_format));
  if (!rule.gradient_format.empty())
    out += fmt::format("gradient_format = {}\n", toml_quoted(rule.gradient_format));
  if (!rule.recipe.empty()) out += fmt::format("recipe = {}\n", toml_quoted(rule.recipe));
  if (rule.amax_history >= 0) out += fmt::format("amax_history = {}\n", rule.amax_history);
  if (rule.margin != kUnsetMargin) out += fmt::format("margin = {}\n", rule.margin);
}

std::string some_of(const std::vector<std::string>& sites) {
  constexpr size_t kShown = 4;
  std::string text = fmt::format(
      "{}",
      fmt::join(sites.begin(),
                sites.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, sites.size())), ", "));
  return sites.size() > kShown ? fmt::format("{}, ... ({} sites)", text, sites.size()) : text;
}

}  // namespace

std::string_view gemm_name(Gemm gemm) {
  constexpr std::array<std::string_view, 3> kNames = {"fprop", "dgrad", "wgrad"};
  return kNames[static_cast<size_t>(gemm)];
}

std::string_view recipe_name(Recipe recipe) {
  return recipe == Recipe::kDelayed ? "delayed" : "current";
}

bool SitePrecision::multiplies_e5m2_by_e5m2(Gemm gemm) const {
  if (!uses_fp8(gemm) || forward_format != "e5m2") return false;
  return gemm == Gemm::kFprop || gradient_format == "e5m2";
}

PrecisionPlan PrecisionPlan::parse(std::string_view toml, const std::string& file) {
  TomlTable document = TomlTable::parse(toml, file);
  PrecisionPlan plan;
  plan.version = document.integer("version", 0, -1, std::numeric_limits<int64_t>::max());
  for (TomlTable& table : document.tables("rule")) plan.rules.push_back(read_rule(table));
  plan.allow_e5m2_e5m2 = document.boolean("allow_e5m2_e5m2", false);
  document.refuse_unknown_keys();
  return plan;
}

PrecisionPlan PrecisionPlan::load(const std::string& path) { return parse(read_file(path), path); }

PrecisionPlan PrecisionPlan::fp8(Recipe recipe) {
  PlanRule rule;
  rule.match = std::string("*");
  rule.gemms.fill("fp8");
  rule.forward_format = "e4m3";
  rule.gradient_format = "e5m2";
  rule.recipe = recipe_name(recipe);
  PrecisionPlan plan;
  plan.rules.push_back(std::move(rule));
  return plan;
}

PrecisionPlan PrecisionPlan::with_bf16_sites(const std::vector<std::string>& sites) const {
  PrecisionPlan plan = *this;
  for (size_t first = 0; first < sites.size(); first += kGlobAlternativesMax) {
    const size_t count = std::min(kGlobAlternativesMax, sites.size() - first);
    const auto begin = sites.begin() + static_cast<std::ptrdiff_t>(first);
    PlanRule rule;
    rule.match =
        count == 1 ? *begin
                   : fmt::format("{{{}}}",
                                 fmt::join(begin, begin + static_cast<std::ptrdiff_t>(count), ","));
    rule.gemms.fill("bf16");
    plan.rules.push_back(std::move(rule));
  }
  return plan;
}

SitePrecision PrecisionPlan::resolve(const std::string& site, int layers) const {
  SitePrecision precision;
  for (const PlanRule& rule : rules) {
    if (site_matches(rule.match, site, layers)) apply(rule, precision);
  }
  return precision;
}

void PrecisionPlan::check_sites(const std::vector<std::string>& sites, int layers,
                                const std::string& file) const {
  for (const PlanRule& rule : rules) {
    const bool matches = std::any_of(sites.begin(), sites.end(), [&](const std::string& site) {
      return site_matches(rule.match, site, layers);
    });
    if (!matches) {
      throw ConfigError(file, rule.line, "match", toml_quoted(rule.match),
                        "a glob that matches at least one of the model's sites: " + some_of(sites));
    }
  }
  if (allow_e5m2_e5m2) return;
  for (const std::string& site : sites) {
    const SitePrecision precision = resolve(site, layers);
    for (Gemm gemm : kGemms) {
      if (precision.multiplies_e5m2_by_e5m2(gemm)) refuse_e5m2_by_e5m2(site, gemm, layers, file);
    }
  }
}

void PrecisionPlan::refuse_e5m2_by_e5m2(const std::string& site, Gemm gemm, int layers,
                                        const std::string& file) const {
  const auto chose = std::find_if(rules.rbegin(), rules.rend(), [&](const PlanRule& rule) {
    return !rule.forward_format.empty() && site_matches(rule.match, site, layers);
  });
  throw ConfigError(
      file, chose->line, "forward_format", "\"e5m2\"",
      fmt::format("\"e4m3\"{}: the {} of {} would multiply E5M2 by E5M2, which no hardware does "
                  "(allow_e5m2_e5m2 = true at the top of the plan allows it in emulation)",
                  gemm == Gemm::kFprop ? "" : ", or \"e4m3\" as gradient_format", gemm_name(gemm),
                  site));
}

std::string PrecisionPlan::to_toml() const {
  std::string out = fmt::format("version = {}\n", version);
  if (allow_e5m2_e5m2) out += "allow_e5m2_e5m2 = true\n";
  for (const PlanRule& rule : rules) write_rule(rule, out);
  return out;
}

}  // namespace gnomon

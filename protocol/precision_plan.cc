#include "protocol/precision_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.h"
#include "base/named_file.h"
#include "protocol/site_glob.h"
#include "protocol/toml_reader.h"

namespace gnomon {
namespace {

constexpr int kUnsetMargin = -1000;
constexpr int kMarginMax = 64;
constexpr int kAmaxHistoryMax = 65536;
constexpr std::array<std::string_view, 2> kGemmValues = {"fp8", "bf16"};
constexpr int kPromoteEveryMax = 1 << 20;
constexpr int kGroupTerms = 32;   // of a Hopper FP8 instruction
constexpr int kBlockTerms = 128;  // of a tile of `block`
constexpr std::array<std::string_view, 2> kMxScales = {"up", "ocp"};
constexpr std::array<std::string_view, 2> kAccumulators = {"fp32", "hopper"};

std::string quoted_list(std::span<const std::string_view> values) {
  std::string text;
  for (const std::string_view value : values) {
    text += (text.empty() ? "" : ", ") + toml_quoted(value);
  }
  return text;
}

// The formats of low-precision operands; and those among them whose range is so small that they
// need a scale.
bool is_low(Format format) { return format > Format::kBf16; }
bool is_scaled(Format format) { return is_low(format) && !is_reduced_mantissa(format); }

std::vector<std::string_view> format_names(bool (*is)(Format)) {
  std::vector<std::string_view> names;
  for (const Format format : all_formats()) {
    if (is(format)) names.push_back(format_name(format));
  }
  return names;
}

std::vector<std::string_view> all_recipe_names() {
  return recipe_names([](const RecipeRow&) { return true; });
}

// "32, 64 or 128": the terms after which a sum of such tiles may move to FP32.
std::string promotions(int64_t strip) {
  std::string text = std::to_string(strip);
  const char* between = " or ";
  for (int64_t terms = strip / 2; terms >= kGroupTerms; terms /= 2) {
    text = fmt::format("{}{}{}", terms, between, text);
    between = ", ";
  }
  return text;
}

void read_gemms(TomlTable& table, PlanRule& rule) {
  const std::vector<std::string> only =
      table.choices("only", {kGemmNames.begin(), kGemmNames.end()}, kGemmNames);
  if (only.empty()) table.refuse("only", "at least one of fprop, dgrad and wgrad");
  const std::string value = table.choice("gemms", "", kGemmValues);
  for (Gemm gemm : kGemms) {
    const auto index = static_cast<size_t>(gemm);
    const std::string_view name = gemm_name(gemm);
    rule.only[index] = std::ranges::find(only, name) != only.end();
    rule.gemms[index] = table.choice(name, rule.only[index] ? value : "", kGemmValues);
    if (!rule.only[index] && table.has(name)) {
      table.refuse(name,
                   fmt::format("no such key: by its `only`, this rule is not about {}", name));
    }
  }
}

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
  read_gemms(table, rule);
  read_run_choices(table, rule);
  rule.forward_format = table.choice("forward_format", "", format_names(is_low));
  rule.gradient_format = table.choice("gradient_format", "", format_names(is_low));
  rule.recipe = table.choice("recipe", "", all_recipe_names());
  const RecipeRow* const recipe = recipe_row(rule.recipe);
  if (recipe != nullptr && recipe->ours && recipe->keeps_wgrad &&
      table.text("wgrad", "") == "fp8") {
    table.refuse("wgrad", fmt::format("\"bf16\", or no such key: recipe = \"{}\" is the one that "
                                      "keeps wgrad in BF16 (\"rowwise\" does not)",
                                      recipe->name));
  }
  rule.amax_history = static_cast<int>(table.integer("amax_history", -1, 1, kAmaxHistoryMax));
  rule.margin = static_cast<int>(table.integer("margin", kUnsetMargin, -kMarginMax, kMarginMax));
  if (table.has("power_of_two")) rule.power_of_two = table.boolean("power_of_two", false) ? 1 : 0;
  rule.mx_scale = table.choice("mx_scale", "", kMxScales);
  rule.accumulate = table.choice("accumulate", "", kAccumulators);
  rule.promote_every = static_cast<int>(table.integer("promote_every", -1, 0, kPromoteEveryMax));
  if (rule.promote_every > 0 && rule.promote_every % kGroupTerms != 0) {
    table.refuse("promote_every",
                 "a multiple of 32, the terms that one instruction adds up, or 0 for never");
  }
  table.refuse_unknown_keys();
  return rule;
}

void apply(const PlanRule& rule, Gemm gemm, GemmPrecision& precision) {
  const std::string& value = rule.gemms[static_cast<size_t>(gemm)];
  if (!value.empty()) precision.fp8 = value == "fp8";
  if (!rule.recipe.empty()) {
    precision.choose(recipe_row(rule.recipe)->recipe);
  }
  if (!rule.forward_format.empty()) {
    precision.forward_format = format_from_name(rule.forward_format);
  }
  if (!rule.gradient_format.empty()) {
    precision.gradient_format = format_from_name(rule.gradient_format);
  }
  if (rule.power_of_two >= 0) precision.power_of_two = rule.power_of_two == 1;
  if (!rule.mx_scale.empty()) precision.mx_scale_up = rule.mx_scale == "up";
  if (!rule.accumulate.empty()) {
    precision.accumulate = accumulate_from_name(rule.accumulate);
  }
  if (rule.promote_every >= 0) precision.promote_every = rule.promote_every;
  if (rule.amax_history >= 0) precision.amax_history = rule.amax_history;
  if (rule.margin != kUnsetMargin) precision.margin = rule.margin;
}

void write_rule(const PlanRule& rule, std::string& out) {
  out += fmt::format("\n[[rule]]\nmatch = {}\n", toml_quoted(rule.match));
  if (!(rule.only[0] && rule.only[1] && rule.only[2])) {
    std::vector<std::string> only;
    for (Gemm gemm : kGemms) {
      if (rule.is_about(gemm)) only.push_back(toml_quoted(std::string(gemm_name(gemm))));
    }
    out += fmt::format("only = [{}]\n", fmt::join(only, ", "));
  }
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
  if (rule.power_of_two >= 0) out += fmt::format("power_of_two = {}\n", rule.power_of_two == 1);
  if (!rule.mx_scale.empty()) out += fmt::format("mx_scale = {}\n", toml_quoted(rule.mx_scale));
  if (!rule.accumulate.empty())
    out += fmt::format("accumulate = {}\n", toml_quoted(rule.accumulate));
  if (rule.promote_every >= 0) out += fmt::format("promote_every = {}\n", rule.promote_every);
  for (const RunChoice& choice : run_choices()) {
    const std::string& value = rule.*choice.of_rule;
    if (!value.empty()) out += fmt::format("{} = {}\n", choice.key, toml_quoted(value));
  }
}

std::string some_of(const std::vector<std::string>& sites) {
  constexpr size_t kShown = 4;
  std::string text = fmt::format(
      "{}",
      fmt::join(sites.begin(),
                sites.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, sites.size())), ", "));
  return sites.size() > kShown ? fmt::format("{}, ... ({} sites)", text, sites.size()) : text;
}

using RuleTest = std::function<bool(const PlanRule&)>;

// What only the rules together decide: a key that is right in one rule may contradict another.
class GemmCheck {
 public:
  GemmCheck(const PrecisionPlan& plan, const std::string& site, Gemm gemm, int layers,
            const std::string& file)
      : plan_(plan),
        site_(site),
        gemm_(gemm),
        layers_(layers),
        file_(file),
        precision_(plan.resolve(site, layers)[gemm]),
        row_(recipe_row(precision_.recipe)),
        with_recipe_(fmt::format("with recipe = \"{}\"", row_.name)),
        hopper_(precision_.accumulate == Accumulate::kHopper) {}

  void formats() const {
    format("forward_format", precision_.forward_format, &PlanRule::forward_format);
    if (gemm_ != Gemm::kFprop) {
      format("gradient_format", precision_.gradient_format, &PlanRule::gradient_format);
    }
  }

  void scales() const {
    if (precision_.power_of_two && !row_.power_of_two) {
      refuse("power_of_two", "true",
             fmt::format("no such key {}: these have it: {}", with_recipe_,
                         fmt::join(recipe_names([](const RecipeRow& row) {
                                     return row.power_of_two.has_value();
                                   }),
                                   ", ")),
             [](const PlanRule& rule) { return rule.power_of_two >= 0; });
    }
    if (!precision_.mx_scale_up && !row_.has_mx_scale) {
      refuse("mx_scale", "\"ocp\"", "no such key " + with_recipe_ + ": only mx has it",
             [](const PlanRule& rule) { return !rule.mx_scale.empty(); });
    }
  }

  void accumulation() const {
    if (hopper_ && !row_.on_hopper) {
      refuse("accumulate", "\"hopper\"",
             "\"fp32\" " + with_recipe_ + ", which Hopper does not have",
             [](const PlanRule& rule) { return !rule.accumulate.empty(); });
    }
    const RuleTest names_promotion = [](const PlanRule& rule) { return rule.promote_every >= 0; };
    const int every = precision_.promote_every;
    if (!hopper_ && every != GemmPrecision::kPromoteByRecipe && every != kBlockTerms) {
      refuse("promote_every", std::to_string(every),
             "no such key without accumulate = \"hopper\": FP32 sums need no promotion",
             names_promotion);
    }
    const int terms = precision_.promotion(gemm_);
    if (hopper_ && row_.strip > 0 && (terms == 0 || row_.strip % terms != 0)) {
      refuse("promote_every", std::to_string(every),
             fmt::format("{} {}: its scales change every {} terms", promotions(row_.strip),
                         with_recipe_, row_.strip),
             names_promotion);
    }
  }

 private:
  void format(const char* key, Format value, std::string PlanRule::*member) const {
    const RuleTest names = [member](const PlanRule& rule) { return !(rule.*member).empty(); };
    const bool unscaled = row_.rule == ScaleRule::kNone;
    bool (*const accepted)(Format) = unscaled ? is_reduced_mantissa : is_scaled;
    if (!accepted(value)) {
      refuse(key, toml_quoted(format_name(value)),
             fmt::format("{} {}{}", quoted_list(format_names(accepted)), with_recipe_,
                         unscaled ? "" : "; e8m3 to e8m6 need recipe = \"none\""),
             names);
    }
    if (hopper_ && !is_fp8(value)) {
      refuse(key, toml_quoted(format_name(value)),
             quoted_list(format_names(is_fp8)) + " with accumulate = \"hopper\"", names);
    }
  }

  // The line is that of the last rule that says something about the key, else of the last that
  // names a recipe.
  [[noreturn]] void refuse(const char* key, const std::string& value, const std::string& accepted,
                           const RuleTest& names) const {
    const PlanRule* rule = plan_.last_rule(site_, gemm_, layers_, names);
    if (rule == nullptr) {
      rule = plan_.last_rule(site_, gemm_, layers_,
                             [](const PlanRule& it) { return !it.recipe.empty(); });
    }
    throw ConfigError(file_, rule == nullptr ? 0 : rule->line, key, value,
                      fmt::format("{} (at the {} of {})", accepted, gemm_name(gemm_), site_));
  }

  const PrecisionPlan& plan_;
  const std::string& site_;
  Gemm gemm_;
  int layers_;
  const std::string& file_;
  GemmPrecision precision_;
  const RecipeRow& row_;
  std::string with_recipe_;
  bool hopper_;
};

}  // namespace

int GemmPrecision::promotion(Gemm gemm) const {
  if (promote_every != kPromoteByRecipe) return promote_every;
  const RecipeRow& row = recipe_row(recipe);
  if (gemm == Gemm::kFprop && !row.promotes_fprop) return 0;
  return row.strip > 0 && row.strip < kBlockTerms && row.on_hopper ? static_cast<int>(row.strip)
                                                                   : kBlockTerms;
}

void GemmPrecision::choose(Recipe chosen) {
  const RecipeRow& row = recipe_row(chosen);
  recipe = chosen;
  forward_format = row.forward_format;
  gradient_format = row.gradient_format;
  power_of_two = row.power_of_two.value_or(false);
  mx_scale_up = true;
}

bool SitePrecision::multiplies_e5m2_by_e5m2(Gemm gemm) const {
  const GemmPrecision& precision = (*this)[gemm];
  if (!precision.fp8 || precision.forward_format != Format::kE5m2) return false;
  return gemm == Gemm::kFprop || precision.gradient_format == Format::kE5m2;
}

std::string SitePrecision::recipes() const {
  std::vector<std::string_view> names;
  for (const GemmPrecision& precision : gemms) {
    if (precision.fp8 || !any_fp8()) names.push_back(recipe_name(precision.recipe));
  }
  const bool one = std::ranges::all_of(names, [&](auto name) { return name == names.front(); });
  return one ? std::string(names.front()) : fmt::format("{}", fmt::join(names, "/"));
}

PrecisionPlan PrecisionPlan::parse(std::string_view toml, const std::string& file) {
  TomlTable document = TomlTable::parse(toml, file);
  PrecisionPlan plan;
  plan.version = document.integer("version", 0, -1, std::numeric_limits<int64_t>::max());
  for (TomlTable& table : document.tables("rule")) plan.rules.push_back(read_rule(table));
  plan.allow_e5m2_e5m2 = document.boolean("allow_e5m2_e5m2", false);
  plan.allow_ragged_tiles = document.boolean("allow_ragged_tiles", false);
  plan.required = document.boolean("required", false);
  document.refuse_unknown_keys();
  return plan;
}

PrecisionPlan PrecisionPlan::load(const std::string& path) {
  return parse(read_named_file_or_pipe(path), path);
}

Accumulate accumulate_from_name(std::string_view name) {
  if (name == "fp32") return Accumulate::kFp32;
  if (name == "hopper") return Accumulate::kHopper;
  throw Error(fmt::format("unknown way to accumulate \"{}\"; expected fp32 or hopper", name));
}

PrecisionPlan PrecisionPlan::fp8(Recipe recipe, Accumulate accumulate) {
  GNOMON_ASSERT(recipe != Recipe::kNone);
  GemmPrecision defaults;
  defaults.choose(recipe);
  PlanRule rule;
  rule.match = std::string("*");
  rule.gemms.fill("fp8");
  rule.forward_format = format_name(defaults.forward_format);
  rule.gradient_format = format_name(defaults.gradient_format);
  rule.recipe = recipe_name(recipe);
  if (accumulate == Accumulate::kHopper) rule.accumulate = "hopper";
  PrecisionPlan plan;
  plan.rules.push_back(std::move(rule));
  return plan;
}

PrecisionPlan PrecisionPlan::with_bf16_sites(const std::vector<std::string>& sites) const {
  std::vector<std::string> modules;
  RunPrecision run = of_run();
  for (const std::string& site : sites) {
    const RunChoice* choice = run_choice_of_site(site);
    if (choice == nullptr) {
      modules.push_back(site);
    } else {
      run.*choice->of_run = choice->wide;
    }
  }
  PrecisionPlan plan = with_run(run);
  for (size_t first = 0; first < modules.size(); first += kGlobAlternativesMax) {
    const size_t count = std::min(kGlobAlternativesMax, modules.size() - first);
    const auto begin = modules.begin() + static_cast<std::ptrdiff_t>(first);
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
    if (!site_matches(rule.match, site, layers)) continue;
    for (Gemm gemm : kGemms) {
      if (rule.is_about(gemm)) apply(rule, gemm, precision[gemm]);
    }
  }
  GemmPrecision& wgrad = precision[Gemm::kWgrad];
  if (recipe_row(wgrad.recipe).keeps_wgrad) wgrad.fp8 = false;
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
  for (const std::string& site : sites) {
    const SitePrecision precision = resolve(site, layers);
    for (Gemm gemm : kGemms) {
      if (!allow_e5m2_e5m2 && precision.multiplies_e5m2_by_e5m2(gemm)) {
        refuse_e5m2_by_e5m2(site, gemm, layers, file);
      }
      if (!precision.uses_fp8(gemm)) continue;
      const GemmCheck check(*this, site, gemm, layers, file);
      check.formats();
      check.scales();
      check.accumulation();
    }
    check_histories(site, layers, file);
  }
}

const PlanRule* PrecisionPlan::last_rule(const std::string& site, Gemm gemm, int layers,
                                         const std::function<bool(const PlanRule&)>& is) const {
  const auto found = std::find_if(rules.rbegin(), rules.rend(), [&](const PlanRule& rule) {
    return rule.is_about(gemm) && is(rule) && site_matches(rule.match, site, layers);
  });
  return found == rules.rend() ? nullptr : &*found;
}

void PrecisionPlan::refuse_e5m2_by_e5m2(const std::string& site, Gemm gemm, int layers,
                                        const std::string& file) const {
  const PlanRule* chose = last_rule(
      site, gemm, layers, [](const PlanRule& rule) { return !rule.forward_format.empty(); });
  throw ConfigError(
      file, chose->line, "forward_format", "\"e5m2\"",
      fmt::format("\"e4m3\"{}: the {} of {} would multiply E5M2 by E5M2, which no hardware does "
                  "(allow_e5m2_e5m2 = true at the top of the plan allows it in emulation)",
                  gemm == Gemm::kFprop ? "" : ", or \"e4m3\" as gradient_format", gemm_name(gemm),
                  site));
}

// Every two GEMMs of a site read one tensor both, which has one history.
void PrecisionPlan::check_histories(const std::string& site, int layers,
                                    const std::string& file) const {
  const SitePrecision precision = resolve(site, layers);
  const GemmPrecision* first = nullptr;
  for (Gemm gemm : kGemms) {
    const GemmPrecision& it = precision[gemm];
    if (!it.fp8 || it.recipe != Recipe::kDelayed) continue;
    if (first == nullptr) first = &it;
    if (it.amax_history == first->amax_history) continue;
    const PlanRule* chose =
        last_rule(site, gemm, layers, [](const PlanRule& rule) { return rule.amax_history >= 0; });
    throw ConfigError(file, chose == nullptr ? 0 : chose->line, "amax_history",
                      std::to_string(it.amax_history),
                      fmt::format("{}, as for the other GEMMs of {}: they share their tensors' "
                                  "histories",
                                  first->amax_history, site));
  }
}

std::string PrecisionPlan::to_toml() const {
  std::string out = fmt::format("version = {}\n", version);
  if (allow_e5m2_e5m2) out += "allow_e5m2_e5m2 = true\n";
  if (allow_ragged_tiles) out += "allow_ragged_tiles = true\n";
  if (required) out += "required = true\n";
  for (const PlanRule& rule : rules) write_rule(rule, out);
  return out;
}

}  // namespace gnomon

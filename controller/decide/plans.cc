#include "controller/decide/plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include "base/errors.h"
#include "protocol/precision_plan.h"

namespace gnomon::decide {

const KnownPlan& base_plan(const State& state) {
  GNOMON_ASSERT(!state.plans.empty());
  return state.plans.front();
}

const KnownPlan& plan_of(const State& state, int64_t version) {
  // A trainer's own, while the controller is away (on_loss = bf16).
  static const KnownPlan without_controller{-1, PrecisionPlan::bf16().to_toml(), true};
  if (version < 0) return without_controller;
  for (const KnownPlan& plan : state.plans) {
    if (plan.version == version) return plan;
  }
  return base_plan(state);
}

std::vector<std::string> fp8_sites(const RunFacts& run, const std::string& toml) {
  std::vector<std::string> sites;
  try {
    const PrecisionPlan plan = PrecisionPlan::parse(toml);
    const RunPrecision of_run = plan.of_run();
    for (const RunChoice& choice : run_choices()) {
      if (choice.is_low(of_run)) sites.emplace_back(choice.site);
    }
    for (const std::string& site : run.sites) {
      if (plan.resolve(site, static_cast<int>(run.layers)).any_fp8()) sites.push_back(site);
    }
  } catch (const ConfigError&) {
    sites.clear();
  }
  return sites;
}

std::vector<std::string> site_words(const std::vector<std::string>& sites,
                                    const std::string& toml) {
  const RunPrecision run = PrecisionPlan::parse(toml).of_run();
  std::vector<std::string> words;
  for (const std::string& site : sites) {
    const RunChoice* choice = run_choice_of_site(site);
    words.push_back(choice == nullptr || !choice->is_low(run)
                        ? site
                        : fmt::format("{} ({})", choice->words(run), site));
  }
  return words;
}

std::string pinned_precision(const std::vector<std::string>& sites) {
  const bool any = std::ranges::any_of(
      sites, [](const std::string& site) { return run_choice_of_site(site) != nullptr; });
  return any ? "full precision" : "BF16";
}

// "model.layers.3" of a site in layer 3; a site that is in no layer is its own unit.
static std::string unit_of(const RunFacts& run, const std::string& site) {
  if (run.capabilities.plan != "layer") return site;
  for (size_t begin = 0; begin < site.size();) {
    const size_t end = std::min(site.find('.', begin), site.size());
    const std::string_view part(site.data() + begin, end - begin);
    const bool is_number =
        !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    if (is_number) return site.substr(0, end);
    begin = end + 1;
  }
  return site;
}

int64_t count_units(const RunFacts& run, const std::vector<std::string>& sites) {
  return std::ssize(first_of_units(run, sites));
}

std::vector<std::string> first_of_units(const RunFacts& run,
                                        const std::vector<std::string>& sites) {
  std::set<std::string> seen;
  std::vector<std::string> first;
  for (const std::string& site : sites) {
    if (seen.insert(unit_of(run, site)).second) first.push_back(site);
  }
  return first;
}

std::vector<std::string> whole_units(const RunFacts& run, const std::vector<std::string>& all,
                                     const std::vector<std::string>& sites) {
  std::set<std::string> wanted;
  for (const std::string& site : sites) wanted.insert(unit_of(run, site));
  std::vector<std::string> whole;
  std::ranges::copy_if(all, std::back_inserter(whole), [&](const std::string& site) {
    return wanted.contains(unit_of(run, site));
  });
  return whole;
}

std::string rescue_plan(const std::string& toml, const std::vector<std::string>& sites,
                        int64_t version) {
  PrecisionPlan plan = PrecisionPlan::parse(toml).with_bf16_sites(sites);
  plan.version = version;
  return plan.to_toml();
}

std::string recipe_plan(const std::string& toml, const std::string& recipe, int64_t version) {
  PrecisionPlan plan = PrecisionPlan::parse(toml);
  PlanRule rule;
  rule.match = std::string(1, '*');  // GCC 12 warns of an assigned literal (-Wrestrict)
  rule.recipe = recipe;
  plan.rules.push_back(std::move(rule));
  plan.version = version;
  return plan.to_toml();
}

std::string bf16_plan(int64_t version) {
  PrecisionPlan plan = PrecisionPlan::bf16();
  plan.version = version;
  return plan.to_toml();
}

void remember_plan(State& state, int64_t version, const std::string& toml) {
  KnownPlan plan{version, toml, fp8_sites(state.run, toml).empty()};
  for (KnownPlan& known : state.plans) {
    if (known.version != version) continue;
    known = std::move(plan);
    return;
  }
  if (state.plans.size() >= kPlansMax) state.plans.erase(state.plans.begin() + 1);
  state.plans.push_back(std::move(plan));
}

}  // namespace gnomon::decide

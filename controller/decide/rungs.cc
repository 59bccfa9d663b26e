#include "controller/decide/rungs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "controller/decide/plans.h"
#include "controller/decide/policy.h"

namespace gnomon::decide {
namespace rungs {

std::string explain_pin(const Policy& policy) {
  return fmt::format("run the guilty GEMM sites (at most {}) in BF16",
                     policy.attribution.sites_max);
}
std::string announce_pin(const RungChange& change) {
  return fmt::format("{} in {}", fmt::join(site_words(change.sites, change.plan), ", "),
                     pinned_precision(change.sites));
}
std::string describe_pin(const std::vector<std::string>& sites) {
  return sites.size() <= 3 ? fmt::format("{} in BF16", fmt::join(sites, ", "))
                           : fmt::format("{} sites in BF16", sites.size());
}
std::string make_pin(const RungChange& change) {
  std::vector<std::string> pinned = fp8_sites(change.run, change.plan);
  std::erase_if(pinned, [&](const std::string& site) {
    return std::ranges::find(change.sites, site) == change.sites.end();
  });
  return rescue_plan(change.plan, pinned, change.version);
}

std::string explain_recipe(const Policy& policy) {
  return fmt::format("change the recipe to \"{}\"", policy.ladder.recipe);
}
std::string announce_recipe(const RungChange& change) {
  return fmt::format("the recipe \"{}\" wherever the run is in FP8", change.policy.ladder.recipe);
}
std::string describe_recipe(const std::vector<std::string>&) { return "FP8 uses another recipe"; }
std::string make_recipe(const RungChange& change) {
  return recipe_plan(change.plan, change.policy.ladder.recipe, change.version);
}

std::string explain_bf16(const Policy&) { return "run everything in BF16"; }
std::string announce_bf16(const RungChange&) { return "the whole run in BF16"; }
std::string describe_bf16(const std::vector<std::string>&) {
  return "the whole run trains in BF16";
}
std::string make_bf16(const RungChange& change) { return bf16_plan(change.version); }

std::string explain_hold(const Policy&) { return "pause until a person has looked"; }
std::string announce_hold(const RungChange&) { return "training is paused: a person must look"; }
std::string describe_hold(const std::vector<std::string>&) { return "the run is on hold"; }

std::string explain_stop(const Policy&) { return "stop the run"; }
std::string announce_stop(const RungChange&) { return "training is stopped"; }

}  // namespace rungs

const Rung* rung_named(std::string_view name) {
  const auto* const found = std::ranges::find(kRungTable, name, &Rung::name);
  return found != std::end(kRungTable) ? found : nullptr;
}

}  // namespace gnomon::decide

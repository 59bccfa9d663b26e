// The plans a run has had, and new ones made from them.
#pragma once

#include <string>
#include <vector>

#include "controller/decide/state.h"

namespace gnomon::decide {

inline constexpr size_t kPlansMax = 64;

// The plan of a version; the base plan when the version is not known (somebody else set it).
const KnownPlan& plan_of(const State& state, int64_t version);
const KnownPlan& base_plan(const State& state);

// What a plan has in low precision: its moments and communication, as RunChoice names their sites,
// then the sites, in model order, of which at least one GEMM runs in FP8. Empty when the TOML is
// not a plan.
std::vector<std::string> fp8_sites(const RunFacts& run, const std::string& toml);

// Sites as people read them: a RunChoice's with what the plan has there.
std::vector<std::string> site_words(const std::vector<std::string>& sites, const std::string& toml);
// What a pin makes of these sites: "BF16", or "full precision" where one is a RunChoice's.
std::string pinned_precision(const std::vector<std::string>& sites);

// What the trainer can only switch together (Capabilities.plan) is one unit: a layer, or else each
// site alone.
int64_t count_units(const RunFacts& run, const std::vector<std::string>& sites);
// The first site of each unit.
std::vector<std::string> first_of_units(const RunFacts& run, const std::vector<std::string>& sites);
// Those of `all` whose unit one of `sites` is in.
std::vector<std::string> whole_units(const RunFacts& run, const std::vector<std::string>& all,
                                     const std::vector<std::string>& sites);

// `toml` with `sites` in BF16 as well, and the given version. `toml` must be a plan.
std::string rescue_plan(const std::string& toml, const std::vector<std::string>& sites,
                        int64_t version);
// `toml` with another recipe wherever it has FP8. `toml` must be a plan, `recipe` a recipe's name.
std::string recipe_plan(const std::string& toml, const std::string& recipe, int64_t version);
// Every site in BF16.
std::string bf16_plan(int64_t version);

// Remembers a plan, forgetting the oldest but the base beyond kPlansMax.
void remember_plan(State& state, int64_t version, const std::string& toml);

}  // namespace gnomon::decide

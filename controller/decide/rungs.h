// The rungs of the ladder, in the order in which a policy may have them: what each makes of the
// run's plan, and how it is spoken of. To add one, add a row here, its functions in rungs.cc, and
// its name to kActions (protocol/records/decision.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gnomon::decide {

struct Policy;
struct RunFacts;

// What a rung is asked to change.
struct RungChange {
  const Policy& policy;
  const RunFacts& run;
  const std::string& plan;  // in force before, TOML
  const std::vector<std::string>& sites;
  int64_t version = 0;  // of the plan that is made
};

namespace rungs {

std::string explain_pin(const Policy& policy);
std::string explain_recipe(const Policy& policy);
std::string explain_bf16(const Policy& policy);
std::string explain_hold(const Policy& policy);
std::string explain_stop(const Policy& policy);
std::string announce_pin(const RungChange& change);
std::string announce_recipe(const RungChange& change);
std::string announce_bf16(const RungChange& change);
std::string announce_hold(const RungChange& change);
std::string announce_stop(const RungChange& change);
std::string describe_pin(const std::vector<std::string>& sites);
std::string describe_recipe(const std::vector<std::string>& sites);
std::string describe_bf16(const std::vector<std::string>& sites);
std::string describe_hold(const std::vector<std::string>& sites);
std::string make_pin(const RungChange& change);
std::string make_recipe(const RungChange& change);
std::string make_bf16(const RungChange& change);

}  // namespace rungs

struct Rung {
  std::string_view name;
  // What it does, for `gnomon policy explain`: "pause until a person has looked".
  std::string (*explain)(const Policy&);
  // What is done now, for the decision: "the whole run in BF16".
  std::string (*announce)(const RungChange&);
  // What is so from then on, for the run's verdict: "the whole run trains in BF16".
  std::string (*describe)(const std::vector<std::string>& sites);
  // The plan that it makes, TOML; null where training halts instead, by the directive `halts`.
  std::string (*make_plan)(const RungChange&);
  std::string_view halts = {};
};

inline constexpr Rung kRungTable[] = {
    {"pin", rungs::explain_pin, rungs::announce_pin, rungs::describe_pin, rungs::make_pin},
    {"recipe", rungs::explain_recipe, rungs::announce_recipe, rungs::describe_recipe,
     rungs::make_recipe},
    {"bf16", rungs::explain_bf16, rungs::announce_bf16, rungs::describe_bf16, rungs::make_bf16},
    {"hold", rungs::explain_hold, rungs::announce_hold, rungs::describe_hold, nullptr, "pause"},
    {"stop", rungs::explain_stop, rungs::announce_stop, rungs::describe_hold, nullptr, "stop"},
};

inline constexpr auto kRungs = [] {
  std::array<std::string_view, std::size(kRungTable)> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kRungTable[i].name;
  return names;
}();

// The rung of a name; null for other actions ("rollback", "none").
const Rung* rung_named(std::string_view name);

}  // namespace gnomon::decide

#include "protocol/run_precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "protocol/precision_plan.h"
#include "protocol/toml_reader.h"

namespace gnomon {
namespace {

const std::array kRunChoices = {
    RunChoice{"second_moment", "optimizer.second_moment", "fp32", kMomentWords,
              &RunPrecision::second_moment, &PlanRule::second_moment},
    RunChoice{"first_moment", "optimizer.first_moment", "fp32", kMomentWords,
              &RunPrecision::first_moment, &PlanRule::first_moment},
    RunChoice{"gradient_communication", "communication.gradients", "full", kWireWords,
              &RunPrecision::gradients, &PlanRule::gradients},
    RunChoice{"weight_communication", "communication.weights", "full", kWireWords,
              &RunPrecision::weights, &PlanRule::weights}};

}  // namespace

std::span<const RunChoice> run_choices() { return kRunChoices; }

const RunChoice* run_choice_of_site(std::string_view site) {
  const auto found = std::ranges::find(kRunChoices, site, &RunChoice::site);
  return found == kRunChoices.end() ? nullptr : &*found;
}

std::string RunChoice::words(const RunPrecision& run) const {
  std::string value = (run.*of_run).substr(0, (run.*of_run).find(':'));
  for (char& letter : value) letter = letter >= 'a' && letter <= 'z' ? letter - 'a' + 'A' : letter;
  if (of_run == &RunPrecision::second_moment) return value + " second moments";
  if (of_run == &RunPrecision::first_moment) return value + " first moments";
  return fmt::format("{} sent as {}", of_run == &RunPrecision::weights ? "weights" : "gradients",
                     value);
}

RunPrecision PrecisionPlan::of_run() const {
  RunPrecision run;
  for (const PlanRule& rule : rules) {
    for (const RunChoice& choice : kRunChoices) {
      const std::string& value = rule.*choice.of_rule;
      if (!value.empty()) run.*choice.of_run = value;
    }
  }
  return run;
}

PrecisionPlan PrecisionPlan::with_run(const RunPrecision& run) const {
  const RunPrecision own = of_run();
  PrecisionPlan plan = *this;
  if (run == own) return plan;
  PlanRule& rule = plan.rules.emplace_back();
  rule.match = std::string(1, '*');  // GCC 12 warns of an assigned literal (-Wrestrict)
  for (const RunChoice& choice : kRunChoices) {
    if (run.*choice.of_run != own.*choice.of_run) rule.*choice.of_rule = run.*choice.of_run;
  }
  return plan;
}

void read_run_choices(TomlTable& table, PlanRule& rule) {
  const std::string moments = table.choice("moments", "", kMomentWords);
  const std::string communication = table.choice("communication", "", kWireWords);
  bool any = !moments.empty() || !communication.empty();
  for (const RunChoice& choice : kRunChoices) {
    const std::string& both = choice.values.data() == kMomentWords.data() ? moments : communication;
    rule.*choice.of_rule = table.choice(choice.key, both, choice.values);
    any = any || table.has(choice.key);
  }
  if (any && rule.match != "*") {
    table.refuse("match",
                 "\"*\" in a rule about moments or communication: they are of the whole run");
  }
}

}  // namespace gnomon

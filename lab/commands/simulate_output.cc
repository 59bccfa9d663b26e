#include "lab/commands/simulate_output.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>
#include <functional>

#include "base/version.h"
#include "cli/json_output.h"
#include "cli/table.h"

namespace gnomon::cli {
namespace {

namespace json = boost::json;
using simulate::FaultSummary;
using simulate::Rate;
using simulate::Spread;
using simulate::Summary;

std::string rate_words(const Rate& rate) {
  return fmt::format("{:.3g} ({:.2g}-{:.2g})", rate.per_thousand, rate.low, rate.high);
}

std::string share_words(double share) {
  return std::isnan(share) ? "-" : fmt::format("{:.1f}%", 100 * share);
}

std::string caught_words(const FaultSummary& faults) {
  if (faults.harmful == 0) return "-";
  return fmt::format("{} of {} ({})", faults.harmful_alarmed, faults.harmful,
                     share_words(faults.caught_share()));
}

std::string delay_words(const Spread& delay) {
  if (delay.count == 0) return "-";
  return fmt::format("{:.0f} / {:.0f}", delay.median, delay.high);
}

std::string spread_words(const Spread& spread, const char* unit = "") {
  return fmt::format("{:.3f}{} ({:.3f}-{:.3f})", spread.mean, unit, spread.low, spread.high);
}

std::string outcomes_words(const Summary& summary) {
  std::string words;
  for (const auto& [outcome, count] : summary.outcomes) {
    words += fmt::format("{}{} {}", words.empty() ? "" : ", ", count, outcome);
  }
  return words;
}

std::vector<std::string> headings(const Simulation& simulation, const char* first) {
  std::vector<std::string> result = {first};
  for (const SimulatedPolicy& one : simulation.policies) result.push_back(">" + one.name);
  return result;
}

std::string main_table(const Simulation& simulation) {
  Table table(headings(simulation, ""));
  const auto row = [&](const char* what, const std::function<std::string(const Summary&)>& cell) {
    std::vector<std::string> cells = {what};
    for (const SimulatedPolicy& one : simulation.policies) cells.push_back(cell(one.summary));
    table.add(std::move(cells));
  };
  row("runs", outcomes_words);
  row("windows measured (healthy)",
      [](const Summary& s) { return fmt::format("{} ({})", s.windows, s.healthy_windows); });
  row("windows skipped, failed",
      [](const Summary& s) { return fmt::format("{}, {}", s.skipped_windows, s.failed_windows); });
  row("false alarms per 1000 healthy windows (95%)",
      [](const Summary& s) { return rate_words(s.false_alarms); });
  row("actions without a fault per 1000 windows (95%)",
      [](const Summary& s) { return rate_words(s.unfounded_actions); });
  row("harmful faults caught", [](const Summary& s) { return caught_words(s.all_faults); });
  row("delay in windows, median / 95th",
      [](const Summary& s) { return delay_words(s.all_faults.delay_windows); });
  row("delay in steps, median / 95th",
      [](const Summary& s) { return delay_words(s.all_faults.delay_steps); });
  row("verdicts that are right", [](const Summary& s) {
    if (s.judged == 0) return std::string("-");
    return fmt::format("{} of {} ({})", s.rightly, s.judged,
                       share_words(static_cast<double>(s.rightly) / static_cast<double>(s.judged)));
  });
  row("actions, returns, holds",
      [](const Summary& s) { return fmt::format("{}, {}, {}", s.actions, s.returns, s.holds); });
  row("pins with all guilty sites",
      [](const Summary& s) { return fmt::format("{} of {}", s.right_pins, s.pins); });
  row("steps lost", [](const Summary& s) { return share_words(s.lost_share); });
  row("steps in BF16, pinned", [](const Summary& s) {
    return share_words(s.bf16_share) + ", " + share_words(s.pinned_share);
  });
  row("time that training waited for replays",
      [](const Summary& s) { return share_words(s.verification_share); });
  row("net speed-up (5th-95th)", [](const Summary& s) { return spread_words(s.net_speedup); });
  row("  by the core's own account",
      [](const Summary& s) { return spread_words(s.net_speedup_by_core); });
  row("damage at the end, median (95th)", [](const Summary& s) {
    return fmt::format("{:.3f}% ({:.2f}%)", s.damage_percent.median, s.damage_percent.high);
  });
  row("runs that end with harm",
      [](const Summary& s) { return fmt::format("{} of {}", s.damaged, s.runs); });
  return table.text();
}

std::string faults_table(const Simulation& simulation) {
  Table table({"fault", "policy", ">acted", ">harmful", ">caught", ">delay, windows",
               ">delay, steps", ">verdict right"});
  for (size_t kind = 0; kind < simulate::kFaultKinds; ++kind) {
    for (const SimulatedPolicy& one : simulation.policies) {
      const FaultSummary& faults = one.summary.faults[kind];
      if (faults.felt == 0) continue;
      table.add({std::string(simulate::fault_kind_name(static_cast<simulate::FaultKind>(kind))),
                 one.name, std::to_string(faults.felt), std::to_string(faults.harmful),
                 share_words(faults.caught_share()), delay_words(faults.delay_windows),
                 delay_words(faults.delay_steps),
                 fmt::format("{} of {}", faults.answered, faults.alarmed)});
    }
  }
  return table.empty() ? "" : table.text();
}

// Verdicts that nothing led to are left out.
std::string verdicts_table(const Summary& summary) {
  std::vector<size_t> shown;
  for (size_t verdict = 0; verdict < simulate::kVerdicts.size(); ++verdict) {
    int64_t count = 0;
    for (const auto& row : summary.verdicts) count += row[verdict];
    if (count > 0) shown.push_back(verdict);
  }
  std::vector<std::string> names = {"truth"};
  for (const size_t verdict : shown)
    names.push_back(std::string(">") + simulate::kVerdicts[verdict]);
  Table table(names);
  for (size_t cause = 0; cause < simulate::kCauses; ++cause) {
    std::vector<std::string> cells = {simulate::cause_name(cause)};
    int64_t count = 0;
    for (const size_t verdict : shown) {
      const int64_t found = summary.verdicts[cause][verdict];
      count += found;
      cells.push_back(found == 0 ? "." : std::to_string(found));
    }
    if (count > 0) table.add(std::move(cells));
  }
  return table.empty() ? "" : table.text();
}

std::string notes(const Simulation& simulation) {
  std::string words;
  for (const SimulatedPolicy& one : simulation.policies) {
    const bool paid = one.policy.economics.spare_fraction > 0;
    if (simulation.model.verifiers > 0 && !paid) {
      words += fmt::format(
          "{}: economics.spare_fraction is 0, so the verifiers cost nothing in the net speed-up, "
          "and "
          "the core's own account takes them for the training devices.\n",
          one.name);
    }
    if (simulation.model.verifiers == 0 && paid) {
      words += fmt::format(
          "{}: economics.spare_fraction is {:g}, but the trainer verifies itself (--verifiers 0): "
          "no spare devices are paid.\n",
          one.name, one.policy.economics.spare_fraction);
    }
    for (const std::string& problem : one.summary.problems) {
      words += fmt::format("{}: must not happen: {}\n", one.name, problem);
    }
  }
  return words;
}

json::object to_json(const Rate& rate) {
  return {{"count", rate.count},
          {"of", rate.of},
          {"per_thousand", rate.per_thousand},
          {"low_95", rate.low},
          {"high_95", rate.high}};
}

json::object to_json(const Spread& spread) {
  return {{"count", spread.count},
          {"mean", spread.mean},
          {"p5", spread.low},
          {"median", spread.median},
          {"p95", spread.high}};
}

json::object to_json(const FaultSummary& faults) {
  return {{"acted", faults.felt},
          {"alarmed", faults.alarmed},
          {"answered", faults.answered},
          {"harmful", faults.harmful},
          {"harmful_caught", faults.harmful_alarmed},
          {"harmful_answered", faults.harmful_answered},
          {"caught_share", json_number(faults.caught_share())},
          {"delay_windows", to_json(faults.delay_windows)},
          {"delay_steps", to_json(faults.delay_steps)}};
}

json::object verdicts_json(const Summary& summary) {
  json::object result;
  for (size_t cause = 0; cause < simulate::kCauses; ++cause) {
    json::object row;
    for (size_t verdict = 0; verdict < simulate::kVerdicts.size(); ++verdict) {
      const int64_t count = summary.verdicts[cause][verdict];
      if (count > 0) row[simulate::kVerdicts[verdict]] = count;
    }
    if (!row.empty()) result[simulate::cause_name(cause)] = std::move(row);
  }
  return result;
}

json::object to_json(const SimulatedPolicy& one) {
  const Summary& s = one.summary;
  json::object faults, outcomes;
  for (size_t kind = 0; kind < simulate::kFaultKinds; ++kind) {
    if (s.faults[kind].felt == 0) continue;
    faults[simulate::fault_kind_name(static_cast<simulate::FaultKind>(kind))] =
        to_json(s.faults[kind]);
  }
  for (const auto& [outcome, count] : s.outcomes) outcomes[outcome] = count;
  return {{"policy", one.name},
          {"runs", s.runs},
          {"outcomes", std::move(outcomes)},
          {"windows", s.windows},
          {"healthy_windows", s.healthy_windows},
          {"skipped_windows", s.skipped_windows},
          {"failed_windows", s.failed_windows},
          {"replays", s.replays},
          {"false_alarms", to_json(s.false_alarms)},
          {"unfounded_actions", to_json(s.unfounded_actions)},
          {"alarms", s.alarms},
          {"actions", s.actions},
          {"returns", s.returns},
          {"holds", s.holds},
          {"crashes", s.crashes},
          {"verifier_deaths", s.verifier_deaths},
          {"pins", s.pins},
          {"right_pins", s.right_pins},
          {"all_faults", to_json(s.all_faults)},
          {"faults", std::move(faults)},
          {"verdicts", verdicts_json(s)},
          {"verdicts_right", s.rightly},
          {"verdicts_given", s.judged},
          {"lost_share", s.lost_share},
          {"bf16_share", s.bf16_share},
          {"pinned_share", s.pinned_share},
          {"verification_share", s.verification_share},
          {"net_speedup", to_json(s.net_speedup)},
          {"net_speedup_by_core", to_json(s.net_speedup_by_core)},
          {"damage_percent", to_json(s.damage_percent)},
          {"runs_not_finite", s.not_finite},
          {"runs_with_harm", s.damaged},
          {"problems", json::value_from(s.problems)}};
}

double windows_per_second(const Simulation& simulation) {
  return static_cast<double>(simulation.windows()) / simulation.duration.seconds;
}

double microseconds_per_window(const Simulation& simulation) {
  return 1e6 * simulation.duration.cpu_seconds /
         static_cast<double>(std::max<int64_t>(1, simulation.windows()));
}

}  // namespace

int64_t Simulation::windows() const {
  int64_t count = 0;
  for (const SimulatedPolicy& one : policies) count += one.summary.windows;
  return count;
}

json::object to_json(const Simulation& simulation) {
  const simulate::RunModel& m = simulation.model;
  json::object rates;
  for (size_t kind = 0; kind < simulate::kFaultKinds; ++kind) {
    rates[simulate::fault_kind_name(static_cast<simulate::FaultKind>(kind))] = m.hazards[kind];
  }
  json::array policies;
  for (const SimulatedPolicy& one : simulation.policies) policies.push_back(to_json(one));
  return {{"runs", simulation.options.runs},
          {"steps", m.steps},
          {"seed", simulation.options.seed},
          {"threads", simulation.options.threads},
          {"fault_rates", std::move(rates)},
          {"fault_size_percent", json::array{m.size_low, m.size_high}},
          {"noise", m.noise},
          {"noise_percent", m.noise_percent},
          {"autocorrelation", m.autocorrelation},
          {"mean_gap_percent", m.mean_gap_percent},
          {"speedup", m.speedup},
          {"verifiers", m.verifiers},
          {"policies", std::move(policies)},
          {"wall_seconds", simulation.duration.seconds},
          {"windows_per_second", windows_per_second(simulation)},
          {"cpu_microseconds_per_window", microseconds_per_window(simulation)},
          {"build", fmt::format("{} ({}, {}, {})", kVersion, kRevision, kBuildType, kCompiler)}};
}

std::string in_words(const Simulation& simulation) {
  std::string text = main_table(simulation);
  if (const std::string faults = faults_table(simulation); !faults.empty()) text += "\n" + faults;
  for (const SimulatedPolicy& one : simulation.policies) {
    const std::string verdicts = verdicts_table(one.summary);
    if (verdicts.empty()) continue;
    text += fmt::format("\nVerdicts of {}, by what was true\n{}", one.name, verdicts);
  }
  if (const std::string noted = notes(simulation); !noted.empty()) text += "\n" + noted;
  text += fmt::format("\n{} windows in {:.1f} s: {:.0f} a second, {:.1f} us of a core each\n",
                      simulation.windows(), simulation.duration.seconds,
                      windows_per_second(simulation), microseconds_per_window(simulation));
  return text;
}

}  // namespace gnomon::cli

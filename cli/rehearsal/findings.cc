#include "cli/rehearsal/findings.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "cli/rehearsal/detection.h"

namespace gnomon::rehearsal {
namespace {

namespace json = boost::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::vector<std::string> kDetectors = {"eprocess", "eprocess_any", "cusum", "ewma",
                                             "glr",      "shewhart",     "fixed"};

struct Run {
  const Trace* trace = nullptr;
  RunLabel label;
  Series series;                    // of observed runs
  std::optional<double> worse_by;   // per cent, than the mean of its BF16 references
  double harm_from = kHarmPercent;  // per cent
  bool generic() const { return label.origin == "generic"; }
  bool healthy() const { return label.fault == "none"; }
};

struct Runs {
  std::vector<Run> observed;
  std::vector<Run> enforced;
  std::map<std::string, double> chance;  // deviation of BF16's end in per cent, by configuration
};

using Reference = std::pair<std::string, int64_t>;  // configuration, seed
using References = std::map<Reference, std::vector<double>>;

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

std::map<std::string, double> chance_of(const References& references) {
  std::map<std::string, double> squares, freedom, result;
  for (const auto& [reference, losses] : references) {
    const double mean = mean_of(losses);
    for (double loss : losses) squares[reference.first] += std::pow(100 * (loss - mean) / mean, 2);
    freedom[reference.first] += static_cast<double>(losses.size()) - 1;
  }
  for (const auto& [name, sum] : squares) {
    if (freedom[name] > 0) result[name] = std::sqrt(sum / freedom[name]);
  }
  return result;
}

void compare(Run& run, const References& references, const std::map<std::string, double>& chance) {
  const auto found = references.find({run.label.configuration, run.label.seed});
  if (found == references.end()) return;
  const double mean = mean_of(found->second);
  const double worse = 100 * (run.trace->result.heldout_bf16 - mean) / mean;
  run.worse_by = std::isnan(worse) ? kInfinity : worse;
  const auto spread = chance.find(run.label.configuration);
  if (spread == chance.end()) return;
  const auto count = static_cast<double>(found->second.size());
  run.harm_from =
      std::max(kHarmPercent, kHarmDeviations * spread->second * std::sqrt(1 + 1 / count));
}

Runs sorted_out(const std::vector<Trace>& traces) {
  Runs runs;
  References references;
  std::vector<Run> all;
  for (const Trace& trace : traces) {
    Run run{&trace, label_of(trace), {}, {}};
    if (!run.label.watched) {
      references[{run.label.configuration, run.label.seed}].push_back(trace.result.heldout_bf16);
    } else {
      all.push_back(std::move(run));
    }
  }
  runs.chance = chance_of(references);
  for (Run& run : all) {
    compare(run, references, runs.chance);
    if (run.label.mode == "observe") {
      run.series = series_of(*run.trace);
      runs.observed.push_back(std::move(run));
    } else {
      runs.enforced.push_back(std::move(run));
    }
  }
  return runs;
}

bool worse(const Run& run) {
  return !run.healthy() && !run.generic() && run.worse_by && *run.worse_by > kHarmPercent;
}

bool harmful(const Run& run) { return worse(run) && *run.worse_by > run.harm_from; }

// Null where it is not finite: JSON has no infinity, and a delay without an alarm has no length.
json::value finite(double value) {
  return std::isfinite(value) ? json::value(value) : json::value(nullptr);
}

json::value share(int64_t of, int64_t all) {
  if (all == 0) return nullptr;
  return static_cast<double>(of) / static_cast<double>(all);
}

double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<size_t>(std::ceil(q * last))];
}

// ---- the detector and its rivals

decide::GapSettings settings_of(const std::string& detector, bool ceiling) {
  decide::GapSettings settings;
  settings.kind = detector == "eprocess_any" ? "eprocess" : detector;
  if (detector == "eprocess_any") settings.noise = "any";
  if (!ceiling) settings.ceiling_percent = kInfinity;
  return settings;
}

struct Delays {
  std::vector<double> all;  // infinite where there was no alarm
  std::map<std::string, std::vector<double>> by_fault;
  std::vector<std::string> missed;
};

Delays delays_of(const std::vector<Run>& observed, const decide::GapSettings& settings) {
  Delays delays;
  for (const Run& run : observed) {
    if (!harmful(run)) continue;
    const Detected found = replay_detector(run.series, settings);
    const double delay = found.delay ? static_cast<double>(*found.delay) : kInfinity;
    delays.all.push_back(delay);
    delays.by_fault[run.label.fault].push_back(delay);
    if (!found.delay) {
      delays.missed.push_back(run.label.configuration + " " + run.label.fault + " seed " +
                              std::to_string(run.label.seed));
    }
  }
  return delays;
}

void add_delays(json::object& object, const Delays& delays) {
  const auto runs = static_cast<int64_t>(delays.all.size());
  const auto missed = static_cast<int64_t>(delays.missed.size());
  object["caught_share"] = share(runs - missed, runs);
  object["median_delay_windows"] = runs > 0 ? finite(quantile(delays.all, 0.5)) : nullptr;
  object["p95_delay_windows"] = runs > 0 ? finite(quantile(delays.all, 0.95)) : nullptr;
}

int64_t false_alarms(const std::vector<Run>& observed, const decide::GapSettings& settings) {
  int64_t total = 0;
  for (const Run& run : observed) total += replay_detector(run.series, settings).false_alarms;
  return total;
}

json::object rival(const std::vector<Run>& observed, const std::vector<Series>& series,
                   const std::string& detector, int64_t alarms) {
  const decide::GapSettings as_set_up = settings_of(detector, false);
  const decide::GapSettings equal = at_equal_false_alarms(as_set_up, series, alarms);
  const Delays delays = delays_of(observed, equal);
  json::object object{{"false_alarms", false_alarms(observed, as_set_up)},
                      {"threshold", equal.threshold.value_or(equal.windows_between_false_alarms)}};
  add_delays(object, delays);
  json::object by_fault;
  for (const auto& [fault, some] : delays.by_fault) {
    by_fault[fault] = finite(quantile(some, 0.5));
  }
  object["median_by_fault"] = std::move(by_fault);
  return object;
}

void add_detection(json::object& result, const std::vector<Run>& observed) {
  int64_t windows = 0;
  std::vector<Series> series;
  for (const Run& run : observed) {
    windows += static_cast<int64_t>(run.series.first_faulty);
    series.push_back(run.series);
  }
  const decide::GapSettings own = settings_of("eprocess", true);
  const int64_t alarms = false_alarms(observed, own);
  result["healthy_windows"] = windows;
  result["false_alarms"] = alarms;
  // Wilson and Hilferty's upper limit of a Poisson mean.
  const double next = static_cast<double>(alarms) + 1;
  result["false_alarms_high_95"] =
      next * std::pow(1 - 1 / (9 * next) + 1.96 / (3 * std::sqrt(next)), 3);
  const Delays delays = delays_of(observed, own);
  result["harmful_runs"] = static_cast<int64_t>(delays.all.size());
  add_delays(result, delays);
  result["missed"] = json::value_from(delays.missed);
  const int64_t equal = false_alarms(observed, settings_of("eprocess", false));
  json::object rivals;
  for (const std::string& detector : kDetectors) {
    rivals[detector] = rival(observed, series, detector, equal);
  }
  result["rivals"] = std::move(rivals);
}

// ---- verdicts

// The first after the fault began that did not call it chance; chance or none, when there is no
// other.
std::string verdict_of(const Run& run) {
  std::string found = "none";
  for (const TracedDecision& each : run.trace->decisions) {
    if (each.decision.kind != "verdict") continue;
    if (run.label.fault_from && each.decision.step < *run.label.fault_from) continue;
    found = each.decision.verdict;
    if (found != "chance") break;
  }
  return found;
}

// What harms nobody may also be let pass.
bool right(const Run& run, const std::string& verdict) {
  if (std::ranges::count(run.label.right_verdicts, verdict) > 0) return true;
  const bool passes = verdict == "accepted_gap" || verdict == "chance" || verdict == "none";
  return passes && !harmful(run);
}

// Observed runs, which nothing has interfered with, so that harm is what the fault did.
void add_triage(json::object& result, const std::vector<Run>& observed) {
  std::map<std::string, std::map<std::string, int64_t>> confusion;
  int64_t judged = 0, correct = 0, blamed = 0;
  for (const Run& run : observed) {
    if (run.healthy()) continue;
    const std::string verdict = verdict_of(run);
    confusion[run.label.origin][verdict] += 1;
    if (run.generic()) blamed += verdict == "fp8_numerics" || verdict == "kernel_bug";
    if (verdict == "none" && !harmful(run)) continue;
    judged += 1;
    correct += right(run, verdict);
  }
  result["triage_accuracy"] = share(correct, judged);
  result["confusion"] = json::value_from(confusion);
  result["spikes_blamed_on_fp8"] = blamed;
}

// ---- what was done about it

bool is_action(const TracedDecision& each) {
  return each.decision.kind == "action" && each.decision.enforced && each.decision.action != "none";
}

void add_actions(json::object& result, const std::vector<Run>& enforced) {
  int64_t healthy = 0, on_healthy = 0, pins = 0, guilty = 0, attributions = 0;
  double replays = 0, pinned = 0;
  for (const Run& run : enforced) {
    healthy += run.healthy();
    const std::set<std::string> sites(run.label.guilty_sites.begin(), run.label.guilty_sites.end());
    for (const TracedDecision& each : run.trace->decisions) {
      if (run.healthy()) on_healthy += is_action(each);
      if (each.decision.kind == "attribution") attributions += 1;
      // Where every site is guilty, any would be right.
      if (!is_action(each) || each.decision.action != "pin" || sites.size() != 1) continue;
      if (each.decision.step < *run.label.fault_from) continue;
      pins += 1;
      pinned += static_cast<double>(each.decision.sites.size());
      guilty += std::ranges::count(each.decision.sites, *sites.begin()) > 0;
    }
    for (const TracedEvent& each : run.trace->events) {
      const auto* replay = std::get_if<decide::ReplayFinished>(&each.event);
      replays += replay != nullptr && replay->purpose == "attribution";
    }
  }
  result["healthy_runs"] = healthy;
  result["actions_on_healthy"] = healthy > 0 ? json::value(on_healthy) : nullptr;
  result["guilty_site_pinned_share"] = share(guilty, pins);
  result["mean_pinned_sites"] = finite(pinned / static_cast<double>(pins));
  result["replays_per_attribution"] = finite(replays / static_cast<double>(attributions));
}

// Of enforced runs whose fault harmed the observed run beside them, those that went to their end.
void add_ends(json::object& result, const Runs& runs) {
  using Key = std::tuple<std::string, std::string, int64_t>;
  const auto key = [](const Run& run) {
    return Key{run.label.configuration, run.label.fault, run.label.seed};
  };
  std::set<Key> harmed;
  for (const Run& run : runs.observed) {
    if (harmful(run)) harmed.insert(key(run));
  }
  int64_t ended = 0, within = 0;
  double worse = 0;
  for (const Run& run : runs.enforced) {
    if (!harmed.contains(key(run)) || run.trace->result.outcome != "completed") continue;
    ended += 1;
    within += *run.worse_by <= kHarmPercent;
    worse += *run.worse_by;
  }
  result["final_within_share"] = share(within, ended);
  result["mean_final_percent"] = finite(worse / static_cast<double>(ended));
}

}  // namespace

json::object findings(const std::vector<Trace>& traces) {
  const Runs runs = sorted_out(traces);
  json::object result{{"bench", "detect"}, {"traces", static_cast<int64_t>(traces.size())}};
  result["chance_percent"] = json::value_from(runs.chance);
  result["worse_runs"] = std::ranges::count_if(runs.observed, worse);
  add_detection(result, runs.observed);
  add_triage(result, runs.observed);
  add_actions(result, runs.enforced);
  add_ends(result, runs);
  return result;
}

}  // namespace gnomon::rehearsal

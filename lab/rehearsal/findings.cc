#include "lab/rehearsal/findings.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "controller/decide/gap_rivals.h"
#include "lab/rehearsal/aftermath.h"
#include "lab/rehearsal/detection.h"
#include "lab/rehearsal/findings_numbers.h"
#include "lab/rehearsal/gradient_switch.h"
#include "lab/rehearsal/recorded_runs.h"

namespace gnomon::rehearsal {
namespace {

namespace json = boost::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::vector<std::string> kDetectors = {"eprocess", "eprocess_any", "evidence", "cusum",
                                             "ewma",     "glr",          "shewhart", "fixed"};

// ---- the detector and its rivals

decide::GapSettings settings_of(decide::GapSettings settings, const std::string& detector,
                                bool ceiling) {
  settings.kind = decide::is_rival(detector) ? detector : "eprocess";
  if (detector == "evidence") settings.jump_deviations = 0;
  if (detector == "eprocess_any") settings.noise = "any";
  if (!ceiling) settings.ceiling_percent = kInfinity;
  return settings;
}

struct Delays {
  std::vector<double> all;  // infinite where there was no alarm
  std::map<std::string, std::vector<double>> by_fault;
  std::vector<std::string> missed;
};

Delays delays_of(const std::vector<RecordedRun>& observed, const decide::GapSettings& settings) {
  Delays delays;
  for (const RecordedRun& run : observed) {
    if (!run.harmful()) continue;
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

// NaN of none.
double mean_of_caught(const Delays& delays) {
  double sum = 0;
  int64_t caught = 0;
  for (double delay : delays.all) {
    if (!std::isfinite(delay)) continue;
    sum += delay;
    caught += 1;
  }
  return sum / static_cast<double>(caught);
}

void add_delays(json::object& object, const Delays& delays) {
  const auto runs = static_cast<int64_t>(delays.all.size());
  const auto missed = static_cast<int64_t>(delays.missed.size());
  object["caught_share"] = share(runs - missed, runs);
  object["median_delay_windows"] = runs > 0 ? finite(quantile(delays.all, 0.5)) : nullptr;
  object["p95_delay_windows"] = runs > 0 ? finite(quantile(delays.all, 0.95)) : nullptr;
  object["mean_delay_windows"] = finite(mean_of_caught(delays));
}

int64_t false_alarms(const std::vector<RecordedRun>& observed,
                     const decide::GapSettings& settings) {
  int64_t total = 0;
  for (const RecordedRun& run : observed)
    total += replay_detector(run.series, settings).false_alarms;
  return total;
}

json::object rival(const std::vector<RecordedRun>& observed,
                   const std::vector<RecordedRun>& healthy, const std::vector<Series>& series,
                   const decide::GapSettings& as_set_up, int64_t alarms) {
  const decide::GapSettings equal = at_equal_false_alarms(as_set_up, series, alarms);
  const Delays delays = delays_of(observed, equal);
  json::object object{{"false_alarms", false_alarms(healthy, as_set_up)},
                      {"threshold", equal.threshold.value_or(equal.windows_between_false_alarms)}};
  add_delays(object, delays);
  json::object by_fault;
  for (const auto& [fault, some] : delays.by_fault) {
    by_fault[fault] = finite(quantile(some, 0.5));
  }
  object["median_by_fault"] = std::move(by_fault);
  return object;
}

// Counts and sums for one fault at one strength.
struct FaultRuns {
  int64_t runs = 0, harmful = 0, caught = 0;
  double above_bf16 = 0, above_fp8 = 0;
};

json::object by_fault(const std::vector<RecordedRun>& observed, const decide::GapSettings& own) {
  std::map<std::string, FaultRuns> faults;
  for (const RecordedRun& run : observed) {
    if (run.healthy()) continue;
    FaultRuns& fault = faults[run.label.fault];
    fault.runs += 1;
    fault.harmful += run.harmful();
    fault.caught += replay_detector(run.series, own).delay.has_value();
    fault.above_bf16 += run.above_bf16.value_or(0);
    fault.above_fp8 += run.above_fp8.value_or(0);
  }
  json::object result;
  for (const auto& [name, fault] : faults) {
    const auto runs = static_cast<double>(fault.runs);
    result[name] = {{"runs", fault.runs},
                    {"harmful", fault.harmful},
                    {"caught", fault.caught},
                    {"above_bf16_percent", finite(fault.above_bf16 / runs)},
                    {"above_healthy_percent", finite(fault.above_fp8 / runs)}};
  }
  return result;
}

void add_detection(json::object& result, const std::vector<RecordedRun>& observed,
                   const decide::GapSettings& own) {
  int64_t windows = 0;
  std::vector<Series> series;
  // Faulty runs begin as the healthy one of their seed does: their windows are no others.
  std::vector<RecordedRun> healthy;
  for (const RecordedRun& run : observed) {
    if (!run.healthy()) continue;
    windows += static_cast<int64_t>(run.series.first_faulty);
    series.push_back(run.series);
    healthy.push_back(run);
  }
  const int64_t alarms = false_alarms(healthy, own);
  result["healthy_windows"] = windows;
  result["false_alarms"] = alarms;
  result["false_alarms_high_95"] = poisson_high_95(alarms);
  const Delays delays = delays_of(observed, own);
  result["harmful_runs"] = static_cast<int64_t>(delays.all.size());
  add_delays(result, delays);
  result["by_fault"] = by_fault(observed, own);
  result["missed"] = json::value_from(delays.missed);
  const int64_t equal = false_alarms(healthy, settings_of(own, "eprocess", false));
  json::object rivals;
  for (const std::string& detector : kDetectors) {
    rivals[detector] = rival(observed, healthy, series, settings_of(own, detector, false), equal);
  }
  result["rivals"] = std::move(rivals);
}

// ---- do windows depend on each other?

struct Correlation {
  double products = 0, squares = 0;
  int64_t pairs = 0;

  void add(const Series& series) {
    double mean = 0;
    for (const decide::GapSample& each : series.samples) mean += each.d_percent;
    mean /= static_cast<double>(series.samples.size());
    for (size_t i = 0; i < series.samples.size(); ++i) {
      const double d = series.samples[i].d_percent - mean;
      squares += d * d;
      if (i == 0) continue;
      products += d * (series.samples[i - 1].d_percent - mean);
      pairs += 1;
    }
  }
};

// Pooled over the runs of a configuration, each about its own mean; the error is that of
// independent windows.
json::object neighbour_correlation(const std::vector<RecordedRun>& observed) {
  std::map<std::string, Correlation> by_configuration;
  for (const RecordedRun& run : observed) {
    if (run.healthy()) by_configuration[run.label.configuration].add(run.series);
  }
  json::object result;
  for (const auto& [name, each] : by_configuration) {
    result[name] = {{"correlation", finite(each.products / each.squares)},
                    {"error", finite(1 / std::sqrt(static_cast<double>(each.pairs)))}};
  }
  return result;
}

// ---- verdicts

// The first after the fault began that did not call it chance; chance or none, when there is no
// other.
std::string verdict_of(const RecordedRun& run) {
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
bool right(const RecordedRun& run, const std::string& verdict, bool harmed) {
  if (std::ranges::count(run.label.right_verdicts, verdict) > 0) return true;
  const bool passes = verdict == "accepted_gap" || verdict == "chance" || verdict == "none";
  return passes && !harmed;
}

// Up to the first verdict an enforced run is the observed one.
void add_triage(json::object& result, const RecordedRuns& runs) {
  std::map<std::string, std::map<std::string, int64_t>> confusion;
  std::vector<std::string> wrong;
  int64_t judged = 0, correct = 0, blamed = 0;
  for (const RecordedRun& run : runs.enforced) {
    if (run.healthy()) continue;
    const std::string verdict = verdict_of(run);
    const bool harmed = runs.harmed(run);
    confusion[run.label.origin][verdict] += 1;
    if (run.generic()) blamed += verdict == "fp8_numerics" || verdict == "kernel_bug";
    if (verdict == "none" && !harmed) continue;
    judged += 1;
    if (right(run, verdict, harmed)) {
      correct += 1;
    } else {
      wrong.push_back(run.label.configuration + " " + run.label.fault + " seed " +
                      std::to_string(run.label.seed) + ": " + verdict);
    }
  }
  result["triage_accuracy"] = share(correct, judged);
  result["triage_judged"] = judged;
  result["triage_wrong"] = json::value_from(wrong);
  result["confusion"] = json::value_from(confusion);
  result["spikes_blamed_on_fp8"] = blamed;
}

// ---- run by run

json::array rows(const RecordedRuns& runs, const decide::GapSettings& detector) {
  json::array result;
  const auto add = [&](const RecordedRun& run, bool harmed) {
    json::object row{{"configuration", run.label.configuration},
                     {"fault", run.label.fault},
                     {"seed", run.label.seed},
                     {"mode", run.label.mode},
                     {"outcome", run.trace->result.outcome},
                     {"harmful", harmed},
                     {"above_bf16_percent", finite(run.above_bf16.value_or(kInfinity))},
                     {"above_healthy_percent", finite(run.above_fp8.value_or(kInfinity))}};
    if (run.label.mode == "observe") {
      const auto delay = replay_detector(run.series, detector).delay;
      row["delay_windows"] = delay ? json::value(*delay) : nullptr;
    } else {
      row["verdict"] = verdict_of(run);
      row["steps_trained"] = run.trace->result.steps_trained;
    }
    result.push_back(std::move(row));
  };
  for (const RecordedRun& run : runs.observed) add(run, run.harmful());
  for (const RecordedRun& run : runs.enforced) add(run, runs.harmed(run));
  return result;
}

}  // namespace

json::object findings(const std::vector<Trace>& traces, const decide::GapSettings& detector) {
  const RecordedRuns runs = sorted_out(traces);
  json::object result{{"bench", "detect"}, {"traces", static_cast<int64_t>(traces.size())}};
  result["chance_percent"] = json::value_from(runs.chance_bf16);
  result["chance_fp8_percent"] = json::value_from(runs.chance_fp8);
  result["healthy_cost_percent"] = json::value_from(runs.healthy_cost);
  add_detection(result, runs.observed, detector);
  result["neighbour_correlation"] = neighbour_correlation(runs.observed);
  result["gradient_switch"] = gradient_switch(runs.observed);
  add_triage(result, runs);
  for (const auto& each : aftermath(runs)) result[each.key()] = each.value();
  result["runs"] = rows(runs, detector);
  return result;
}

}  // namespace gnomon::rehearsal

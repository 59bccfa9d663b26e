#include "lab/rehearsal/budget_findings.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <string>

#include "controller/decide/gap_rivals.h"
#include "controller/decide/gap_settings.h"
#include "controller/decide/promise.h"
#include "lab/rehearsal/detection.h"
#include "lab/rehearsal/findings_numbers.h"
#include "lab/rehearsal/recorded_runs.h"

namespace gnomon::rehearsal {
namespace {

namespace json = boost::json;

constexpr double kEndPercent = 0.5;
const std::vector<std::string> kRivals = {"fixed", "ewma", "glr", "cusum"};

// NaN is left out.
json::object spread_of(std::vector<double> values) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  return {{"median", finite(quantile(values, 0.5))}, {"most", finite(quantile(values, 1))}};
}

// ---- one run

bool accuses(const decide::RecordDecision& decision) {
  return decision.kind == "alarm" || decision.kind == "health";
}

// An observed run's actions are not enforced, but for the quarantine of a verifier.
bool would_act(const decide::RecordDecision& decision) {
  return decision.kind == "action" && decision.action != "none";
}

bool acts(const decide::RecordDecision& decision) {
  return would_act(decision) && decision.enforced;
}

// Step of the first alarm or health decision after something went wrong; of a liar, its quarantine.
std::optional<int64_t> caught_at(const RecordedRun& run) {
  for (const TracedDecision& each : run.trace->decisions) {
    if (each.decision.step < run.label.fault_from.value_or(0)) continue;
    const bool found =
        run.label.lies ? each.decision.action == "quarantine" : accuses(each.decision);
    if (found) return each.decision.step;
  }
  return std::nullopt;
}

// Step of the first verdict that is right. A flip beside a lasting fault is not what does harm.
std::optional<int64_t> blamed_at(const RecordedRun& run) {
  std::vector<std::string> right = run.label.right_verdicts;
  const auto flip = [](const std::string& verdict) { return verdict == "transient_fault"; };
  if (!std::ranges::all_of(right, flip)) std::erase_if(right, flip);
  for (const TracedDecision& each : run.trace->decisions) {
    if (each.decision.step < run.label.fault_from.value_or(0)) continue;
    if (each.decision.kind == "verdict" && std::ranges::count(right, each.decision.verdict) > 0) {
      return each.decision.step;
    }
  }
  return std::nullopt;
}

// Nothing where there is no step.
json::value after_fault(const RecordedRun& run, std::optional<int64_t> step) {
  if (!step) return nullptr;
  return *step - run.label.fault_from.value_or(0);
}

template <typename Is>
int64_t count_decisions(const RecordedRun& run, Is is) {
  return std::ranges::count_if(run.trace->decisions,
                               [&](const TracedDecision& each) { return is(each.decision); });
}

double share_percent(const RecordedRun& run) {
  return 100 * run.trace->result.replay_seconds / run.trace->result.training_seconds;
}

// Mean of D over windows that the fault fills, per cent; nothing without any.
std::optional<double> cost_of(const Series& series) {
  double sum = 0;
  int64_t count = 0;
  for (size_t i = series.first_filled; i < series.samples.size(); ++i) {
    if (!std::isfinite(series.samples[i].d_percent)) return series.samples[i].d_percent;
    sum += series.samples[i].d_percent;
    count += 1;
  }
  if (count == 0) return std::nullopt;
  return sum / static_cast<double>(count);
}

// Windows of the liar between its first lie and its name, both counted.
int64_t windows_of_liar(const RecordedRun& run) {
  std::map<int64_t, int64_t> starts;
  for (const TracedWindow& window : run.trace->windows) starts[window.window] = window.start_step;
  double named_at = run.trace->result.seconds;
  for (const TracedDecision& each : run.trace->decisions) {
    if (each.decision.action == "quarantine") {
      named_at = each.at;
      break;
    }
  }
  int64_t windows = 0;
  for (const TracedEvent& each : run.trace->events) {
    const auto* replay = std::get_if<decide::ReplayFinished>(&each.event);
    windows += replay != nullptr && each.at <= named_at && replay->verifier == "verifier-2" &&
               starts[replay->window] + 1 >= *run.label.fault_from;
  }
  return windows;
}

bool names_honest(const decide::RecordDecision& decision) {
  return decision.action == "quarantine" &&
         decision.evidence.find("verifier-2") == std::string::npos;
}

// ---- all runs

class BudgetFindings {
 public:
  BudgetFindings(const std::vector<Trace>& traces, const decide::Policy& policy)
      : policy_(policy), runs_(sorted_out(traces)) {
    for (RecordedRun& run : runs_.observed) {
      (run.label.windows_every > 0 ? half_ : observed_).push_back(run);
    }
    runs_.observed = observed_;
    measure_noise();
  }

  json::object all() {
    return {{"bench", "detect"},
            {"study", "budget"},
            {"cores", cores()},
            {"chance_fp8_percent", json::value_from(runs_.chance_fp8)},
            {"noise_percent", json::value_from(noise_)},
            {"healthy", healthy()},
            {"harmful", harmful()},
            {"missed", missed()},
            {"ends", ends()},
            {"liars", liars()},
            {"rivals", rivals()},
            {"by_fault", by_fault()},
            {"runs", rows()}};
  }

 private:
  void measure_noise();
  bool repeats_observed(const RecordedRun& run) const;
  json::object cores() const;
  json::object healthy() const;
  json::object harmful() const;
  json::array missed() const;
  json::object ends() const;
  json::object liars() const;
  json::object rivals() const;
  json::object by_fault() const;
  json::array rows() const;

  const RecordedRun* half_of(const RecordedRun& run) const;
  std::optional<double> cost(const RecordedRun& run) const;
  std::optional<int64_t> promised(const RecordedRun& run) const;
  bool covered(const RecordedRun& run) const;
  bool ends_well(const RecordedRun& run) const;
  json::object promise() const;

  const decide::Policy& policy_;
  RecordedRuns runs_;
  std::vector<RecordedRun> observed_;    // at the budget
  std::vector<RecordedRun> half_;        // half of every 50 steps
  std::map<std::string, double> noise_;  // deviation of D in healthy windows, by configuration
};

void BudgetFindings::measure_noise() {
  std::map<std::string, std::vector<double>> values;
  for (const RecordedRun& run : half_) {
    if (run.label.fault_from) continue;
    for (const auto& each : run.series.samples) {
      values[run.label.configuration].push_back(each.d_percent);
    }
  }
  // From the middle half: windows of the steep start are no noise.
  for (auto& [name, all] : values) {
    noise_[name] = (quantile(all, 0.75) - quantile(all, 0.25)) / 1.349;
  }
}

const RecordedRun* BudgetFindings::half_of(const RecordedRun& run) const {
  const auto found = std::ranges::find(half_, run.key(), &RecordedRun::key);
  return found == half_.end() ? nullptr : &*found;
}

std::optional<double> BudgetFindings::cost(const RecordedRun& run) const {
  const RecordedRun* half = half_of(run);
  return cost_of(half == nullptr ? run.series : half->series);
}

std::optional<int64_t> BudgetFindings::promised(const RecordedRun& run) const {
  const std::optional<double> lost = cost(run);
  const auto noise = noise_.find(run.label.configuration);
  if (!lost || noise == noise_.end()) return std::nullopt;
  const double scale = noise->second;
  const double over = (*lost - policy_.detector.tolerance_percent) / scale;
  if (!(over > 0.5)) return std::nullopt;
  const decide::WindowLengths lengths = decide::asked_lengths(policy_, 50);
  return decide::promise(policy_, lengths, scale, std::min(over, 20.0)).within_steps;
}

bool BudgetFindings::covered(const RecordedRun& run) const {
  const std::optional<int64_t> within = promised(run);
  return within && *run.label.fault_from + *within <= run.label.steps;
}

bool BudgetFindings::ends_well(const RecordedRun& run) const {
  return *run.above_fp8 <= std::max(kEndPercent, kHarmDeviations * run.chance_percent);
}

// Without an action an enforced run is the observed one, to the bit.
bool BudgetFindings::repeats_observed(const RecordedRun& run) const {
  return count_decisions(run, acts) == 0 &&
         std::ranges::any_of(observed_, [&](const RecordedRun& other) {
           return other.label.configuration == run.label.configuration &&
                  other.label.fault == run.label.fault && other.label.seed == run.label.seed;
         });
}

json::object healthy_counts(const std::vector<RecordedRun>& runs) {
  int64_t count = 0, windows = 0, alarms = 0, actions = 0, calls = 0, steps = 0;
  std::map<std::string, int64_t> verdicts;
  std::vector<double> shares;
  for (const RecordedRun& run : runs) {
    if (run.label.fault_from) continue;
    count += 1;
    steps += run.trace->result.steps_trained;
    windows += std::ranges::count_if(run.trace->windows,
                                     [](const auto& each) { return each.d_percent.has_value(); });
    alarms += count_decisions(run, accuses);
    actions += count_decisions(run, would_act);
    for (const TracedDecision& each : run.trace->decisions) {
      if (each.decision.kind == "verdict") verdicts[each.decision.verdict] += 1;
    }
    calls += count_decisions(run, [](const auto& each) { return each.kind == "sentinel"; });
    shares.push_back(share_percent(run));
  }
  return {{"runs", count},
          {"steps", steps},
          {"windows", windows},
          {"alarms", alarms},
          {"verdicts", json::value_from(verdicts)},
          {"actions", actions},
          {"actions_high_95", poisson_high_95(actions)},
          {"sentinel_calls", calls},
          {"share_percent", spread_of(shares)}};
}

json::object BudgetFindings::healthy() const {
  std::vector<RecordedRun> at_budget = observed_;
  std::ranges::copy_if(runs_.enforced, std::back_inserter(at_budget),
                       [this](const RecordedRun& run) { return !repeats_observed(run); });
  return {{"budget", healthy_counts(at_budget)}, {"half", healthy_counts(half_)}};
}

json::object harmful_counts(const std::vector<RecordedRun>& runs) {
  int64_t harmed = 0;
  std::vector<double> delays, blames;
  for (const RecordedRun& run : runs) {
    if (!run.harmful()) continue;
    harmed += 1;
    const auto from = static_cast<double>(*run.label.fault_from);
    if (const auto at = caught_at(run)) delays.push_back(static_cast<double>(*at) - from);
    if (const auto at = blamed_at(run)) blames.push_back(static_cast<double>(*at) - from);
  }
  const auto steps = [](const std::vector<double>& values) {
    return json::object{{"runs", std::ssize(values)},
                        {"median", finite(quantile(values, 0.5))},
                        {"p95", finite(quantile(values, 0.95))},
                        {"most", finite(quantile(values, 1))}};
  };
  return {{"runs", harmed}, {"steps_to_alarm", steps(delays)}, {"steps_to_blame", steps(blames)}};
}

json::object BudgetFindings::promise() const {
  int64_t all = 0, caught = 0, in_time = 0;
  for (const RecordedRun& run : observed_) {
    if (!run.harmful() || !covered(run)) continue;
    all += 1;
    const std::optional<int64_t> at = caught_at(run);
    caught += at.has_value();
    in_time += at && *at - *run.label.fault_from <= *promised(run);
  }
  return {{"covered", all}, {"caught", caught}, {"in_time", in_time}};
}

json::object BudgetFindings::harmful() const {
  std::vector<RecordedRun> beside_half;
  std::ranges::copy_if(observed_, std::back_inserter(beside_half),
                       [this](const RecordedRun& run) { return half_of(run) != nullptr; });
  return {{"budget", harmful_counts(observed_)},
          {"promise", promise()},
          {"budget_beside_half", harmful_counts(beside_half)},
          {"half", harmful_counts(half_)}};
}

// Faulty runs without an alarm, harmful or not.
json::array BudgetFindings::missed() const {
  json::array result;
  for (const RecordedRun& run : observed_) {
    if (!run.label.fault_from || run.label.lies || caught_at(run)) continue;
    result.push_back({{"fault", run.label.fault},
                      {"configuration", run.label.configuration},
                      {"seed", run.label.seed},
                      {"harmful", run.harmful()},
                      {"above_healthy_percent", finite(run.above_fp8.value_or(std::nan("")))},
                      {"harmful_above_percent", run.harmful_above_percent()}});
  }
  return result;
}

// Recorded runs by the revision that made them; and enforced runs whose first alarm is not that of
// their observed twin, as of the same core it must be.
json::object BudgetFindings::cores() const {
  std::map<std::string, int64_t> revisions;
  for (const auto* group : {&observed_, &half_, &runs_.enforced}) {
    for (const RecordedRun& run : *group) revisions[run.label.revision] += 1;
  }
  int64_t differ = 0;
  for (const RecordedRun& run : runs_.enforced) {
    const auto twin = std::ranges::find(observed_, run.key(), &RecordedRun::key);
    differ += twin != observed_.end() && caught_at(*twin) != caught_at(run);
  }
  return {{"revisions", json::value_from(revisions)}, {"twins_that_differ", differ}};
}

// Ends of enforced runs in which the fault harmed the observed twin.
struct EndCounts {
  int64_t completed = 0, within = 0;
  double deviations = 0;  // of chance, summed
  std::vector<double> above;

  json::object to_json() const {
    return {{"completed", completed},
            {"within", within},
            {"deviations", finite(deviations / std::sqrt(static_cast<double>(completed)))},
            {"above_healthy_percent", spread_of(above)}};
  }
};

json::object BudgetFindings::ends() const {
  EndCounts all;
  std::map<std::string, EndCounts> faults;
  std::map<std::string, int64_t> others;
  int64_t unattended = 0;
  std::vector<double> shares;
  for (const RecordedRun& run : runs_.enforced) {
    if (!runs_.harmed(run)) continue;
    unattended += count_decisions(run, acts) == 0;
    shares.push_back(share_percent(run));
    if (run.trace->result.outcome != "completed") {
      others[run.trace->result.outcome] += 1;
      continue;
    }
    for (EndCounts* each : {&all, &faults[run.label.fault]}) {
      each->completed += 1;
      each->within += ends_well(run);
      each->deviations += *run.above_fp8 / run.chance_percent;
      each->above.push_back(*run.above_fp8);
    }
  }
  json::object by_fault;
  for (const auto& [name, each] : faults) by_fault[name] = each.to_json();
  return {{"all", all.to_json()},
          {"not_completed", json::value_from(others)},
          {"unattended", unattended},
          {"share_percent", spread_of(shares)},
          {"by_fault", std::move(by_fault)}};
}

json::object BudgetFindings::liars() const {
  struct Lies {
    int64_t runs = 0, named = 0;
    std::vector<double> windows;
  };
  std::map<std::string, Lies> lies;
  int64_t honest = 0;
  for (const RecordedRun& run : runs_.enforced) honest += count_decisions(run, names_honest);
  for (const RecordedRun& run : observed_) {
    honest += count_decisions(run, names_honest);
    if (!run.label.lies) continue;
    Lies& kind = lies[run.label.fault];
    kind.runs += 1;
    if (!caught_at(run)) continue;
    kind.named += 1;
    kind.windows.push_back(static_cast<double>(windows_of_liar(run)));
  }
  json::object result{{"honest_named", honest}};
  for (const auto& [name, kind] : lies) {
    result[name] = {{"runs", kind.runs},
                    {"named", kind.named},
                    {"windows_of_the_liar", spread_of(kind.windows)}};
  }
  return result;
}

json::object BudgetFindings::rivals() const {
  json::object result;
  for (const std::string& kind : kRivals) {
    decide::GapSettings settings = decide::gap_settings(policy_);
    settings.kind = kind;
    int64_t harmed = 0, caught = 0, alarms = 0;
    for (const RecordedRun& run : observed_) {
      const Detected found = replay_detector(run.series, settings);
      if (!run.label.fault_from) alarms += found.false_alarms;
      if (!run.harmful()) continue;
      harmed += 1;
      caught += found.delay.has_value();
    }
    result[kind] = {{"harmful", harmed}, {"caught", caught}, {"false_alarms", alarms}};
  }
  return result;
}

json::object BudgetFindings::by_fault() const {
  std::map<std::string, std::vector<RecordedRun>> faults;
  for (const RecordedRun& run : observed_) {
    if (run.label.fault_from && !run.label.lies) faults[run.label.fault].push_back(run);
  }
  json::object result;
  for (const auto& [name, runs] : faults) {
    int64_t harmed = 0, caught = 0, half = 0;
    std::vector<double> costs, above;
    for (const RecordedRun& run : runs) {
      harmed += run.harmful();
      caught += caught_at(run).has_value();
      const RecordedRun* dense = half_of(run);
      half += dense != nullptr && caught_at(*dense).has_value();
      costs.push_back(cost(run).value_or(std::nan("")));
      above.push_back(run.above_fp8.value_or(std::nan("")));
    }
    result[name] = {{"runs", std::ssize(runs)},
                    {"harmful", harmed},
                    {"caught", caught},
                    {"caught_by_half", half},
                    {"cost_percent", spread_of(costs)},
                    {"above_healthy_percent", spread_of(above)}};
  }
  return result;
}

json::array BudgetFindings::rows() const {
  json::array result;
  const auto add = [&](const RecordedRun& run, const char* role) {
    const std::optional<int64_t> at = caught_at(run);
    const std::optional<int64_t> within = promised(run);
    std::string verdict;
    for (const TracedDecision& each : run.trace->decisions) {
      if (each.decision.kind == "verdict" && each.decision.verdict != "chance") {
        verdict = each.decision.verdict;
        break;
      }
    }
    result.push_back({{"role", role},
                      {"configuration", run.label.configuration},
                      {"fault", run.label.fault},
                      {"seed", run.label.seed},
                      {"outcome", run.trace->result.outcome},
                      {"delay_steps", after_fault(run, at)},
                      {"blame_steps", after_fault(run, blamed_at(run))},
                      {"harmful", run.harmful()},
                      {"promised_steps", within ? json::value(*within) : nullptr},
                      {"cost_percent", finite(cost(run).value_or(std::nan("")))},
                      {"verdict", verdict},
                      {"share_percent", share_percent(run)},
                      {"harmful_above_percent", run.harmful_above_percent()},
                      {"above_bf16_percent", finite(run.above_bf16.value_or(std::nan("")))},
                      {"above_healthy_percent", finite(run.above_fp8.value_or(std::nan("")))}});
  };
  for (const RecordedRun& run : observed_) add(run, "observed");
  for (const RecordedRun& run : half_) add(run, "half");
  for (const RecordedRun& run : runs_.enforced) add(run, "enforced");
  return result;
}

}  // namespace

json::object budget_findings(const std::vector<Trace>& traces, const decide::Policy& policy) {
  return BudgetFindings(traces, policy).all();
}

}  // namespace gnomon::rehearsal

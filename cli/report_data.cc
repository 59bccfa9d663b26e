// What the report's script draws, gathered from a run's history.
#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <limits>
#include <map>

#include "cli/json_output.h"
#include "cli/plan_precision.h"
#include "cli/report.h"
#include "protocol/json_text.h"

namespace gnomon::cli {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

boost::json::value number_or_null(double value) {
  return std::isfinite(value) ? boost::json::value(value) : nullptr;
}

// The last step of `attempt` that later attempts built upon; kNever for what was never thrown away.
int64_t kept_until(const RunHistory& history, int64_t attempt) {
  int64_t kept = kNever;
  for (const AttemptRow& row : history.attempts) {
    if (row.attempt > attempt) kept = std::min(kept, row.base_step);
  }
  return kept;
}

// Indices of at most kReportPointsMax steps: the highest and the lowest loss of each of equal
// pieces.
std::vector<size_t> thin(const std::vector<const StepRow*>& steps) {
  std::vector<size_t> chosen;
  size_t pieces = kReportPointsMax / 2;
  if (steps.size() <= kReportPointsMax) pieces = steps.size();
  for (size_t piece = 0; piece < pieces; ++piece) {
    size_t begin = piece * steps.size() / pieces;
    size_t end = (piece + 1) * steps.size() / pieces;
    size_t low = begin;
    size_t high = begin;
    for (size_t i = begin; i < end; ++i) {
      // A loss that is not finite is the most interesting of all.
      if (!std::isfinite(steps[i]->loss) || steps[i]->loss > steps[high]->loss) high = i;
      if (steps[i]->loss < steps[low]->loss) low = i;
    }
    chosen.push_back(std::min(low, high));
    if (low != high) chosen.push_back(std::max(low, high));
  }
  return chosen;
}

boost::json::array attempts_data(const RunHistory& history) {
  boost::json::array attempts;
  for (const AttemptRow& row : history.attempts) {
    std::vector<const StepRow*> own;
    for (const StepRow& step : history.steps) {
      if (step.attempt == row.attempt) own.push_back(&step);
    }
    boost::json::array steps;
    boost::json::array losses;
    for (size_t i : thin(own)) {
      steps.push_back(own[i]->step);
      losses.push_back(number_or_null(own[i]->loss));
    }
    int64_t kept = kept_until(history, row.attempt);
    attempts.push_back({{"attempt", row.attempt},
                        {"base_step", row.base_step},
                        {"cause", row.cause},
                        {"kept_until", kept == kNever ? boost::json::value(nullptr) : kept},
                        {"steps", std::move(steps)},
                        {"loss", std::move(losses)}});
  }
  return attempts;
}

boost::json::array shadow_data(const RunHistory& history) {
  std::map<int64_t, boost::json::object> windows;
  for (const ShadowStepRow& row : history.shadow) {
    boost::json::object& window = windows[row.window];
    if (window.empty()) {
      window = {{"window", row.window}, {"attempt", row.attempt}};
      window["steps"] = boost::json::array();
      window["loss"] = boost::json::array();
    }
    window["steps"].as_array().push_back(row.step);
    window["loss"].as_array().push_back(number_or_null(row.loss));
  }
  boost::json::array shadows;
  for (auto& [id, window] : windows) shadows.push_back(std::move(window));
  return shadows;
}

template <typename R>
boost::json::array rows_data(const std::vector<R>& rows) {
  boost::json::array array;
  for (const R& row : rows) array.push_back(parse_json_exactly(ledger::row_to_json(row)));
  return array;
}

// Which plan each kept step ran with, as runs of steps.
boost::json::array plan_spans(const RunHistory& history) {
  boost::json::array spans;
  int64_t from = 0;
  int64_t to = 0;
  int64_t version = -1;
  int64_t attempt = 0;
  auto flush = [&] {
    if (version < 0) return;
    spans.push_back({{"from", from}, {"to", to}, {"plan_version", version}, {"attempt", attempt}});
  };
  for (const StepRow& step : history.steps) {
    if (step.step > kept_until(history, step.attempt)) continue;
    if (step.plan_version != version || step.attempt != attempt || step.step != to + 1) {
      flush();
      from = step.step;
      version = step.plan_version;
      attempt = step.attempt;
    }
    to = step.step;
  }
  flush();
  return spans;
}

boost::json::object plans_data(const RunHistory& history) {
  boost::json::object plans;
  PlanPrecisions precisions(history);
  for (const auto& [version, sites] : precisions.by_version()) {
    boost::json::array counts;
    for (const auto& gemms : sites) counts.push_back(int{gemms[0]} + int{gemms[1]} + int{gemms[2]});
    plans[std::to_string(version)] = std::move(counts);
  }
  return plans;
}

}  // namespace

std::string report_data_json(const RunHistory& history, const RunSummary& summary) {
  const RunRegistration& registration = history.registration;
  boost::json::object data;
  data["run"] = {{"name", history.run.name},
                 {"job_id", history.run.job_id},
                 {"state", history.run.state},
                 {"registered_at", history.run.registered_at},
                 {"layers", registration.layers},
                 {"parameters", registration.parameters},
                 {"total_steps", registration.total_steps},
                 {"tokens_per_step", registration.tokens_per_step},
                 {"device", registration.fingerprint.device},
                 {"libraries", registration.fingerprint.libraries}};
  data["words"] = summary_in_words(summary);
  data["summary"] = parse_json_exactly(summary_to_json(summary));
  data["attempts"] = attempts_data(history);
  data["shadow"] = shadow_data(history);
  data["windows"] = rows_data(history.windows);
  data["decisions"] = rows_data(history.decisions);
  data["faults"] = rows_data(history.faults);
  data["sites"] = boost::json::value_from(registration.sites);
  data["plans"] = plans_data(history);
  data["spans"] = plan_spans(history);
  return boost::json::serialize(data);
}

}  // namespace gnomon::cli

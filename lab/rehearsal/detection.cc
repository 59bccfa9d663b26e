#include "lab/rehearsal/detection.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "controller/decide/policy.h"
#include "lab/rehearsal/catalogue.h"
#include "protocol/precision_plan.h"

namespace gnomon::rehearsal {
namespace {

namespace json = boost::json;

std::string text(const json::object& object, const char* key) {
  return std::string(std::string_view(object.at(key).as_string()));
}

int64_t total_false_alarms(const std::vector<Series>& all, const decide::GapSettings& settings) {
  int64_t total = 0;
  for (const Series& series : all) total += replay_detector(series, settings).false_alarms;
  return total;
}

}  // namespace

RunLabel label_of(const Trace& trace) {
  const json::object setup = json::parse(trace.setup).as_object();
  RunLabel label;
  label.revision = setup.contains("revision") ? text(setup, "revision") : "unknown";
  label.configuration = text(setup, "configuration");
  label.fault = text(setup, "fault");
  label.seed = setup.at("seed").to_number<int64_t>();
  label.watched = setup.at("watched").as_bool();
  const PrecisionPlan plan = PrecisionPlan::parse(text(setup, "plan"));
  label.mode = text(setup, "mode");
  label.steps = setup.at("steps").to_number<int64_t>();
  const EngineConfig engine =
      EngineConfig::from_json(json::serialize(setup.at("engine")), "setup of a trace");
  label.fp8 = std::ranges::any_of(engine.model.sites(), [&](const std::string& site) {
    return plan.resolve(site, engine.model.layers).any_fp8();
  });
  label.tokens_per_step = engine.batch.tokens_per_step();
  const auto policy = decide::Policy::parse(text(setup, "policy"));
  label.burn_in_steps = policy.detector.burn_in_steps;
  label.windows_every = policy.window.every;
  // Traces of before 27 November 2026 have no lie.
  if (setup.contains("lie") && text(setup, "lie") != lie_name(Lie::kNone)) {
    label.lies = true;
    label.fault_from = setup.at("lies_from").to_number<int64_t>();
  }
  if (!engine.faults.empty()) {
    const Truth truth = truth_of(engine, plan);
    label.fault_from = std::ranges::min(engine.faults, {}, &Fault::start_step).start_step;
    label.origin = fault_origin_name(fault_traits(engine.faults.front().kind).origin);
    label.guilty_sites = truth.sites;
    label.right_verdicts = truth.verdicts;
  }
  return label;
}

Series series_of(const Trace& trace) {
  const RunLabel label = label_of(trace);
  std::vector<TracedWindow> windows;
  for (const TracedWindow& window : trace.windows) {
    if (window.kind == "shadow" && window.d_percent && window.start_step >= label.burn_in_steps) {
      windows.push_back(window);
    }
  }
  std::ranges::stable_sort(windows, {}, &TracedWindow::start_step);
  Series series;
  for (const TracedWindow& window : windows) {
    const bool faulty = label.fault_from && window.start_step + window.steps >= *label.fault_from;
    if (!faulty) series.first_faulty = series.samples.size() + 1;
    const bool filled = label.fault_from && window.start_step + 1 >= *label.fault_from;
    if (!filled) series.first_filled = series.samples.size() + 1;
    series.samples.push_back({.d_percent = *window.d_percent,
                              .steps = static_cast<double>(window.steps),
                              .tokens_per_step = static_cast<double>(label.tokens_per_step),
                              .plan_version = window.plan_version});
  }
  return series;
}

Detected replay_detector(const Series& series, const decide::GapSettings& settings) {
  Detected result;
  decide::GapState state;
  for (size_t i = 0; i < series.samples.size(); ++i) {
    const bool alarm = decide::observe_gap(state, series.samples[i], settings).alarm;
    if (i < series.first_faulty) {
      ++result.healthy_windows;
      result.false_alarms += alarm;
      if (alarm) decide::restart_gap(state);
    } else if (alarm) {
      result.delay = static_cast<int64_t>(i - series.first_faulty) + 1;
      break;
    }
  }
  return result;
}

decide::GapSettings at_equal_false_alarms(decide::GapSettings settings,
                                          const std::vector<Series>& all, int64_t false_alarms) {
  const bool by_rate = settings.kind == "eprocess";
  const auto with = [&](double log_value) {
    decide::GapSettings tried = settings;
    (by_rate ? tried.windows_between_false_alarms : tried.threshold.emplace()) =
        std::exp(log_value);
    return tried;
  };
  double low = std::log(by_rate ? 20.0 : 1e-3), high = std::log(by_rate ? 1e9 : 1e4);
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2;
    (total_false_alarms(all, with(middle)) <= false_alarms ? high : low) = middle;
  }
  return with(high);
}

}  // namespace gnomon::rehearsal

#include "lab/rehearsal/gradient_switch.h"

#include <map>
#include <optional>
#include <string>
#include <variant>

#include "controller/decide/sentinels.h"
#include "lab/rehearsal/findings_numbers.h"

namespace gnomon::rehearsal {
namespace {

// The first step from `from` on at which the gradient norm leaves its forecast.
std::optional<int64_t> first_call(const Trace& trace, int64_t from) {
  decide::SentinelState state;
  for (const TracedEvent& each : trace.events) {
    const auto* step = std::get_if<decide::StepReported>(&each.event);
    if (step == nullptr) continue;
    const auto call = decide::observe_signals(state, *step);
    if (call && call->signal == "grad_norm" && step->step >= from) return step->step;
  }
  return std::nullopt;
}

std::optional<int64_t> first_alarm(const Trace& trace, int64_t from) {
  for (const TracedDecision& each : trace.decisions) {
    if (each.decision.kind == "alarm" && each.decision.step >= from) return each.decision.step;
  }
  return std::nullopt;
}

struct Kind {
  int64_t runs = 0, called = 0, first = 0;
  std::vector<double> delays;
};

}  // namespace

boost::json::object gradient_switch(const std::vector<RecordedRun>& observed) {
  std::map<std::string, Kind> kinds;
  for (const RecordedRun& run : observed) {
    const bool faulty = run.label.fault_from.has_value();
    const int64_t from = run.label.fault_from.value_or(0);
    Kind& kind = kinds[!faulty ? "healthy" : run.harmful() ? "harmful" : "harmless"];
    kind.runs += 1;
    const std::optional<int64_t> called = first_call(*run.trace, from);
    if (!called) continue;
    kind.called += 1;
    const std::optional<int64_t> alarm = first_alarm(*run.trace, from);
    kind.first += !alarm || *called < *alarm;
    if (faulty) kind.delays.push_back(static_cast<double>(*called - from));
  }
  boost::json::object result;
  for (const auto& [name, kind] : kinds) {
    result[name] = {{"runs", kind.runs},
                    {"called", kind.called},
                    {"before_any_alarm", kind.first},
                    {"median_steps", finite(quantile(kind.delays, 0.5))}};
  }
  return result;
}

}  // namespace gnomon::rehearsal

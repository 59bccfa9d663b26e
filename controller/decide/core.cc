#include "controller/decide/core.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <boost/json/serialize.hpp>
#include <cmath>
#include <ctime>
#include <utility>

namespace gnomon::decide {

RecordDecision& Core::record(DecisionKind kind, std::string sentence,
                             const boost::json::object& evidence) {
  RecordDecision decision;
  decision.decision = s.next_decision++;
  decision.kind = kind;
  decision.verdict = "none";
  decision.action = "none";
  decision.attempt = s.attempt.number;
  decision.step = s.newest_step;
  decision.evidence = boost::json::serialize(evidence);
  explain(sentence);
  decision.sentence = std::move(sentence);
  effects.emplace_back(std::move(decision));
  return std::get<RecordDecision>(effects.back());
}

void Core::explain(const std::string& sentence) {
  if (!reason.empty()) reason += ' ';
  reason += sentence;
}

std::string Core::muted() const {
  if (s.silence)
    return fmt::format("silenced by {} {}", s.silence->owner, until(s.silence->expires_at));
  if (s.stopping) return "the run was told to stop";
  if (!s.operator_plan) return "";
  return fmt::format("the plan set by {} is in force {}", s.operator_plan->owner,
                     until(s.operator_plan->expires_at));
}

std::string until(double expires_at) {
  // A time that no calendar writes is as good as none.
  if (!(expires_at > 0) || expires_at > 2.5e11) return "without an end";
  const std::time_t time = static_cast<std::time_t>(expires_at);
  return fmt::format("until {:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(time));
}

std::string percent(double value) {
  if (!std::isfinite(value)) return "not finite";
  const std::string text = fmt::format("{:.2f}%", value);
  return text == "-0.00%" ? "0.00%" : text;
}

boost::json::value number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return value;
}

boost::json::value number(const std::optional<double>& value) {
  return value ? number(*value) : nullptr;
}

boost::json::array names(const std::vector<std::string>& list) {
  boost::json::array result;
  for (const std::string& name : list) result.emplace_back(name);
  return result;
}

std::string phase_name(const State& state) {
  if (state.ended) return "ended";
  if (state.investigation) return state.investigation->stage;
  if (state.containment && state.containment->rung == "hold") return "holding";
  if (state.directive && state.directive->purpose == "return") return "returning";
  if (state.directive || state.recovery) return "containing";
  if (!state.containment) return "watching";
  for (const WindowState& window : state.windows) {
    if (window.probe_pending) return "returning";
  }
  return !state.containment->probes.passed.empty() ? "returning" : "contained";
}

Mode mode_in_force(const State& state, const Policy& policy) {
  if (!state.mode_override) return policy.mode;
  return mode_from_name(state.mode_override->mode).value_or(policy.mode);
}

}  // namespace gnomon::decide

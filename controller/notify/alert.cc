#include "controller/notify/alert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <boost/json.hpp>

#include "base/errors.h"
#include "protocol/json_text.h"

namespace gnomon::notify {
namespace {

template <size_t count>
constexpr const Kind* find_kind(const std::array<Kind, count>& kinds, std::string_view name) {
  const auto found = std::ranges::find(kinds, name, &Kind::name);
  return found == kinds.end() ? nullptr : &*found;
}

template <size_t count>
constexpr bool all_are_moments(const std::array<std::string_view, count>& names) {
  // By their places: with -fsanitize=undefined GCC takes no comparison of an address for a
  // constant.
  return std::ranges::all_of(names, [](std::string_view name) {
    return std::ranges::find(kMomentKinds, name, &Kind::name) != kMomentKinds.end();
  });
}
static_assert(all_are_moments(kTrainerNoticeKinds) && all_are_moments(kOwnNoticeKinds));

const Kind& moment_kind(std::string_view name) {
  const Kind* found = find_kind(kMomentKinds, name);
  GNOMON_ASSERT(found != nullptr);
  return *found;
}

Alert make_alert(const Subject& subject, const Kind& kind, Severity severity, double time) {
  Alert alert;
  alert.kind = kind.name;
  alert.severity = severity;
  alert.starts_at = time;
  alert.labels = {{"alertname", std::string(kind.alertname)},
                  {"run", subject.label()},
                  {"run_id", fmt::format("run-{}", subject.run)},
                  {"run_name", subject.name},
                  {"job_id", subject.job_id},
                  {"severity", std::string(severity_name(severity))}};
  // An Alertmanager takes no label without a value.
  std::erase_if(alert.labels, [](const auto& label) { return label.second.empty(); });
  alert.annotations = {{"kind", std::string(kind.name)}, {"mode", subject.mode}};
  return alert;
}

void describe(Alert& alert, const Subject& subject, std::string_view title, int64_t step,
              const std::string& description) {
  alert.annotations["summary"] = fmt::format("{}: {} at step {}", subject.label(), title, step);
  alert.annotations["description"] = description;
  alert.annotations["step"] = fmt::format("{}", step);
}

// "Critical" is what stops the run or leaves it without a way out; "warning" what somebody should
// look at soon.
Severity severity_of(const decide::RecordDecision& decision) {
  if (decision.action == "hold" || decision.action == "stop") return Severity::kCritical;
  if (decision.kind == "alarm" || decision.kind == "directive" || decision.kind == "instrument" ||
      decision.kind == "health") {
    return Severity::kWarning;
  }
  const bool acts = decision.action != "none" && decision.action != "return";
  const bool blames = decision.kind == "verdict" && decision.verdict != "none" &&
                      decision.verdict != "chance" && decision.verdict != "accepted_gap";
  return acts || blames ? Severity::kWarning : Severity::kInfo;
}

Severity severity_of(Condition condition) {
  switch (condition) {
    case kHeld:
    case kSilent:
    case kUnheeded:
      return Severity::kCritical;
    default:
      return Severity::kWarning;
  }
}

bool trainer_is_silent(const decide::State& state) {
  const auto silent = [](const decide::PendingDirective& open) {
    return open.silence_recorded && !open.steps_since;
  };
  return (state.directive && silent(*state.directive)) ||
         std::ranges::any_of(state.operator_directives, silent);
}

std::string condition_words(Condition condition, const decide::State& state) {
  switch (condition) {
    case kInvestigation:
      return fmt::format("Window {} is being looked into. A decision will say what was concluded.",
                         state.investigation ? state.investigation->window : 0);
    case kFallback:
      return state.containment && !state.containment->sites.empty()
                 ? fmt::format("The run is on the rung \"{}\" of the ladder: {}.",
                               state.containment->rung, fmt::join(state.containment->sites, ", "))
                 : fmt::format("The run is on the rung \"{}\" of the ladder.",
                               state.containment ? state.containment->rung.text() : "");
    case kHeld:
      return "The run stands still until a person has looked; the newest decisions say why.";
    case kPaused:
      return "The run was paused by an operator's order.";
    case kSilent:
      return "A directive is not answered and the trainer reports no steps: it, or the way to it, "
             "may be broken.";
    case kUnheeded:
      return "FP8 is worse than BF16 by more than is tolerated, and the mode in force only says "
             "so: nothing is done about it.";
    case kBrokenInstrument:
      return "Two BF16 replays of one window part as far as FP8 and BF16 do: alarms of gaps lead "
             "to nothing.";
  }
  return "";
}

std::map<std::string, std::string> members_of(const boost::json::value& value) {
  std::map<std::string, std::string> members;
  for (const auto& [name, text] : value.as_object()) {
    members[std::string(name)] = std::string(text.as_string());
  }
  return members;
}

}  // namespace

std::string_view severity_name(Severity severity) {
  return kSeverities[static_cast<size_t>(severity)];
}

std::string alert_to_json(const Alert& alert) {
  return boost::json::serialize(
      boost::json::object{{"kind", alert.kind},
                          {"severity", static_cast<int>(alert.severity)},
                          {"labels", boost::json::value_from(alert.labels)},
                          {"annotations", boost::json::value_from(alert.annotations)},
                          {"starts_at", alert.starts_at},
                          {"ends_at", alert.ends_at},
                          {"lasting", alert.lasting}});
}

Alert alert_from_json(std::string_view json) {
  const boost::json::value value = parse_json_exactly(json);
  const boost::json::object& object = value.as_object();
  Alert alert;
  alert.kind = std::string(object.at("kind").as_string());
  alert.severity = static_cast<Severity>(object.at("severity").to_number<int>());
  alert.labels = members_of(object.at("labels"));
  alert.annotations = members_of(object.at("annotations"));
  alert.starts_at = object.at("starts_at").to_number<double>();
  alert.ends_at = object.at("ends_at").to_number<double>();
  alert.lasting = object.at("lasting").as_bool();
  return alert;
}

Alert decision_alert(const Subject& subject, const decide::RecordDecision& decision, double time) {
  const Kind* kind = find_kind(kDecisionKinds, decision.kind);
  GNOMON_ASSERT(kind != nullptr);
  Alert alert = make_alert(subject, *kind, severity_of(decision), time);
  alert.labels["decision"] = fmt::format("{}", decision.decision);
  describe(alert, subject, kind->title, decision.step, decision.sentence);
  alert.annotations["decision"] = fmt::format("{}", decision.decision);
  alert.annotations["attempt"] = fmt::format("{}", decision.attempt);
  alert.annotations["verdict"] = decision.verdict;
  alert.annotations["action"] = decision.action;
  // What was not enforced would have been done in another mode.
  alert.annotations["enforced"] = decision.enforced ? "true" : "false";
  if (decision.window > 0) alert.annotations["window"] = fmt::format("{}", decision.window);
  if (!decision.sites.empty()) {
    alert.annotations["sites"] = fmt::format("{}", fmt::join(decision.sites, ", "));
  }
  return alert;
}

Alert quarantine_alert(const Subject& subject, const decide::QuarantineVerifier& quarantine,
                       double time) {
  const Kind& kind = moment_kind("quarantine");
  Alert alert = make_alert(subject, kind, Severity::kWarning, time);
  alert.labels["verifier"] = quarantine.verifier;
  alert.annotations["summary"] = fmt::format("{}: {}", subject.label(), kind.title);
  alert.annotations["description"] = quarantine.reason;
  return alert;
}

Alert notice_alert(const Subject& subject, const TrainerNotice& notice, int64_t number,
                   double time) {
  const Kind& kind = moment_kind(notice.kind);
  const bool bad = notice.kind == kEccErrors || notice.kind == "gradient_mismatch" ||
                   notice.kind == "checkpoint_failed" || notice.kind == kRunSetAside;
  Alert alert = make_alert(subject, kind, bad ? Severity::kCritical : Severity::kWarning, time);
  alert.labels["notice"] = fmt::format("{}", number);
  describe(alert, subject, kind.title, notice.step, notice.text);
  alert.annotations["attempt"] = fmt::format("{}", notice.attempt);
  return alert;
}

Alert attempt_alert(const Subject& subject, const decide::AttemptStarted& attempt, double time) {
  const Kind& kind = moment_kind("attempt");
  Alert alert = make_alert(subject, kind, Severity::kInfo, time);
  alert.labels["attempt"] = fmt::format("{}", attempt.attempt);
  describe(alert, subject, kind.title, attempt.base_step,
           fmt::format("Attempt {} ({}) goes on from step {} in plan {}{}.", attempt.attempt,
                       attempt.cause, attempt.base_step, attempt.plan_version,
                       attempt.host.empty() ? "" : " on " + attempt.host));
  alert.annotations["attempt"] = alert.labels["attempt"];
  return alert;
}

Alert ended_alert(const Subject& subject, const decide::RunEnded& ended, int64_t attempt,
                  double time) {
  const Kind& kind = moment_kind("ended");
  const Severity severity = ended.outcome == "failed"    ? Severity::kCritical
                            : ended.outcome == "stopped" ? Severity::kWarning
                                                         : Severity::kInfo;
  Alert alert = make_alert(subject, kind, severity, time);
  alert.labels["attempt"] = fmt::format("{}", attempt);
  describe(alert, subject, kind.title, ended.step,
           fmt::format("The run is {} after {} steps.", ended.outcome, ended.step));
  alert.annotations["attempt"] = alert.labels["attempt"];
  alert.annotations["outcome"] = ended.outcome;
  return alert;
}

Alert test_alert(double time) {
  const Subject subject{0, "test", "0", "none"};
  Alert alert = make_alert(subject, {"test", "GnomonTest", "a test"}, Severity::kInfo, time);
  alert.annotations["summary"] = "A test of gnomond's notifications";
  alert.annotations["description"] = "Somebody asked for this with `gnomon notify test`.";
  return alert;
}

uint32_t conditions_that_hold(const decide::State& state) {
  if (state.ended) return 0;
  const bool held = state.containment && state.containment->rung == "hold";
  uint32_t hold = 0;
  if (state.investigation) hold |= kInvestigation;
  if (state.containment && !held) hold |= kFallback;
  if (held) hold |= kHeld;
  if (state.paused && !held) hold |= kPaused;
  if (trainer_is_silent(state)) hold |= kSilent;
  if (state.fault_reported) hold |= kUnheeded;
  if (state.watch.instrument.broken) hold |= kBrokenInstrument;
  return hold;
}

Alert condition_alert(const Subject& subject, Condition condition, const decide::State& state,
                      double since) {
  const Kind& kind = kConditionKinds[static_cast<size_t>(std::countr_zero<uint32_t>(condition))];
  Alert alert = make_alert(subject, kind, severity_of(condition), since);
  alert.lasting = true;
  describe(alert, subject, kind.title, state.newest_step, condition_words(condition, state));
  alert.annotations["attempt"] = fmt::format("{}", state.attempt.number);
  if (state.next_decision > 1) {
    alert.annotations["decision"] = fmt::format("{}", state.next_decision - 1);
  }
  return alert;
}

}  // namespace gnomon::notify

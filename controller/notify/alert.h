// What people are notified of: alerts in Alertmanager's terms, made of what happened. Pure. Labels
// say which alert it is (two with the same labels are the same alert, which begins and ends); the
// rest stands in annotations. docs/notifications.md has the vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "controller/decide/decide.h"
#include "protocol/records.h"

namespace gnomon::notify {

enum class Severity { kInfo, kWarning, kCritical };
inline constexpr std::array<std::string_view, 3> kSeverities = {"info", "warning", "critical"};
std::string_view severity_name(Severity severity);

// A kind of happening. The names of the first column stand in configurations and in the ledger.
struct Kind {
  std::string_view name;
  std::string_view alertname;
  std::string_view title;  // of the summary: "RUN: TITLE at step N"
};

// Kinds of the core's decisions, named as RecordDecision::kind.
inline constexpr std::array<Kind, 14> kDecisionKinds = {{
    {"alarm", "GnomonAlarm", "an alarm"},
    {"verdict", "GnomonVerdict", "a verdict"},
    {"attribution", "GnomonAttribution", "sites were blamed"},
    {"action", "GnomonAction", "an action"},
    {"recovered", "GnomonRecovered", "recovered"},
    {"probe", "GnomonProbe", "a probe of FP8"},
    {"return", "GnomonReturn", "back to FP8"},
    {"accept", "GnomonAccept", "settings are taken otherwise than asked for"},
    {"instrument", "GnomonInstrument", "the verification itself"},
    {"override", "GnomonOverride", "an operator's order"},
    {"directive", "GnomonDirective", "trouble with a directive"},
    {"cadence", "GnomonCadence", "another distance between windows"},
    {"sentinel", "GnomonSentinel", "a window is ordered where the steps look odd"},
    {"health", "GnomonHealth", "the data or training itself looks unhealthy"},
}};
// Kinds of other moments; those of notices are named as TrainerNotice::kind.
inline constexpr std::array<Kind, 11> kMomentKinds = {{
    {"quarantine", "GnomonQuarantine", "a verifier is not believed any more"},
    {"checkpoint_failed", "GnomonCheckpointNotWritten", "a checkpoint could not be written"},
    {"reports_dropped", "GnomonReportsLost", "reports of steps were dropped"},
    {"plan_without_controller", "GnomonPlanWithoutController", "a plan taken without gnomond"},
    {"data_mismatch", "GnomonOtherData", "a loader does not repeat its batches"},
    {"gradient_mismatch", "GnomonGradientsDiffer", "gradients computed twice differ"},
    {"ecc_errors", "GnomonEccErrors", "uncorrected memory errors of the GPU"},
    {"no_verifier_fits", "GnomonNoVerifierFits", "replays wait that no verifier can run"},
    {"run_set_aside", "GnomonRunSetAside", "gnomond cannot serve the run"},
    {"attempt", "GnomonAttempt", "an attempt begins"},
    {"ended", "GnomonRunEnded", "the run has ended"},
}};
// What begins and ends.
enum Condition : uint32_t {
  kInvestigation = 1 << 0,
  kFallback = 1 << 1,
  kHeld = 1 << 2,
  kPaused = 1 << 3,
  kSilent = 1 << 4,
  kUnheeded = 1 << 5,
  kBrokenInstrument = 1 << 6,
};
// In the order of the bits of Condition.
inline constexpr std::array<Kind, 7> kConditionKinds = {{
    {"investigation", "GnomonInvestigation", "an alarm is looked into"},
    {"fallback", "GnomonFallback", "less FP8 than wanted"},
    {"held", "GnomonHeld", "held until a person has looked"},
    {"paused", "GnomonPaused", "paused"},
    {"silent", "GnomonTrainerSilent", "the trainer does not answer"},
    {"unheeded", "GnomonUnheeded", "a fault of FP8 that nothing is done about"},
    {"broken_instrument", "GnomonBrokenInstrument", "verification cannot tell FP8's faults"},
}};

struct Alert {
  std::string kind;
  Severity severity = Severity::kInfo;
  std::map<std::string, std::string> labels;
  std::map<std::string, std::string> annotations;
  double starts_at = 0;  // seconds since the epoch
  double ends_at = 0;    // 0: it is not known yet
  bool lasting = false;  // one that begins and ends; else a moment's
  bool resolved() const { return lasting && ends_at > 0; }
  bool operator==(const Alert&) const = default;
};

// How the ledger keeps an alert. Throws JsonError.
std::string alert_to_json(const Alert& alert);
Alert alert_from_json(std::string_view json);

// Whose happenings these are.
struct Subject {
  int64_t run = 0;
  std::string name;
  std::string job_id;
  std::string mode;                                          // of the policy in force
  std::string label() const { return name + "/" + job_id; }  // as in the metrics
};

// `time` is when it happened, seconds since the epoch.
Alert decision_alert(const Subject& subject, const decide::RecordDecision& decision, double time);
Alert quarantine_alert(const Subject& subject, const decide::QuarantineVerifier& quarantine,
                       double time);
Alert notice_alert(const Subject& subject, const TrainerNotice& notice, int64_t number,
                   double time);
Alert attempt_alert(const Subject& subject, const decide::AttemptStarted& attempt, double time);
Alert ended_alert(const Subject& subject, const decide::RunEnded& ended, int64_t attempt,
                  double time);
// What `gnomon notify test` sends.
Alert test_alert(double time);

// Which conditions hold: an OR of Condition.
uint32_t conditions_that_hold(const decide::State& state);
Alert condition_alert(const Subject& subject, Condition condition, const decide::State& state,
                      double since);

}  // namespace gnomon::notify

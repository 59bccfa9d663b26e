// What the controller concluded.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/records/member.h"
#include "protocol/records/word.h"

namespace gnomon {

inline constexpr std::array<std::string_view, 14> kDecisionKinds = {
    "alarm",  "verdict",    "attribution", "action",    "recovered", "probe",    "return",
    "accept", "instrument", "override",    "directive", "cadence",   "sentinel", "health"};
using DecisionKind = Word<kDecisionKinds>;
inline constexpr std::array<std::string_view, 19> kVerdicts = {
    "none",          "transient_fault", "persistent_fault",  "verifier_fault",    "data_mismatch",
    "generic_spike", "chance",          "kernel_bug",        "accepted_gap",      "fp8_numerics",
    "scale_drift",   "unexplained",     "broken_instrument", "unstable_training", "stable_training",
    "repeated_data", "loss_collapse",   "overfitting",       "memory_changed"};
using VerdictName = Word<kVerdicts>;
inline constexpr std::array<std::string_view, 9> kActions = {
    "none", "pin", "recipe", "bf16", "rollback", "hold", "stop", "return", "quarantine"};
using ActionName = Word<kActions>;

// What was concluded, from what, and what follows.
struct Decision {
  int64_t decision = 0;
  DecisionKind kind;
  VerdictName verdict;
  ActionName action;
  bool enforced = false;
  int64_t attempt = 1;
  int64_t step = 0;
  int64_t window = 0;
  std::vector<std::string> sites;
  std::string sentence;
  std::string evidence;

  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = Decision;
    v("decision", &R::decision,
      Member{.required = true, .help = "1, 2, …", .listed = {"decision"}});
    v("kind", &R::kind, Member{.required = true, .listed = {"kind"}});
    v("verdict", &R::verdict,
      Member{.required = true, .help = "The verdict of triage, or `none`.", .listed = {"verdict"}});
    v("action", &R::action,
      Member{.required = true,
             .help = "What follows; where it is not enforced, what would have followed.",
             .listed = {"action"}});
    v("enforced", &R::enforced, Member{.required = true});
    v("attempt", &R::attempt, Member{.required = true, .range = kStep});
    v("step", &R::step,
      Member{.required = true, .range = kStep, .help = "The newest then.", .listed = {"step"}});
    v("window", &R::window, Member{.required = true, .help = "0 none."});
    v("sites", &R::sites,
      Member{.required = true, .text = kAnyText, .json = "strings", .help = "Blamed."});
    v("sentence", &R::sentence,
      Member{
          .required = true, .text = kAnyText, .help = "For people.", .listed = {"what and why"}});
    v("evidence", &R::evidence,
      Member{.required = true,
             .text = kAnyText,
             .json = "object",
             .help = "The numbers it rests on."});
  }
};

struct DecisionRow : Decision {
  int64_t run = 0;
  double time = 0;
  int64_t event_seq = 0;

  static constexpr Row kRow = {"", "decisions"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = DecisionRow;
    v("run", &R::run, Member{});
    v("time", &R::time, Member{.range = kTime, .listed = {"time", Listed::As::kTime}});
    Decision::describe(v);
    v("event_seq", &R::event_seq, Member{.help = "The event it followed from."});
  }
};

struct ShownDecision : DecisionRow {
  std::optional<std::string> device_errors = {};

  static constexpr Row kRow = {"DecisionRow", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    DecisionRow::describe(v);
    v("device_errors", &ShownDecision::device_errors,
      Member{.help = "With transient_fault and persistent_fault: the newest notice ecc_errors of "
                     "that attempt."});
  }
};

}  // namespace gnomon

// What a person must know of a run before anything else: one verdict, one sentence, and since when.
// A function of the decision state, which is on record, and the clock. docs/verdict.md has the
// table of all verdicts and says which one wins.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "controller/decide/policy.h"
#include "controller/decide/state.h"

namespace gnomon::decide {

enum class VerdictKind {
  kGood,
  kHarmful,
  kUnderInvestigation,
  kContained,
  kUnverified,
  kSilent,
  kHeld,
  kUnstable,
  kEnded,
};
inline constexpr std::array kVerdictKinds = {
    VerdictKind::kGood,      VerdictKind::kHarmful,    VerdictKind::kUnderInvestigation,
    VerdictKind::kContained, VerdictKind::kUnverified, VerdictKind::kSilent,
    VerdictKind::kHeld,      VerdictKind::kUnstable,   VerdictKind::kEnded};
std::string_view verdict_name(VerdictKind kind);  // good, harmful, under_investigation, ...

struct RunVerdict {
  VerdictKind kind = VerdictKind::kUnverified;
  double since = 0;      // seconds since the epoch; 0 = not known
  std::string sentence;  // what, what Gnomon does, what a person must do
};

// Reports stop for at least so long before a run is called silent, however short its steps are.
inline constexpr double kSilentSecondsMin = 30;
inline constexpr double kSilentSteps = 3;  // mean steps without a report, where that is longer

// What the verdict needs of the state. It is small, so that many runs can be asked for theirs at
// every scrape; only the clock is missing.
struct VerdictFacts {
  RunVerdict standing;       // while the trainer reports
  bool reports_due = false;  // false: paused, ended
  double reported_at = 0;    // the trainer's newest report of any kind
  double silent_after_seconds = kSilentSecondsMin;
  double step_seconds = 0;  // mean of the recent steps; 0 = not known
  int64_t newest_step = 0;
  // For metrics and pages.
  bool verified = false;        // some step is
  int64_t lag_steps = 0;        // from the last verified step to the newest one
  int64_t every_steps = 1;      // from one window's start to the next, as in force
  int64_t replays_waiting = 0;  // ordered and not answered
  int64_t directives_unapplied = 0;
  int64_t quarantined_verifiers = 0;
  bool instrument_broken = false;
};
VerdictFacts verdict_facts(const State& state, const Policy& policy);

// `busy_until`: the trainer holds the lease of a replay until then, and reports no step meanwhile.
VerdictKind verdict_kind(const VerdictFacts& facts, double now, double busy_until = 0);
RunVerdict run_verdict(const VerdictFacts& facts, double now, double busy_until = 0);
// The verdict on a run that has ended according to the ledger, whatever the state knows: `outcome`
// is completed, stopped or failed.
RunVerdict ended_verdict(const VerdictFacts& facts, const std::string& outcome, double ended_at);

// The mean time of a step: what the trainer says of its newest steps, or the pace at which they are
// reported, whichever is longer. 0 = not known.
double mean_step_seconds(const State& state);

// The verdict's name as far as the state alone says; "starting" while the first window is not
// due yet.
std::string_view condition_of(const State& state, const Policy& policy);

}  // namespace gnomon::decide

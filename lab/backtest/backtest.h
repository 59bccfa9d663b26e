// Runs the decision core again over the events on record in a ledger, under another policy (or the
// same), and says what would have differed and what it would have cost. Questions that the ledger
// has the answers to are answered, whatever their numbers; where the ledger is no guide any more
// the comparison ends, says why, and only the policy's alarms along the rest of the run are
// counted.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/ledger_view.h"
#include "controller/decide/policy.h"
#include "lab/backtest/backtest_course.h"

namespace gnomon::cli {

// What is compared of a decision.
struct BacktestDecision {
  int64_t event_seq = 0;
  double time = 0;
  std::string kind;
  std::string verdict;
  std::string action;
  bool enforced = false;
  int64_t step = 0;
  std::vector<std::string> sites;
  std::string sentence;
};

struct BacktestDifference {
  // Exactly one of the two may be empty: only the ledger has it, or only the backtest.
  std::vector<BacktestDecision> recorded;
  std::vector<BacktestDecision> replayed;
};

// The first event at which the two ask, order or decide different things.
struct BacktestFirst {
  int64_t event_seq = 0;
  int64_t step = 0;
  std::vector<std::string> recorded;  // what only the recorded run did, in words
  std::vector<std::string> replayed;  // and only the policy
};

// One side of the comparison, as far as it goes.
struct BacktestSide {
  int64_t alarms = 0;
  std::map<std::string, int64_t> verdicts;
  std::vector<std::string> actions;  // "pin at step 320", with "(not enforced)"
  int64_t windows_measured = 0;
  int64_t windows_unmeasured = 0;  // that the ledger has no answer for
  int64_t windows_skipped = 0;
  int64_t replays = 0;  // with those the ledger has no answer for, whose seconds are estimated
  int64_t replays_unanswered = 0;
  double verification_seconds = 0;
  double seconds_estimated = 0;
  int64_t steps_lost = 0;
  // With the speed-up of FP8's steps that the whole recorded run has shown, on both sides. Empty
  // before any step is kept.
  std::optional<double> net_speedup;
};

// What the record's own answer to the same trouble suggests, where a course parts with an open
// case.
struct BacktestEstimate {
  int64_t alarm_step = 0;  // of the record's nearest alarm that led to an action
  std::string action;
  std::string verdict;
  int64_t steps_to_rollback = 0;      // from the alarm
  int64_t steps_lost = 0;             // by it, with those from its alarm to a later one
  std::optional<double> net_speedup;  // of this policy, with those and a restart paid
};

struct BacktestResult {
  int64_t events = 0;    // compared: all, or those up to and with the parting
  int64_t step = 0;      // newest step of those
  int64_t recorded = 0;  // decisions in those
  int64_t replayed = 0;
  std::vector<BacktestDifference> differences;  // by event
  std::optional<BacktestFirst> first;
  std::optional<BacktestParting> parting;  // empty: compared to the end
  std::optional<BacktestEstimate> estimate;
  int64_t alarms_after = 0;         // behind the parting, with nothing carried out
  std::vector<std::string> shifts;  // see BacktestCourse
  BacktestSide recorded_side;
  BacktestSide replayed_side;
  // Net speed-up expected by the economics, with the speed-up and the hazard that the whole
  // recorded run has shown; empty when a policy's cadence is not possible.
  std::optional<double> expected_recorded;
  std::optional<double> expected_replayed;
  double speedup = 1;             // that speed-up
  bool speedup_measured = false;  // else it is the policy's word
  // The first event at which the run's own policy, decided again, differs from the ledger: it was
  // decided by another version, or under another policy than the run's newest.
  std::optional<int64_t> not_as_recorded_seq;
};

// Throws ConfigError when the run's own policy, and FormatError when an event, cannot be read back.
BacktestResult backtest(const LedgerView& ledger, const RunRow& run, const decide::Policy& policy,
                        const std::string& ledger_file);

}  // namespace gnomon::cli

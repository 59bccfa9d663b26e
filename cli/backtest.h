// Runs the decision core again over what a ledger says it heard, under another policy (or the
// same), and tells the decisions that differ. The ledger only has the answers to what the recorded
// policy asked: as soon as the other one would have opened another window, ordered another replay
// or issued another directive, what follows cannot be known, and the comparison ends.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/ledger_view.h"
#include "controller/decide/policy.h"

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

// Where the comparison ends early: the two policies order different things, or already the run's
// own policy is not what the ledger's decisions were made with.
struct BacktestParting {
  int64_t event_seq = 0;
  int64_t step = 0;  // newest step reported by then
  std::string reason;
};

struct BacktestResult {
  int64_t events = 0;    // compared: all, or those up to and with the parting
  int64_t recorded = 0;  // decisions in those
  int64_t replayed = 0;
  std::vector<BacktestDifference> differences;  // by event
  std::optional<BacktestParting> parting;       // empty: compared to the end
};

// Throws ConfigError when the run's own policy, and FormatError when an event, cannot be read back.
BacktestResult backtest(const LedgerView& ledger, const RunRow& run, const decide::Policy& policy,
                        const std::string& ledger_file);

}  // namespace gnomon::cli

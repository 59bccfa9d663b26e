// Runs the decision core again over what a ledger says it heard, under another policy (or the
// same), and tells the decisions that differ. Windows and replays are the recorded ones: what the
// other policy would have ordered beyond them is not known, so the first differing decision is the
// one to trust.
#pragma once

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

struct BacktestResult {
  int64_t events = 0;
  int64_t recorded = 0;  // decisions
  int64_t replayed = 0;
  std::vector<BacktestDifference> differences;  // by event
};

// Throws FormatError when an event cannot be read back.
BacktestResult backtest(const LedgerView& ledger, const RunRow& run, const decide::Policy& policy,
                        const std::string& ledger_file);

}  // namespace gnomon::cli

// What a run's ledger says in a few numbers: was the injected fault caught, on whom was it blamed,
// what was done and what did it cost. Judged against the `faults` table, the truth that was
// registered when the fault was switched on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/ledger_view.h"
#include "controller/decide/net_speedup.h"
#include "controller/decide/run_verdict.h"

namespace gnomon::cli {

struct RunSummary {
  std::string run;    // "name/job"
  std::string state;  // of the run
  std::vector<InjectedFault> faults;
  bool detected = false;  // an alarm in a window that an injected fault was active in
  // Verified windows that contain the fault, up to and with the one of the first alarm; 0 = not
  // detected.
  int64_t windows_to_detect = 0;
  std::string verdict = "none";           // the last one about the first alarm
  std::vector<std::string> blamed_sites;  // what the action took out of FP8
  std::string action = "none";            // the first enforced one
  std::vector<std::string> verdicts;      // all that were ever given, without repeats
  std::vector<std::string> actions;       // all enforced ones, in order
  bool recovered = false;                 // a decision says that the action helped
  bool plan_changed = false;              // a directive took any GEMM out of FP8
  bool rolled_back = false;               // a rollback was applied
  bool returned_to_fp8 = false;  // plan changed, and the last step ran in the run's own plan again
  int64_t steps_lost = 0;        // of abandoned attempts, behind the step rolled back to
  int64_t missing_steps = 0;     // holes between an attempt's base and its newest step
  int64_t alarms = 0;
  int64_t false_alarms = 0;  // where faults were injected: alarms in windows without one
  int64_t attempts = 0;
  int64_t windows = 0;               // verified: quiet or alarm
  int64_t steps = 0;                 // the newest step of the last attempt
  std::optional<double> final_loss;  // held-out, BF16, nats per token
  double wall_seconds = 0;
  double train_seconds = 0;
  double verify_seconds = 0;
  double verification_share = 0;  // verify / (verify + train)
  // The account; empty when the ledger has none that this version can read.
  std::optional<decide::NetSpeedupReport> net_speedup;
  // The verdict on the run as such, now; empty likewise.
  std::optional<decide::RunVerdict> run_verdict;
};

RunSummary summarize(const RunHistory& history);

// A run's verdict now, from the ledger alone; empty when it has no state that this version reads.
std::optional<decide::RunVerdict> verdict_on_record(const LedgerView& ledger,
                                                    const std::string& run);

std::string summary_to_json(const RunSummary& summary);
// The same as a few sentences.
std::string summary_in_words(const RunSummary& summary);

// What should have happened with this kind of fault and did not, a sentence each. `expectation` is
// none, fp8, spike or bitflip; throws ConfigError on anything else.
std::vector<std::string> unmet_expectations(const RunSummary& summary,
                                            const std::string& expectation);

// True when `fault` acts in any of the steps first ... last.
bool fault_acts_in(const InjectedFault& fault, int64_t first, int64_t last);

}  // namespace gnomon::cli

// Reads a ledger (storage/schema.sql) without ever writing to it, also while gnomond is writing.
// Everything that summary, report and backtest know of a run comes through here. A loss that the
// ledger holds as NULL is NaN here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/records.h"
#include "storage/ledger_version.h"

namespace gnomon {
class Connection;
}

namespace gnomon::cli {

class LedgerView {
 public:
  // Opens read-only. Throws SystemError when the file is missing or cannot be opened, FormatError
  // when it is no ledger, or one of a newer schema than kLedgerVersion.
  explicit LedgerView(const std::filesystem::path& path);
  ~LedgerView();

  static constexpr int kLedgerVersion = gnomon::kLedgerVersion;

  // By id. `run_named` accepts "run-1", "name" (its newest job) or "name/job"; empty means the
  // newest run. Throws ConfigError naming the runs there are.
  std::vector<RunRow> runs() const;
  RunRow run_named(const std::string& name) const;

  // All throw FormatError where a value is none that its column may have.
  std::vector<AttemptRow> attempts(int64_t run) const;
  std::vector<StepRow> steps(int64_t run) const;  // by (attempt, step)
  std::vector<WindowRow> windows(int64_t run) const;
  std::vector<DecisionRow> decisions(int64_t run) const;
  std::vector<DirectiveRow> directives(int64_t run) const;
  std::vector<PlanRow> plans(int64_t run) const;
  std::vector<FaultRow> faults(int64_t run) const;
  std::vector<ShadowStepRow> shadow_steps(
      int64_t run) const;                             // of done `bf16` replays with purpose shadow
  std::vector<ReplayRow> replays(int64_t run) const;  // by number
  // Those above `after`, by seq.
  std::vector<EventRow> events(int64_t run, int64_t after = 0) const;
  // The rows of one of storage/view_queries.h that lists by number, as gnomond's API shows them: a
  // JSON array.
  std::string rows(const char* sql, int64_t run) const;
  // What the API shows of the run, as far as it is in the ledger: a JSON array of one object.
  std::string summary(int64_t run) const;
  double verify_seconds(int64_t run) const;  // replays and evaluations
  // The decision core's state as it was last written down; nothing when the ledger has none.
  struct DecisionState {
    int64_t seq = 0;  // the newest event that it contains
    std::string json;
  };
  std::optional<DecisionState> decision_state(int64_t run) const;

 private:
  std::string path_;
  std::unique_ptr<Connection> connection_;
};

// Everything summary and report need of one run, read once.
struct RunHistory {
  RunRow run;
  RunRegistration registration;
  std::vector<AttemptRow> attempts;
  std::vector<StepRow> steps;
  std::vector<WindowRow> windows;
  std::vector<DecisionRow> decisions;
  std::vector<DirectiveRow> directives;
  std::vector<PlanRow> plans;
  std::vector<FaultRow> faults;
  std::vector<ShadowStepRow> shadow;
  double verify_seconds = 0;
  std::optional<LedgerView::DecisionState> decision_state;
  std::vector<EventRow> events_since;  // what that state does not contain
};

// `run_name` as for LedgerView::run_named.
RunHistory load_history(const LedgerView& ledger, const std::string& run_name);
// The run, the decision core's state and the events that it does not contain; all else is empty.
RunHistory load_core_state(const LedgerView& ledger, const std::string& run_name);

}  // namespace gnomon::cli

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

namespace SQLite {
class Database;
}

namespace gnomon::cli {

struct RunRow {
  int64_t id = 0;
  std::string name;
  std::string job_id;
  RunRegistration registration;
  std::string policy;  // TOML
  std::string state;   // live, completed, stopped, failed
  double registered_at = 0;
  std::optional<double> finished_at;
  std::optional<int64_t> finished_step;
  std::optional<double> final_loss;
  std::optional<double> train_seconds;
};

struct AttemptRow {
  int64_t attempt = 0;
  int64_t base_step = 0;  // the first step is base_step + 1
  std::string cause;      // start, restart, rollback
  int64_t plan_version = 0;
  double started_at = 0;
};

struct StepRow {
  int64_t attempt = 0;
  int64_t step = 0;
  int64_t plan_version = 0;
  double loss = 0;
  double grad_norm = 0;
  double learning_rate = 0;
  int64_t tokens = 0;
  double step_seconds = 0;
  double reported_at = 0;
};

struct WindowRow {
  int64_t window = 0;
  std::string kind;  // shadow, incident, probe
  int64_t attempt = 0;
  int64_t start_step =
      0;  // of the checkpoint: the window replays start_step + 1 ... start_step + steps
  int64_t steps = 0;
  int64_t plan_version = 0;
  std::string state;  // open, quiet, alarm, skipped, failed
  std::optional<double> gap;
  std::optional<double> offset;
  std::optional<double> d_percent;
  std::optional<double> tolerance_percent;
  // The detector's judgement.
  std::string rule;
  std::optional<double> statistic;
  std::optional<double> threshold;
  std::optional<double> scale_percent;
  double opened_at = 0;
  std::optional<double> closed_at;

  int64_t end_step() const { return start_step + steps; }
  bool closed() const { return state != "open"; }
};

struct DecisionRow {
  int64_t decision = 0;
  double time = 0;
  std::string
      kind;  // alarm, verdict, attribution, action, recovered, probe, return, accept, instrument
  std::string verdict;  // none, transient_fault, generic_spike, fp8_numerics, unexplained
  std::string action;   // none, pin, bf16, rollback, hold, return
  bool enforced = false;
  int64_t attempt = 0;
  int64_t step = 0;
  int64_t window = 0;  // 0 = none
  std::vector<std::string> sites;
  std::string sentence;
  std::string evidence;  // JSON object
  int64_t event_seq = 0;
};

struct DirectiveRow {
  int64_t number = 0;
  std::string kind;
  std::string plan;  // TOML; empty = keeps the checkpoint's
  int64_t plan_version = 0;
  int64_t to_step = 0;
  std::string reason;
  std::string state;  // pending, delivered, acknowledged, applied, rejected
  double issued_at = 0;
  std::optional<int64_t> applied_attempt;
  std::optional<int64_t> applied_step;
  std::string reject_reason;
};

struct PlanRow {
  int64_t version = 0;
  std::string toml;
};

// One step of a BF16 shadow replay.
struct ShadowStepRow {
  int64_t window = 0;
  int64_t attempt = 0;
  int64_t step = 0;
  double loss = 0;
};

struct ReplayRow {
  int64_t replay = 0;
  int64_t window = 0;
  std::string arm;
  std::string plan;  // TOML, or empty
  std::string purpose;
  bool evaluate_endpoints = false;
  int64_t nudge = 0;
  std::string avoid;
  bool on_trainer = false;
};

struct EventRow {
  int64_t seq = 0;
  double time = 0;
  std::string type;
  std::optional<int64_t> attempt;
  std::optional<int64_t> step;
  std::string body;  // JSON; empty for step_reported
};

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

  std::vector<AttemptRow> attempts(int64_t run) const;
  std::vector<StepRow> steps(int64_t run) const;  // by (attempt, step)
  std::vector<WindowRow> windows(int64_t run) const;
  std::vector<DecisionRow> decisions(int64_t run) const;
  std::vector<DirectiveRow> directives(int64_t run) const;
  std::vector<PlanRow> plans(int64_t run) const;
  std::vector<InjectedFault> faults(int64_t run) const;
  std::vector<ShadowStepRow> shadow_steps(
      int64_t run) const;                             // of done `bf16` replays with purpose shadow
  std::vector<ReplayRow> replays(int64_t run) const;  // by number
  // Those above `after`, by seq.
  std::vector<EventRow> events(int64_t run, int64_t after = 0) const;
  double verify_seconds(int64_t run) const;  // replays and evaluations
  // The decision core's state as it was last written down; nothing when the ledger has none.
  struct DecisionState {
    int64_t seq = 0;  // the newest event that it contains
    std::string json;
  };
  std::optional<DecisionState> decision_state(int64_t run) const;

 private:
  std::string path_;
  std::unique_ptr<SQLite::Database> database_;
};

// Everything summary and report need of one run, read once.
struct RunHistory {
  RunRow run;
  std::vector<AttemptRow> attempts;
  std::vector<StepRow> steps;
  std::vector<WindowRow> windows;
  std::vector<DecisionRow> decisions;
  std::vector<DirectiveRow> directives;
  std::vector<PlanRow> plans;
  std::vector<InjectedFault> faults;
  std::vector<ShadowStepRow> shadow;
  double verify_seconds = 0;
  std::optional<LedgerView::DecisionState> decision_state;
  std::vector<EventRow> events_since;  // what that state does not contain
};

// `run_name` as for LedgerView::run_named.
RunHistory load_history(const LedgerView& ledger, const std::string& run_name);

}  // namespace gnomon::cli

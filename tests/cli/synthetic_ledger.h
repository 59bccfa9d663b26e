// Real ledgers, made by hand: storage/schema.sql executed by SQLite, then rows as a test wants
// them.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>
#include <SQLiteCpp/VariadicBind.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "protocol/records.h"
#include "tests/support/temporary_directory.h"

namespace gnomon::cli {

using test::TemporaryDirectory;

struct WindowSpec {
  int64_t window = 0;
  int64_t attempt = 1;
  int64_t start_step = 0;
  std::string state = "quiet";
  std::optional<double> d_percent;
  double closed_at = 0;
  std::string kind = "shadow";
  int64_t plan_version = 1;
};

struct DecisionSpec {
  int64_t decision = 0;
  double time = 0;
  std::string kind;
  std::string verdict = "none";
  std::string action = "none";
  int64_t step = 0;
  int64_t window = 0;
  std::vector<std::string> sites = {};
  std::string sentence = "A sentence.";
  bool enforced = true;
};

class SyntheticLedger {
 public:
  static constexpr int64_t kWindowSteps = 10;
  static constexpr double kStart = 1.7e9;  // of all times

  explicit SyntheticLedger(const std::filesystem::path& file);

  // Run 1 unless said otherwise: two layers, everything FP8 as the base plan (version 1).
  void add_run(int64_t id = 1, const std::string& name = "demo", const std::string& job = "1");
  void finish(const std::string& state, double final_loss, double after_seconds);
  void add_fault(const InjectedFault& fault);
  void add_attempt(int64_t attempt, int64_t base_step, const std::string& cause);
  // Steps first ... last, one second each; the loss falls with the step.
  void add_steps(int64_t attempt, int64_t first, int64_t last, int64_t plan_version = 1);
  void add_plan(int64_t version, const std::string& toml);
  void add_window(const WindowSpec& window);
  // A done BF16 replay of the window with its steps, `seconds` of replay and as much of evaluation.
  void add_shadow(int64_t replay, const WindowSpec& window, double seconds);
  void add_decision(const DecisionSpec& decision);
  void add_directive(int64_t number, const std::string& kind, const std::string& plan,
                     int64_t plan_version, const std::string& state = "applied");
  void set_decision_state(const std::string& json);  // of run 1
  SQLite::Database& database() { return database_; }

  static RunRegistration registration();
  static std::string pinned_plan(const std::string& site);

 private:
  SQLite::Database database_;
};

// A whole scenario: a fault only FP8 feels from step 31 to 60 at kFaultySite; caught in the second
// window that contains it, attributed, pinned after a rollback to step 20, recovered, and FP8 back
// from step 71.
inline constexpr const char* kFaultySite = "model.layers.1.mlp.down_proj";
void write_caught_fault(const std::filesystem::path& file);

}  // namespace gnomon::cli

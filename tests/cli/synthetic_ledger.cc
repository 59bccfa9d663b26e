#include "tests/cli/synthetic_ledger.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/files.h"
#include "protocol/json.h"
#include "storage/ledger_version.h"

namespace gnomon::cli {

RunRegistration SyntheticLedger::registration() {
  RunRegistration registration;
  registration.name = "demo";
  registration.job_id = std::to_string(1);
  registration.fingerprint.device = "a test";
  registration.base_plan =
      "version = 1\n[[rule]]\nmatch = \"*\"\nfprop = \"fp8\"\ndgrad = \"fp8\"\nwgrad = \"fp8\"\n";
  for (int layer = 0; layer < 2; ++layer) {
    for (const char* site : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                             "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      registration.sites.push_back(fmt::format("model.layers.{}.{}", layer, site));
    }
  }
  registration.sites.push_back("lm_head");
  registration.layers = 2;
  registration.parameters = 123456;
  registration.total_steps = 100;
  registration.tokens_per_step = 256;
  registration.checkpoint_every = 10;
  return registration;
}

std::string SyntheticLedger::pinned_plan(const std::string& site) {
  return fmt::format(
      "{}[[rule]]\nmatch = \"{}\"\nfprop = \"bf16\"\ndgrad = \"bf16\"\nwgrad = \"bf16\"\n",
      registration().base_plan, site);
}

SyntheticLedger::SyntheticLedger(const std::filesystem::path& file)
    : database_(file, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE) {
  database_.exec("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF");
  database_.exec(read_file(GNOMON_SCHEMA_FILE));
  database_.exec(fmt::format("PRAGMA user_version = {}", gnomon::kLedgerVersion));
}

void SyntheticLedger::add_run(int64_t id, const std::string& name, const std::string& job) {
  RunRegistration said = registration();
  said.name = name;
  said.job_id = job;
  SQLite::Statement insert(database_,
                           "INSERT INTO runs (id, name, job_id, registration, policy, state,"
                           " registered_at) VALUES (?, ?, ?, ?, '', 'live', ?)");
  SQLite::bind(insert, id, name, job, to_json(said), kStart);
  insert.exec();
  if (id == 1) add_plan(1, said.base_plan);
}

void SyntheticLedger::set_decision_state(const std::string& json) {
  SQLite::Statement insert(database_,
                           "INSERT INTO decision_state (run, seq, body) VALUES (1, 1, ?)");
  SQLite::bind(insert, json);
  insert.exec();
}

void SyntheticLedger::finish(const std::string& state, double final_loss, double after_seconds) {
  SQLite::Statement update(database_,
                           "UPDATE runs SET state = ?, finished_at = ?, finished_step ="
                           " (SELECT max(step) FROM steps), final_loss = ?,"
                           // as if the last process had been started only just before the end
                           " train_seconds = 1 WHERE id = 1");
  SQLite::bind(update, state, kStart + after_seconds, final_loss);
  update.exec();
}

void SyntheticLedger::add_fault(const InjectedFault& fault) {
  SQLite::Statement insert(database_, "INSERT INTO faults VALUES (1, ?, ?, ?, ?, ?)");
  SQLite::bind(insert, fault.kind, fault.site, fault.start_step, fault.end_step, fault.description);
  insert.exec();
}

void SyntheticLedger::add_attempt(int64_t attempt, int64_t base_step, const std::string& cause) {
  SQLite::Statement insert(database_,
                           "INSERT INTO attempts (run, attempt, base_step, cause, plan_version, "
                           "started_at) VALUES (1, ?, ?, ?, 1, ?)");
  SQLite::bind(insert, attempt, base_step, cause, kStart);
  insert.exec();
}

void SyntheticLedger::add_steps(int64_t attempt, int64_t first, int64_t last,
                                int64_t plan_version) {
  SQLite::Statement insert(database_,
                           "INSERT INTO steps (run, attempt, step, plan_version, loss, grad_norm,"
                           " learning_rate, tokens, step_seconds, weights_hash, reported_at)"
                           " VALUES (1, ?, ?, ?, ?, 1.0, 0.001, 256, 1.0, '0123456789abcdef', ?)");
  for (int64_t step = first; step <= last; ++step) {
    double loss = 2.0 + 3.0 / static_cast<double>(step);
    SQLite::bind(insert, attempt, step, plan_version, loss, kStart + static_cast<double>(step));
    insert.exec();
    insert.reset();
  }
}

void SyntheticLedger::add_plan(int64_t version, const std::string& toml) {
  SQLite::Statement insert(database_, "INSERT INTO plans VALUES (1, ?, ?, ?)");
  SQLite::bind(insert, version, toml, kStart);
  insert.exec();
}

void SyntheticLedger::add_window(const WindowSpec& window) {
  SQLite::Statement insert(
      database_,
      "INSERT INTO windows (run, window, kind, attempt, start_step, steps, start_uri, end_uri,"
      " plan_version, state, gap, offset_loss, d_percent, tolerance_percent, opened_at, closed_at)"
      " VALUES (1, ?, ?, ?, ?, ?, '', '', ?, ?, ?, ?, ?, 0.5, ?, ?)");
  SQLite::bind(insert, window.window, window.kind, window.attempt, window.start_step, kWindowSteps,
               window.plan_version, window.state);
  if (window.d_percent) {
    insert.bind(8, *window.d_percent * 0.02);  // of a loss of 2 nats
    insert.bind(9, 0.002);
    insert.bind(10, *window.d_percent);
  }
  insert.bind(11, kStart);
  if (window.state != "open") insert.bind(12, kStart + window.closed_at);
  insert.exec();
}

void SyntheticLedger::add_shadow(int64_t replay, const WindowSpec& window, double seconds) {
  SQLite::Statement order(database_,
                          "INSERT INTO replays VALUES (1, ?, ?, 'bf16', '', 'shadow', 1, 0, 'done',"
                          " 1, NULL, ?, ?, 0, '', 0)");
  SQLite::bind(order, replay, window.window, kStart, kStart);
  order.exec();
  SQLite::Statement result(database_,
                           "INSERT INTO results VALUES (1, ?, 1, 'v', '{}', 2.0, 2.002, 2.0, 2.0,"
                           " 1000, ?, ?, ?, NULL, NULL)");
  SQLite::bind(result, replay, seconds, seconds, kStart);
  result.exec();
  SQLite::Statement step(
      database_, "INSERT INTO replay_steps VALUES (1, ?, ?, ?, 1.0, '0123456789abcdef', '')");
  for (int64_t i = 1; i <= kWindowSteps; ++i) {
    SQLite::bind(step, replay, window.start_step + i, 2.5);
    step.exec();
    step.reset();
  }
}

void SyntheticLedger::add_decision(const DecisionSpec& decision) {
  SQLite::Statement insert(database_,
                           "INSERT INTO decisions VALUES (1, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, "
                           "'{\"gap_nats\": 0.02}', ?)");
  std::string sites =
      decision.sites.empty() ? "[]" : fmt::format("[\"{}\"]", fmt::join(decision.sites, "\", \""));
  SQLite::bind(insert, decision.decision, kStart + decision.time, decision.kind, decision.verdict,
               decision.action, decision.enforced ? 1 : 0, decision.step, decision.window, sites,
               decision.sentence, decision.decision);
  insert.exec();
}

void SyntheticLedger::add_directive(int64_t number, const std::string& kind,
                                    const std::string& plan, int64_t plan_version,
                                    const std::string& state) {
  SQLite::Statement insert(
      database_,
      "INSERT INTO directives (run, number, kind, plan, plan_version, to_step, checkpoint_uri,"
      " reason, state, issued_at) VALUES (1, ?, ?, ?, ?, 0, '', 'Because.', ?, ?)");
  SQLite::bind(insert, number, kind, plan, plan_version, state, kStart);
  insert.exec();
}

void write_caught_fault(const std::filesystem::path& file) {
  SyntheticLedger ledger(file);
  ledger.add_run();
  ledger.add_fault({"frozen_amax", kFaultySite, 31, 61, "the amax history of one site is frozen"});
  ledger.add_attempt(1, 0, "start");
  ledger.add_steps(1, 1, 55);
  ledger.add_attempt(2, 20, "rollback");
  ledger.add_plan(2, SyntheticLedger::pinned_plan(kFaultySite));
  ledger.add_plan(3, SyntheticLedger::registration().base_plan);
  ledger.add_steps(2, 21, 70, 2);
  ledger.add_steps(2, 71, 100, 3);
  std::vector<WindowSpec> windows = {{1, 1, 0, "quiet", 0.1, 12},    {2, 1, 10, "quiet", 0.05, 22},
                                     {3, 1, 20, "skipped", {}, 32},  {4, 1, 30, "quiet", 0.4, 42},
                                     {5, 1, 40, "alarm", 4.5, 52},   {6, 2, 20, "quiet", 0.1, 60},
                                     {7, 2, 60, "quiet", 0.02, 100}, {8, 2, 70, "open", {}, 0}};
  for (const WindowSpec& window : windows) {
    ledger.add_window(window);
    if (window.d_percent) ledger.add_shadow(window.window, window, 2.0);
  }
  ledger.add_decision({1, 52, "alarm", "none", "none", 55, 5});
  ledger.add_decision({2, 53, "verdict", "fp8_numerics", "none", 55, 5});
  ledger.add_decision({3, 54, "attribution", "fp8_numerics", "none", 55, 5, {kFaultySite}});
  ledger.add_decision({4,
                       55,
                       "action",
                       "fp8_numerics",
                       "pin",
                       55,
                       5,
                       {kFaultySite},
                       "One <site> is pinned & the run goes back to step 20."});
  ledger.add_decision({5, 61, "recovered", "fp8_numerics", "none", 40, 6});
  ledger.add_decision({6, 80, "return", "none", "return", 70, 7});
  ledger.add_directive(1, "rollback", SyntheticLedger::pinned_plan(kFaultySite), 2);
  ledger.add_directive(2, "set_plan", SyntheticLedger::registration().base_plan, 3);
  ledger.finish("completed", 2.01, 150);
}

}  // namespace gnomon::cli

#include "tests/cli/recorded_ledger.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <SQLiteCpp/VariadicBind.h>

#include <boost/json.hpp>
#include <cmath>
#include <variant>

#include "controller/decide/decide.h"
#include "protocol/json.h"
#include "tests/cli/synthetic_ledger.h"

namespace gnomon::cli {
namespace {

class Writer {
 public:
  explicit Writer(SQLite::Database& database) : database_(database) {}

  template <class... Values>
  void insert(const std::string& sql, const Values&... values) {
    SQLite::Statement statement(database_, "INSERT INTO " + sql);
    SQLite::bind(statement, values...);
    statement.exec();
  }

  void event(int64_t seq, double time, const decide::Event& event) {
    if (const auto* step = std::get_if<decide::StepReported>(&event)) {
      // Some as if they had come late.
      const bool late = seq % 7 == 0;
      if (late) {
        insert("events VALUES (1, ?, ?, 'step_reported', ?, ?, NULL)", seq, time, step->attempt,
               step->step);
      }
      SQLite::Statement row(
          database_,
          "INSERT INTO steps (run, attempt, step, plan_version, loss, grad_norm, learning_rate,"
          " tokens, step_seconds, weights_hash, reported_at, seq)"
          " VALUES (1, ?, ?, ?, ?, ?, 0.001, 256, ?, '', ?, ?)");
      SQLite::bind(row, step->attempt, step->step, step->plan_version);
      if (std::isfinite(step->loss)) row.bind(4, step->loss);
      if (step->grad_norm) row.bind(5, *step->grad_norm);
      row.bind(6, step->seconds);
      row.bind(7, time);
      if (!late) row.bind(8, seq);
      row.exec();
      return;
    }
    insert("events VALUES (1, ?, ?, ?, NULL, NULL, ?)", seq, time, decide::event_type(event),
           decide::event_to_json(event));
  }

  void effect(int64_t seq, double time, const decide::Effect& effect) {
    if (const auto* open = std::get_if<decide::OpenWindow>(&effect)) {
      insert(
          "windows (run, window, kind, attempt, start_step, steps, start_uri, end_uri,"
          " plan_version, state, opened_at) VALUES (1, ?, ?, ?, ?, ?, '', '', ?, 'open', ?)",
          open->window, open->kind, open->attempt, open->start_step, open->steps,
          open->plan_version, time);
    } else if (const auto* order = std::get_if<decide::OrderReplay>(&effect)) {
      insert("replays VALUES (1, ?, ?, ?, ?, ?, ?, 0, 'done', 1, NULL, ?, NULL, ?, ?, ?)",
             order->replay, order->window, order->arm, order->plan, order->purpose,
             int{order->evaluate_endpoints}, time, order->nudge, order->avoid,
             int{order->on_trainer});
    } else if (const auto* issued = std::get_if<decide::IssueDirective>(&effect)) {
      insert(
          "directives (run, number, kind, plan, plan_version, to_step, checkpoint_uri, reason,"
          " state, issued_at) VALUES (1, ?, ?, ?, ?, ?, '', '', 'applied', ?)",
          issued->number, issued->kind, issued->plan, issued->plan_version, issued->to_step, time);
    } else if (const auto* made = std::get_if<decide::RecordDecision>(&effect)) {
      insert("decisions VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", made->decision, time,
             made->kind, made->verdict, made->action, int{made->enforced}, made->attempt,
             made->step, made->window, boost::json::serialize(boost::json::value_from(made->sites)),
             made->sentence, made->evidence, seq);
    }
  }

 private:
  SQLite::Database& database_;
};

}  // namespace

void write_ledger(const decide::SimulatedRun& run, const decide::Policy& policy,
                  const std::filesystem::path& file) {
  SyntheticLedger ledger(file);
  ledger.add_run();
  Writer writer(ledger.database());
  SQLite::Transaction transaction(ledger.database());
  SQLite::Statement set(ledger.database(), "UPDATE runs SET policy = ?");
  SQLite::bind(set, policy.to_toml());
  set.exec();
  decide::State state;
  for (size_t i = 0; i < run.events.size(); ++i) {
    const auto seq = static_cast<int64_t>(i) + 1;
    writer.event(seq, run.times[i], run.events[i]);
    decide::Outcome outcome = decide::decide(std::move(state), run.events[i], policy, run.times[i]);
    state = std::move(outcome.state);
    for (const decide::Effect& effect : outcome.effects) writer.effect(seq, run.times[i], effect);
  }
  ledger.set_decision_state(decide::state_to_json(state));
  transaction.commit();
}

}  // namespace gnomon::cli

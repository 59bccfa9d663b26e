#include "controller/supervisor/effects.h"

#include <fmt/format.h>

#include "controller/auth/http_error.h"
#include "controller/metrics/totals.h"
#include "protocol/json.h"
#include "storage/json_rows.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_runs.h"
#include "storage/ledger_windows.h"

namespace gnomon {
namespace {

void add_to_stream(const EffectContext& context, const std::string& type, const std::string& body) {
  const int64_t id = ledger::insert_stream(context.transaction.connection(), context.time,
                                           context.run, type, body);
  context.transaction.on_commit(
      [&stream = context.notifiers.stream, event = make_stream_event(id, context.run, type, body)] {
        stream.publish(event);
      });
}

void update_numbers(const EffectContext& context, std::function<void(RunNumbers&)> update) {
  context.transaction.on_commit([&metrics = context.metrics, run = context.run,
                                 update = std::move(update)] { metrics.update_run(run, update); });
}

std::string window_row(const EffectContext& context, int64_t window) {
  Query query = context.transaction.connection().query(
      "SELECT * FROM windows WHERE run = ? AND window = ?", context.run, window);
  return first_row_as_json(query);
}

void apply(const EffectContext& context, const decide::OpenWindow& open) {
  WindowRow row{open, {}, context.run};
  row.opened_at = context.time;
  ledger::insert(context.transaction.connection(), row);
  add_to_stream(context, "window", window_row(context, open.window));
}

void apply(const EffectContext& context, const decide::OrderReplay& order) {
  ReplayRow row{order, context.run};
  row.ordered_at = context.time;
  ledger::insert(context.transaction.connection(), row);
  context.transaction.on_commit(
      [&queue = context.queue, entry = queued_replay(row)] { queue.add(entry); });
}

void apply(const EffectContext& context, const decide::ShowWindow& show) {
  ledger::show_window(context.transaction.connection(), context.run, show.numbers.window,
                      show.numbers);
  update_numbers(context, load_standing(context.transaction.connection(), context.run));
  add_to_stream(context, "window", window_row(context, show.numbers.window));
}

void apply(const EffectContext& context, const decide::CloseWindow& close) {
  Connection& connection = context.transaction.connection();
  ledger::close_window(connection, context.run, close.window, close.outcome, close, context.time);
  if (ledger::cancel_queued_replays(connection, context.run, close.window, context.time) > 0) {
    context.transaction.on_commit([&queue = context.queue, run = context.run,
                                   window = close.window] { queue.cancel(run, window); });
  }
  update_numbers(context,
                 [outcome = close.outcome](RunNumbers& numbers) { numbers.windows[outcome] += 1; });
  update_numbers(context, load_standing(connection, context.run));
  add_to_stream(context, "window", window_row(context, close.window));
}

void apply(const EffectContext& context, const decide::MarkVerified& verified) {
  ledger::mark_verified(context.transaction.connection(), context.run, verified.attempt,
                        verified.step, context.time);
  update_numbers(context, load_standing(context.transaction.connection(), context.run));
}

void apply(const EffectContext& context, const decide::IssueDirective& issue) {
  Directive directive{issue.number,  issue.kind,           issue.plan,   issue.plan_version,
                      issue.to_step, issue.checkpoint_uri, issue.reason, "pending"};
  Connection& connection = context.transaction.connection();
  ledger::insert(connection, DirectiveRow{directive, context.run, context.time});
  if (issue.plan_version > 0 && !issue.plan.empty()) {
    ledger::insert_plan(connection, context.run, issue.plan_version, issue.plan, context.time);
  }
  update_numbers(context,
                 [kind = issue.kind](RunNumbers& numbers) { numbers.directives[kind] += 1; });
  context.transaction.on_commit(
      [&notifier = context.notifiers.directives.of(context.run)] { notifier.notify_all(); });
  add_to_stream(context, "directive", to_json(directive));
}

void apply(const EffectContext& context, const decide::EndDirective& end) {
  Connection& connection = context.transaction.connection();
  ledger::end_directive(connection, context.run, end.number, end.state, {.reason = end.reason},
                        context.time);
  std::optional<Directive> directive = ledger::find_directive(connection, context.run, end.number);
  if (directive) add_to_stream(context, "directive", to_json(*directive));
}

void apply(const EffectContext& context, const decide::RecordDecision& record) {
  Connection& connection = context.transaction.connection();
  ledger::insert(connection, DecisionRow{record, context.run, context.time, context.event_seq});
  update_numbers(context,
                 [kind = record.kind](RunNumbers& numbers) { numbers.decisions[kind] += 1; });
  Query query = connection.query("SELECT * FROM decisions WHERE run = ? AND decision = ?",
                                 context.run, record.decision);
  add_to_stream(context, "decision", first_row_as_json(query));
}

void apply(const EffectContext& context, const decide::QuarantineVerifier& quarantine) {
  Connection& connection = context.transaction.connection();
  ledger::insert_quarantine(connection, context.run, quarantine.verifier, quarantine.reason,
                            context.time);
  context.transaction.on_commit([&queue = context.queue, run = context.run,
                                 name = quarantine.verifier] { queue.quarantine(run, name); });
  const ledger::AuditedBy gnomond(connection, "");  // whoever's report has led to it
  ledger::insert_audit(connection, context.time, context.run, "quarantine",
                       fmt::format("{}: {}", quarantine.verifier, quarantine.reason));
}

void apply(const EffectContext& context, const decide::ProtectCheckpoints& protect) {
  ledger::protect_checkpoints(context.transaction.connection(), context.run, protect.uris);
}

}  // namespace

QueuedReplay queued_replay(const ReplayRow& row) {
  return {row.run,      row.replay,     row.window,     row.token,
          row.priority, row.ordered_at, row.on_trainer, row.arm};
}

void apply_effect(const EffectContext& context, const decide::Effect& effect) {
  std::visit([&](const auto& each) { apply(context, each); }, effect);
}

}  // namespace gnomon

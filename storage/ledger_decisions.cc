#include "storage/ledger_decisions.h"

namespace gnomon::ledger {
namespace {

Directive directive_row(Query& query) {
  return {query.integer(0), query.text(1), query.text(2), query.integer(3),
          query.integer(4), query.text(5), query.text(6), query.text(7)};
}

}  // namespace

void insert_event(Connection& connection, int64_t run, const EventRow& event) {
  connection.execute(
      "INSERT INTO events (run, seq, time, type, attempt, step, body) VALUES (?, ?, ?, ?, ?, ?, ?)",
      run, event.seq, event.time, event.type, event.attempt, event.step, event.body);
}

std::vector<EventRow> events_after(Connection& connection, int64_t run, int64_t seq) {
  std::vector<EventRow> events;
  Query query = connection.query(
      "SELECT seq, time, type, attempt, step, body FROM events WHERE run = ? AND seq > ? "
      "ORDER BY seq",
      run, seq);
  while (query.next()) {
    events.push_back({query.integer(0), query.real(1), query.text(2), query.optional_integer(3),
                      query.optional_integer(4), query.optional_text(5)});
  }
  return events;
}

void save_state(Connection& connection, int64_t run, const StateRow& state) {
  connection.execute(
      "INSERT INTO decision_state (run, seq, body) VALUES (?1, ?2, ?3) "
      "ON CONFLICT (run) DO UPDATE SET seq = ?2, body = ?3",
      run, state.seq, state.body);
}

std::optional<StateRow> load_state(Connection& connection, int64_t run) {
  Query query = connection.query("SELECT seq, body FROM decision_state WHERE run = ?", run);
  return query.next() ? std::optional<StateRow>({query.integer(0), query.text(1)}) : std::nullopt;
}

void insert_decision(Connection& connection, int64_t run, const DecisionRow& decision) {
  connection.execute(
      "INSERT INTO decisions (run, decision, time, kind, verdict, action, enforced, attempt, step, "
      "window, sites, "
      "sentence, evidence, event_seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
      run, decision.decision, decision.time, decision.kind, decision.verdict, decision.action,
      decision.enforced, decision.attempt, decision.step, decision.window, decision.sites,
      decision.sentence, decision.evidence, decision.event_seq);
}

void insert_directive(Connection& connection, int64_t run, const Directive& directive, double now) {
  connection.execute(
      "INSERT INTO directives (run, number, kind, plan, plan_version, to_step, checkpoint_uri, "
      "reason, state, "
      "issued_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
      run, directive.number, directive.kind, directive.plan, directive.plan_version,
      directive.to_step, directive.checkpoint_uri, directive.reason, directive.state, now);
}

std::optional<Directive> find_directive(Connection& connection, int64_t run, int64_t number) {
  Query query = connection.query(
      "SELECT number, kind, plan, plan_version, to_step, checkpoint_uri, reason, state FROM "
      "directives "
      "WHERE run = ? AND number = ?",
      run, number);
  return query.next() ? std::optional<Directive>(directive_row(query)) : std::nullopt;
}

std::vector<Directive> open_directives(Connection& connection, int64_t run, int64_t after) {
  std::vector<Directive> directives;
  Query query = connection.query(
      "SELECT number, kind, plan, plan_version, to_step, checkpoint_uri, reason, state FROM "
      "directives "
      "WHERE run = ? AND number > ? AND state NOT IN ('applied', 'rejected', 'expired') "
      "ORDER BY number",
      run, after);
  while (query.next()) {
    directives.push_back(directive_row(query));
  }
  return directives;
}

int64_t last_directive(Connection& connection, int64_t run) {
  Query query =
      connection.query("SELECT coalesce(max(number), 0) FROM directives WHERE run = ?", run);
  return query.next() ? query.integer(0) : 0;
}

void mark_delivered(Connection& connection, int64_t run, int64_t number, double now) {
  connection.execute(
      "UPDATE directives SET state = 'delivered', delivered_at = ? WHERE run = ? AND number = ? "
      "AND state = 'pending'",
      now, run, number);
}

void acknowledge_directive(Connection& connection, int64_t run, int64_t number, double now) {
  connection.execute(
      "UPDATE directives SET state = 'acknowledged', acknowledged_at = ? WHERE run = ? AND number "
      "= ?",
      now, run, number);
}

void end_directive(Connection& connection, int64_t run, int64_t number, const DirectiveAck& ack,
                   double now) {
  bool applied = ack.state == "applied";
  connection.execute(
      "UPDATE directives SET state = ?, ended_at = ?, applied_attempt = ?, applied_step = ?, "
      "reject_reason = coalesce(?, reject_reason) "
      "WHERE run = ? AND number = ?",
      ack.state, now, applied ? std::optional<int64_t>(ack.attempt) : std::nullopt,
      applied ? std::optional<int64_t>(ack.step) : std::nullopt,
      applied ? std::nullopt : std::optional<std::string>(ack.reason), run, number);
}

int64_t insert_stream(Connection& connection, double now, int64_t run, const std::string& type,
                      const std::string& body) {
  connection.execute("INSERT INTO stream (time, run, type, body) VALUES (?, ?, ?, ?)", now, run,
                     type, body);
  return connection.database().getLastInsertRowid();
}

int64_t trim_stream(Connection& connection, double before, int64_t limit) {
  int64_t last = 0;
  int64_t count = 0;
  {
    Query oldest = connection.query(
        "SELECT id, time FROM stream WHERE id < (SELECT max(id) FROM stream) ORDER BY id LIMIT ?",
        limit);
    while (oldest.next() && oldest.real(1) < before) {
      last = oldest.integer(0);
      ++count;
    }
  }
  if (count > 0) {
    connection.execute("DELETE FROM stream WHERE id <= ?", last);
  }
  return count;
}

std::vector<StreamRow> stream_after(Connection& connection, int64_t id, int limit) {
  std::vector<StreamRow> rows;
  Query query = connection.query(
      "SELECT id, type, body, run FROM stream WHERE id > ? ORDER BY id LIMIT ?", id, limit);
  while (query.next()) {
    rows.push_back({query.integer(0), query.text(1), query.text(2), query.integer(3)});
  }
  return rows;
}

StreamRange stream_range(Connection& connection) {
  // Two look-ups at the ends of the table; min and max in one statement would read all of it.
  Query query = connection.query(
      "SELECT (SELECT coalesce(min(id), 1) FROM stream), (SELECT coalesce(max(id), 0) FROM "
      "stream)");
  query.next();
  return {query.integer(0), query.integer(1)};
}

}  // namespace gnomon::ledger

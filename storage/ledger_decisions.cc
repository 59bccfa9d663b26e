#include "storage/ledger_decisions.h"

namespace gnomon::ledger {

std::vector<EventRow> events_after(Connection& connection, int64_t run, int64_t seq) {
  return select<EventRow, "WHERE run = ? AND seq > ? ORDER BY seq">(connection, run, seq);
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

std::optional<Directive> find_directive(Connection& connection, int64_t run, int64_t number) {
  return find<DirectiveRow, "WHERE run = ? AND number = ?">(connection, run, number);
}

std::vector<Directive> open_directives(Connection& connection, int64_t run, int64_t after) {
  std::vector<Directive> open;
  Query query = query_rows<DirectiveRow,
                           "WHERE run = ? AND number > ? AND state NOT IN ('applied', 'rejected', "
                           "'expired') ORDER BY number">(connection, run, after);
  while (query.next()) open.push_back(read_row<DirectiveRow>(query));
  return open;
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

void end_directive(Connection& connection, int64_t run, int64_t number, DirectiveState state,
                   const DirectiveAck& answer, double now) {
  bool applied = state == "applied";
  connection.execute(
      "UPDATE directives SET state = ?, ended_at = ?, applied_attempt = ?, applied_step = ?, "
      "reject_reason = coalesce(?, reject_reason) "
      "WHERE run = ? AND number = ?",
      std::string(state), now, applied ? std::optional<int64_t>(answer.attempt) : std::nullopt,
      applied ? std::optional<int64_t>(answer.step) : std::nullopt,
      applied ? std::nullopt : std::optional<std::string>(answer.reason), run, number);
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

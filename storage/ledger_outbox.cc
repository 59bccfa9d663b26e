#include "storage/ledger_outbox.h"

namespace gnomon::ledger {

void queue_message(Connection& connection, const std::string& receiver, int64_t run,
                   const std::string& kind, const std::string& alert, double now) {
  connection.execute(
      "INSERT INTO outbox (receiver, run, kind, delivery, alert, queued_at) "
      "VALUES (?, ?, ?, lower(hex(randomblob(16))), ?, ?)",
      receiver, run, kind, alert, now);
}

std::vector<OutboxRow> first_messages(Connection& connection, const std::string& receiver,
                                      int64_t after_run, int64_t limit) {
  std::vector<OutboxRow> rows;
  int64_t run = after_run;
  while (std::ssize(rows) < limit) {
    std::optional<OutboxRow> row =
        find<OutboxRow, "WHERE receiver = ? AND run > ? ORDER BY run, id LIMIT 1">(connection,
                                                                                   receiver, run);
    if (!row) break;
    run = row->run;
    rows.push_back(*std::move(row));
  }
  return rows;
}

bool delete_message(Connection& connection, int64_t id) {
  return connection.execute("DELETE FROM outbox WHERE id = ?", id) > 0;
}

void note_failed_try(Connection& connection, int64_t id, double next_try_at,
                     const std::string& error) {
  connection.execute(
      "UPDATE outbox SET tries = tries + 1, next_try_at = ?, last_error = ? WHERE id = ?",
      next_try_at, error, id);
}

void forget_waits(Connection& connection) {
  connection.execute("UPDATE outbox SET next_try_at = NULL WHERE next_try_at IS NOT NULL");
}

int64_t delete_beyond(Connection& connection, const std::string& receiver, int64_t keep) {
  return connection.execute(
      "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE receiver = ? ORDER BY id DESC "
      "LIMIT -1 OFFSET ?)",
      receiver, keep);
}

int64_t delete_waiting_since(Connection& connection, const std::string& receiver, double before,
                             int64_t limit) {
  return connection.execute(
      "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE receiver = ?1 ORDER BY id "
      "LIMIT ?3) AND queued_at < ?2",
      receiver, before, limit);
}

Waiting waiting_for(Connection& connection, const std::string& receiver) {
  Query query = connection.query(
      "SELECT (SELECT count(*) FROM outbox WHERE receiver = ?1), coalesce((SELECT queued_at FROM "
      "outbox WHERE receiver = ?1 ORDER BY id LIMIT 1), 0.0)",
      receiver);
  query.next();
  return {query.integer(0), query.real(1)};
}

std::vector<std::string> waiting_receivers(Connection& connection) {
  std::vector<std::string> names;
  Query query = connection.query("SELECT DISTINCT receiver FROM outbox");
  while (query.next()) names.push_back(query.text(0));
  return names;
}

void begin_condition(Connection& connection, const ConditionRow& row) {
  insert<ConditionRow, "INSERT OR REPLACE">(connection, row);
}

std::optional<ConditionRow> end_condition(Connection& connection, int64_t run,
                                          const std::string& kind) {
  const auto row = find<ConditionRow, "WHERE run = ? AND kind = ?">(connection, run, kind);
  connection.execute("DELETE FROM conditions WHERE run = ? AND kind = ?", run, kind);
  return row;
}

void forget_conditions(Connection& connection) { connection.execute("DELETE FROM conditions"); }

std::vector<ConditionRow> all_conditions(Connection& connection) {
  return select<ConditionRow, "ORDER BY run, kind">(connection);
}

void record_notified(Connection& connection, int64_t run, const std::string& kind,
                     const std::string& notified) {
  connection.execute("UPDATE conditions SET told = ? WHERE run = ? AND kind = ?", notified, run,
                     kind);
}

std::vector<std::string> conditions_of(Connection& connection, int64_t run) {
  std::vector<std::string> kinds;
  Query query = connection.query("SELECT kind FROM conditions WHERE run = ?", run);
  while (query.next()) kinds.push_back(query.text(0));
  return kinds;
}

}  // namespace gnomon::ledger

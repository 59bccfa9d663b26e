#include "storage/ledger_outbox.h"

namespace gnomon::ledger {
namespace {

ConditionRow condition_at(Query& query) {
  return {query.integer(0), query.text(1), query.real(2), query.text(3), query.text(4)};
}

}  // namespace

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
    Query query = connection.query(
        "SELECT id, receiver, run, kind, delivery, alert, queued_at, tries, "
        "coalesce(next_try_at, 0.0) FROM outbox WHERE receiver = ? AND run > ? ORDER BY run, id "
        "LIMIT 1",
        receiver, run);
    if (!query.next()) break;
    run = query.integer(2);
    rows.push_back({query.integer(0), query.text(1), run, query.text(3), query.text(4),
                    query.text(5), query.real(6), query.integer(7), query.real(8)});
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
  connection.execute(
      "INSERT OR REPLACE INTO conditions (run, kind, since, alert, told) VALUES (?, ?, ?, ?, ?)",
      row.run, row.kind, row.since, row.alert, row.told);
}

std::optional<ConditionRow> end_condition(Connection& connection, int64_t run,
                                          const std::string& kind) {
  std::optional<ConditionRow> row;
  {
    Query query = connection.query(
        "SELECT run, kind, since, alert, told FROM conditions WHERE run = ? AND kind = ?", run,
        kind);
    if (query.next()) row = condition_at(query);
  }
  connection.execute("DELETE FROM conditions WHERE run = ? AND kind = ?", run, kind);
  return row;
}

void forget_conditions(Connection& connection) { connection.execute("DELETE FROM conditions"); }

std::vector<ConditionRow> all_conditions(Connection& connection) {
  std::vector<ConditionRow> rows;
  Query query =
      connection.query("SELECT run, kind, since, alert, told FROM conditions ORDER BY run, kind");
  while (query.next()) rows.push_back(condition_at(query));
  return rows;
}

void note_told(Connection& connection, int64_t run, const std::string& kind,
               const std::string& told) {
  connection.execute("UPDATE conditions SET told = ? WHERE run = ? AND kind = ?", told, run, kind);
}

std::vector<std::string> conditions_of(Connection& connection, int64_t run) {
  std::vector<std::string> kinds;
  Query query = connection.query("SELECT kind FROM conditions WHERE run = ?", run);
  while (query.next()) kinds.push_back(query.text(0));
  return kinds;
}

std::vector<ConditionRow> settled_conditions(Connection& connection, const std::string& receiver,
                                             int64_t limit) {
  std::vector<ConditionRow> rows;
  Query query = connection.query(
      "SELECT run, kind, since, alert, told FROM conditions c WHERE NOT EXISTS (SELECT 1 FROM "
      "outbox o "
      "WHERE o.receiver = ? AND o.run = c.run) ORDER BY run, kind LIMIT ?",
      receiver, limit);
  while (query.next()) rows.push_back(condition_at(query));
  return rows;
}

}  // namespace gnomon::ledger

#include "storage/ledger_retention.h"

#include <array>
#include <optional>

#include "storage/ledger_decisions.h"

namespace gnomon::ledger {
namespace {

std::optional<int64_t> first_number(Query query) {
  return query.next() ? std::optional<int64_t>(query.integer(0)) : std::nullopt;
}

int64_t trim_events(Connection& connection, double before, int64_t limit) {
  const std::optional<int64_t> run = first_number(connection.query(
      "SELECT id FROM runs WHERE state <> 'live' AND finished_at < ? AND EXISTS (SELECT 1 FROM "
      "events WHERE run = runs.id) LIMIT 1",
      before));
  if (!run) return 0;
  return connection.execute(
      "DELETE FROM events WHERE run = ?1 AND seq IN (SELECT seq FROM events WHERE run = ?1 ORDER "
      "BY seq LIMIT ?2)",
      *run, limit);
}

int64_t trim_steps(Connection& connection, double before, int64_t limit) {
  const std::optional<int64_t> run = first_number(connection.query(
      "SELECT id FROM runs WHERE state <> 'live' AND finished_at < ? AND (SELECT count(*) FROM "
      "(SELECT 1 FROM steps WHERE run = runs.id LIMIT 2)) = 2 LIMIT 1",
      before));
  if (!run) return 0;
  return connection.execute(
      "DELETE FROM steps WHERE run = ?1 AND (attempt, step) IN (SELECT attempt, step FROM steps "
      "WHERE run = ?1 ORDER BY attempt, step LIMIT ?2) AND (attempt, step) <> (SELECT attempt, "
      "step FROM steps WHERE run = ?1 ORDER BY attempt DESC, step DESC LIMIT 1)",
      *run, limit);
}

int64_t trim_replay_steps(Connection& connection, double before, int64_t limit) {
  const std::optional<int64_t> run = first_number(connection.query(
      "SELECT id FROM runs WHERE state <> 'live' AND finished_at < ? AND EXISTS (SELECT 1 FROM "
      "replay_steps WHERE run = runs.id) LIMIT 1",
      before));
  if (!run) return 0;
  return connection.execute(
      "DELETE FROM replay_steps WHERE run = ?1 AND (replay, step) IN (SELECT replay, step FROM "
      "replay_steps WHERE run = ?1 ORDER BY replay, step LIMIT ?2)",
      *run, limit);
}

int64_t trim_notices(Connection& connection, double before, int64_t limit) {
  const std::optional<int64_t> run = first_number(connection.query(
      "SELECT id FROM runs WHERE (SELECT reported_at FROM notices WHERE run = runs.id ORDER BY "
      "notice LIMIT 1) < ? AND (SELECT count(*) FROM (SELECT 1 FROM notices WHERE run = runs.id "
      "LIMIT 2)) = 2 LIMIT 1",
      before));
  if (!run) return 0;
  return connection.execute(
      "DELETE FROM notices WHERE run = ?1 AND notice IN (SELECT notice FROM notices WHERE run = ?1 "
      "ORDER BY notice LIMIT ?3) AND reported_at < ?2 AND notice < (SELECT max(notice) FROM "
      "notices WHERE run = ?1)",
      *run, before, limit);
}

int64_t trim_device_health(Connection& connection, double before, int64_t limit) {
  const std::optional<int64_t> run = first_number(connection.query(
      "SELECT id FROM runs WHERE (SELECT reported_at FROM device_health WHERE run = runs.id ORDER "
      "BY sample LIMIT 1) < ? AND (SELECT count(*) FROM (SELECT 1 FROM device_health WHERE run = "
      "runs.id LIMIT 2)) = 2 LIMIT 1",
      before));
  if (!run) return 0;
  return connection.execute(
      "DELETE FROM device_health WHERE run = ?1 AND sample IN (SELECT sample FROM device_health "
      "WHERE run = ?1 ORDER BY sample LIMIT ?3) AND reported_at < ?2 AND sample < (SELECT "
      "max(sample) FROM device_health WHERE run = ?1)",
      *run, before, limit);
}

// Whole steps, until `limit` rows are reached.
int64_t trim_statistics(Connection& connection, double before, int64_t limit) {
  int64_t deleted = 0;
  while (deleted < limit) {
    std::optional<std::array<int64_t, 3>> oldest;
    {
      Query query = connection.query(
          "SELECT s.run, s.attempt, s.step FROM runs JOIN statistics_steps s ON s.run = runs.id "
          "AND (s.attempt, s.step) = (SELECT attempt, step FROM statistics_steps WHERE run = "
          "runs.id ORDER BY attempt, step LIMIT 1) WHERE s.reported_at < ? AND (SELECT count(*) "
          "FROM (SELECT 1 FROM statistics_steps WHERE run = runs.id LIMIT 2)) = 2 LIMIT 1",
          before);
      if (query.next()) oldest = {query.integer(0), query.integer(1), query.integer(2)};
    }
    if (!oldest) break;
    const auto [run, attempt, step] = *oldest;
    for (const char* sql :
         {"DELETE FROM statistics WHERE run = ? AND attempt = ? AND step = ?",
          "DELETE FROM statistics_steps WHERE run = ? AND attempt = ? AND step = ?"}) {
      deleted += connection.execute(sql, run, attempt, step);
    }
  }
  return deleted;
}

constexpr std::array<RetainedTable, 7> kRetainedTables = {{{"stream", trim_stream},
                                                           {"events", trim_events},
                                                           {"notices", trim_notices},
                                                           {"statistics", trim_statistics},
                                                           {"device_health", trim_device_health},
                                                           {"steps", trim_steps},
                                                           {"replay_steps", trim_replay_steps}}};

}  // namespace

std::span<const RetainedTable> retained_tables() { return kRetainedTables; }

}  // namespace gnomon::ledger

#include "storage/ledger_statistics.h"

#include <algorithm>

#include "protocol/json.h"

namespace gnomon::ledger {
namespace {

struct Step {
  int64_t attempt = 0;
  int64_t step = 0;
};

// By attempt first: a step that was rolled back is older than any of the next attempt.
constexpr const char* kNewestFirst =
    "SELECT attempt, step FROM statistics_steps WHERE run = ? "
    "ORDER BY attempt DESC, step DESC LIMIT 1 OFFSET ?";
constexpr const char* kOldestFirst =
    "SELECT attempt, step FROM statistics_steps WHERE run = ? "
    "ORDER BY attempt, step LIMIT 1 OFFSET ?";

std::optional<Step> step_at(Connection& connection, const char* order, int64_t run,
                            int64_t position) {
  Query found = connection.query(order, run, position);
  if (!found.next()) return std::nullopt;
  return Step{found.integer(0), found.integer(1)};
}

int64_t rows_of(Connection& connection, int64_t run, const std::optional<Step>& step) {
  if (!step) return 0;
  Query count =
      connection.query("SELECT count(*) FROM statistics WHERE run = ? AND attempt = ? AND step = ?",
                       run, step->attempt, step->step);
  return count.next() ? count.integer(0) : 0;
}

void trim(Connection& connection, int64_t run, const StatisticsLimits& limits) {
  const int64_t newest = rows_of(connection, run, step_at(connection, kNewestFirst, run, 0));
  while (true) {
    const std::optional<Step> oldest = step_at(connection, kOldestFirst, run, 0);
    const int64_t largest = std::max({newest, rows_of(connection, run, oldest), int64_t{1}});
    const int64_t kept = std::clamp(limits.rows / largest, int64_t{1}, limits.steps);
    if (!step_at(connection, kNewestFirst, run, kept)) return;
    for (const char* sql :
         {"DELETE FROM statistics WHERE run = ? AND attempt = ? AND step = ?",
          "DELETE FROM statistics_steps WHERE run = ? AND attempt = ? AND step = ?"}) {
      connection.execute(sql, run, oldest->attempt, oldest->step);
    }
  }
}

}  // namespace

int64_t insert_statistics(Connection& connection, int64_t run, const StatisticsReport& report,
                          const std::vector<std::string>& bodies, double now,
                          const StatisticsLimits& limits) {
  const int new_step = connection.execute(
      "INSERT INTO statistics_steps (run, attempt, step, plan_version, measured_at, reported_at) "
      "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
      run, report.attempt, report.step, report.plan_version, report.time, now);
  int64_t inserted = 0;
  for (size_t i = 0; i < report.rows.size(); ++i) {
    const StatisticsRow& row = report.rows[i];
    inserted += connection.execute(
        "INSERT INTO statistics (run, attempt, step, site, tensor, gemm, recipe, in_use, amax, "
        "kurtosis, underflow, saturation, sqnr_db, body) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        run, report.attempt, report.step, row.site, row.tensor, row.gemm, row.recipe, row.in_use,
        row.number(StatisticsNumber::kAmax), row.number(StatisticsNumber::kKurtosis),
        row.number(StatisticsNumber::kUnderflow), row.number(StatisticsNumber::kSaturation),
        row.number(StatisticsNumber::kSqnrDb), bodies[i]);
  }
  if (new_step > 0 || inserted > 0) trim(connection, run, limits);
  return inserted;
}

std::optional<StatisticsReport> newest_statistics(Connection& connection, int64_t run) {
  const std::optional<Step> newest = step_at(connection, kNewestFirst, run, 0);
  if (!newest) return std::nullopt;
  StatisticsReport report;
  report.attempt = newest->attempt;
  report.step = newest->step;
  Query rows =
      connection.query("SELECT body FROM statistics WHERE run = ? AND attempt = ? AND step = ?",
                       run, report.attempt, report.step);
  while (rows.next()) report.rows.push_back(from_json<StatisticsRow>(rows.text(0)));
  return report;
}

}  // namespace gnomon::ledger

#include "storage/ledger_statistics.h"

namespace gnomon::ledger {
namespace {

// By attempt first: a step that was rolled back is older than any of the next attempt.
void trim(Connection& connection, int64_t run) {
  Query oldest = connection.query(
      "SELECT attempt, step FROM statistics_steps WHERE run = ? "
      "ORDER BY attempt DESC, step DESC LIMIT 1 OFFSET ?",
      run, kStatisticsStepsMax);
  if (!oldest.next()) return;
  const int64_t attempt = oldest.integer(0);
  const int64_t step = oldest.integer(1);
  for (const char* sql :
       {"DELETE FROM statistics WHERE run = ? AND (attempt, step) <= (?, ?)",
        "DELETE FROM statistics_steps WHERE run = ? AND (attempt, step) <= (?, ?)"}) {
    connection.execute(sql, run, attempt, step);
  }
}

}  // namespace

int64_t insert_statistics(Connection& connection, int64_t run, const StatisticsReport& report,
                          const std::vector<std::string>& bodies, double now) {
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
  if (new_step > 0) trim(connection, run);
  return inserted;
}

}  // namespace gnomon::ledger

#include "storage/ledger_health.h"

#include <cmath>

namespace gnomon::ledger {
namespace {

// Whether `row` is of the same device, attempt and stretch of time as the one before it.
bool replaces(const HealthRow& row, const HealthRow& before) {
  constexpr auto kEvery = static_cast<double>(kHealthEverySeconds);
  return row.attempt == before.attempt && row.device == before.device &&
         std::floor(row.sampled_at / kEvery) == std::floor(before.sampled_at / kEvery);
}

}  // namespace

std::optional<HealthRow> newest_health(Connection& connection, int64_t run) {
  Query found = connection.query(
      "SELECT sample, attempt, step, host, device, sampled_at, ecc_uncorrected, ecc_told, body "
      "FROM device_health WHERE run = ? ORDER BY sample DESC LIMIT 1",
      run);
  if (!found.next()) return std::nullopt;
  return HealthRow{
      found.integer(0), found.integer(1), found.integer(2),          found.text(3),
      found.text(4),    found.real(5),    found.optional_integer(6), found.optional_integer(7),
      found.text(8)};
}

void insert_health(Connection& connection, int64_t run, const HealthRow& row, double now,
                   int64_t samples_max) {
  const std::optional<HealthRow> before = newest_health(connection, run);
  const int64_t newest = before ? before->sample : 0;
  const int64_t sample = before && replaces(row, *before) ? newest : newest + 1;
  connection.execute(
      "INSERT OR REPLACE INTO device_health (run, sample, attempt, step, host, device, sampled_at, "
      "reported_at, ecc_uncorrected, ecc_told, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
      run, sample, row.attempt, row.step, row.host, row.device, row.sampled_at, now,
      row.ecc_uncorrected, row.ecc_told, row.body);
  connection.execute("DELETE FROM device_health WHERE run = ? AND sample <= ?", run,
                     sample - samples_max);
}

}  // namespace gnomon::ledger

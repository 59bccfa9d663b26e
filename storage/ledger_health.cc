#include "storage/ledger_health.h"

#include <cmath>

namespace gnomon::ledger {
namespace {

// True when `row` is of the same device, attempt and stretch of time as the one before it.
bool replaces(const DeviceHealthRow& row, const DeviceHealthRow& before) {
  constexpr auto kEvery = static_cast<double>(kHealthEverySeconds);
  return row.attempt == before.attempt && row.device == before.device &&
         std::floor(row.sampled_at / kEvery) == std::floor(before.sampled_at / kEvery);
}

}  // namespace

std::optional<DeviceHealthRow> newest_health(Connection& connection, int64_t run) {
  return find<DeviceHealthRow, "WHERE run = ? ORDER BY sample DESC LIMIT 1">(connection, run);
}

void insert_health(Connection& connection, DeviceHealthRow row, int64_t samples_max) {
  const std::optional<DeviceHealthRow> before = newest_health(connection, row.run);
  const int64_t newest = before ? before->sample : 0;
  row.sample = before && replaces(row, *before) ? newest : newest + 1;
  insert<DeviceHealthRow, "INSERT OR REPLACE">(connection, row);
  connection.execute("DELETE FROM device_health WHERE run = ? AND sample <= ?", row.run,
                     row.sample - samples_max);
}

}  // namespace gnomon::ledger

// Rows of what GPUs said of themselves, as trainers report it with their steps. As in
// ledger_runs.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "protocol/records.h"
#include "storage/rows.h"

namespace gnomon::ledger {

// One sample is kept of so many seconds, the newest, so that hours are covered.
inline constexpr int64_t kHealthEverySeconds = 10;
// Beyond it the oldest sample of the run goes: some 55 hours of them. A row takes about 600 bytes:
// at most some 12 MB for a run.
inline constexpr int64_t kHealthSamplesMax = 20'000;

std::optional<DeviceHealthRow> newest_health(Connection& connection, int64_t run);
// Gives it the next number, or that of the sample of the same ten seconds, which it replaces.
void insert_health(Connection& connection, DeviceHealthRow row,
                   int64_t samples_max = kHealthSamplesMax);

}  // namespace gnomon::ledger

// Rows that are only kept for a time. Each call deletes a bounded number, so that reports get
// between two of them. The audit log and what decisions rest on are not among these tables.
#pragma once

#include <cstdint>
#include <span>

#include "storage/ledger_connection.h"

namespace gnomon::ledger {

struct RetainedTable {
  const char* name;
  // Deletes at most about `limit` of the oldest rows from before `before` (seconds since the
  // epoch); returns how many. 0 = there is none.
  int64_t (*trim)(Connection& connection, double before, int64_t limit);
};

// stream: rows by their own time, but never the newest, whose id the next one follows.
// events, steps, replay_steps: of runs that ended before `before`; of the steps the newest stays.
// notices, statistics, device_health: by when they were reported; the newest of each run stays.
std::span<const RetainedTable> retained_tables();

}  // namespace gnomon::ledger

// Rows of tensor statistics: which steps have some, and a row for each tensor and each rounding of
// it. As in ledger_runs.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/records.h"
#include "storage/ledger_connection.h"

namespace gnomon::ledger {

inline constexpr int64_t kStatisticsStepsMax = 2'000;
// A row takes about 650 bytes: at most some 330 MB for a run.
inline constexpr int64_t kStatisticsRowsMax = 500'000;

// What a run keeps; beyond either, all rows of the oldest steps go, but never those of the newest.
struct StatisticsLimits {
  int64_t steps = kStatisticsStepsMax;
  // As many steps are kept as have room if all are as large as the larger of the newest and the
  // oldest: no row is counted but those of these two.
  int64_t rows = kStatisticsRowsMax;
};

// bodies[i] is the JSON of report.rows[i]. Returns how many rows were new.
int64_t insert_statistics(Connection& connection, int64_t run, const StatisticsReport& report,
                          const std::vector<std::string>& bodies, double now,
                          const StatisticsLimits& limits = {});

// All rows of the newest step that has some, of the newest attempt; nothing where there is none.
std::optional<StatisticsReport> newest_statistics(Connection& connection, int64_t run);

}  // namespace gnomon::ledger

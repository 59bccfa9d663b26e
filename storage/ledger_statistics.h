// Rows of tensor statistics: which steps have some, and a row for each tensor and each rounding of
// it. As in ledger_runs.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/messages.h"
#include "storage/ledger_connection.h"

namespace gnomon::ledger {

// Steps of a run that keep their statistics; beyond it the oldest step's rows go.
inline constexpr int64_t kStatisticsStepsMax = 2'000;

// bodies[i] is the JSON of report.rows[i]. Returns how many rows were new.
int64_t insert_statistics(Connection& connection, int64_t run, const StatisticsReport& report,
                          const std::vector<std::string>& bodies, double now);

}  // namespace gnomon::ledger

// Tensor statistics that trainers report: kept for people and shown in the metrics; no decision
// rests on them yet.
#pragma once

#include <cstdint>

#include "controller/supervisor/run_cache.h"
#include "protocol/records.h"

namespace gnomon {

// Throws HttpError. Rows that are on record already stay as they are.
ReportAck report_statistics(WriteContext write, int64_t id, const StatisticsReport& report);

}  // namespace gnomon

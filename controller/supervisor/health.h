// What trainers report of their GPUs' health: kept for people and shown in the metrics. No decision
// rests on it; errors that memory could not correct are told in a notice.
#pragma once

#include <string>

#include "controller/supervisor/run_cache.h"
#include "protocol/records.h"

namespace gnomon {

// Of a step that was not on record, which carries one. Returns the host that the device is of.
std::string take_health(WriteContext write, const CachedRun& run, const StepReport& report);

}  // namespace gnomon

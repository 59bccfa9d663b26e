// What trainers report of their GPUs' health: kept for people and shown in the metrics. No decision
// rests on it; a notice reports errors that memory could not correct.
#pragma once

#include <string>

#include "controller/supervisor/run_cache.h"
#include "protocol/records.h"

namespace gnomon {

// Records the health that a step carries; the step was not on record. Returns the device's host.
std::string record_health(WriteContext write, const CachedRun& run, const StepReport& report);

}  // namespace gnomon

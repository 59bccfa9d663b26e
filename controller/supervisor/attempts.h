// Attempts of a run: one that its trainer starts, and one that was cut off and goes on.
#pragma once

#include <cstdint>

#include "controller/supervisor/run_cache.h"
#include "protocol/records.h"

namespace gnomon {

// Throws HttpError. A repeat of one that was accepted changes nothing; a run that had stopped or
// failed is live again.
ReportAck start_attempt(WriteContext write, int64_t id, const AttemptStart& attempt);
// A run that had stopped or failed is live again, with the attempt that was under way, whose next
// report is `step`.
void continue_attempt(WriteContext write, CachedRun& run, const StepReport& step);
// The metrics show how much of each layer runs in FP8 under this plan.
void show_layers(WriteContext write, CachedRun& run, int64_t plan_version);

}  // namespace gnomon

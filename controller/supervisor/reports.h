// What trainers report while they train: steps and checkpoints. All throw HttpError. A repeat of
// what was accepted changes nothing.
#pragma once

#include <cstdint>

#include "controller/supervisor/run_cache.h"
#include "protocol/records.h"

namespace gnomon {

// Takes all of the batch or, on a conflict, nothing.
ReportAck report_steps(WriteContext write, int64_t id, const StepBatch& batch);
ReportAck report_checkpoint(WriteContext write, int64_t id, const CheckpointReport& checkpoint);

}  // namespace gnomon

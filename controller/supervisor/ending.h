// How a run ends, by its trainer's word or an operator's, and how one goes for good.
#pragma once

#include <cstdint>

#include "controller/supervisor/run_cache.h"
#include "protocol/records.h"

namespace gnomon {

// The trainer says so. Throws HttpError: 409 when the run has ended otherwise.
ReportAck finish_run(WriteContext write, int64_t id, const RunFinished& finished);
// An operator says so: the trainer is gone for good, the run has failed. Throws HttpError: 409 when
// it has ended otherwise, or its trainer has spoken lately.
void end_run(WriteContext write, int64_t id, const EndRequest& request);
// An administrator wants it gone. Deletes a run that has ended, about a thousand rows with each
// call; true when it is gone. From the first call on nobody else's call takes the run (409), and an
// interrupted deletion goes on with the next one. Throws HttpError: 404, 409 while the run is live.
// Its leases are ended in the same write: Leases::end_leases_of().
bool delete_run(WriteContext write, int64_t id);

}  // namespace gnomon

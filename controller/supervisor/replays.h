// What the leases tell of a replay that has ended for good.
#pragma once

#include <string>

#include "controller/supervisor/run_cache.h"
#include "protocol/records.h"
#include "storage/ledger_windows.h"

namespace gnomon {

void replay_finished(WriteContext write, const ReplayRow& replay, const std::string& verifier,
                     const ReplayResult& result);
void replay_failed(WriteContext write, const ReplayRow& replay, const std::string& reason);

}  // namespace gnomon

// Results of replays, as they were handed in. As in ledger_runs.h.
#pragma once

#include <optional>
#include <string>

#include "protocol/records.h"
#include "storage/ledger_connection.h"

namespace gnomon::ledger {

struct RecordedResult {
  // Without fingerprint and the time at which it was sent. What was NaN is NaN, and absent where it
  // may be absent.
  ReplayResult result;
  std::string fingerprint;  // as JSON
};

std::optional<RecordedResult> find_result(Connection& connection, int64_t run, int64_t replay);

}  // namespace gnomon::ledger

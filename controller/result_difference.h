// Checks whether a result that is handed in again is the one on record.
#pragma once

#include <string>

#include "protocol/records.h"

namespace gnomon {

// The first member in which they differ, in words; empty when none does. `known` is as the ledger
// has it. When they were sent makes no difference.
std::string difference(const ReplayResult& known, const ReplayResult& repeated);

}  // namespace gnomon

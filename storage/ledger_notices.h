// Rows of what people are notified of and what they ask for: trainers' notices and operators'
// overrides. As in ledger_runs.h.
#pragma once

#include <optional>
#include <string>

#include "protocol/records.h"
#include "storage/rows.h"

namespace gnomon::ledger {

// Beyond it the oldest notice of the run goes.
inline constexpr int64_t kNoticesMax = 10'000;

// The notice's number in its run; nothing when the very same notice is on record already.
std::optional<int64_t> insert_notice(Connection& connection, int64_t run,
                                     const TrainerNotice& notice, double now);

// Gives it the next number in its run, which is returned.
int64_t insert_override(Connection& connection, OverrideRow row);

}  // namespace gnomon::ledger

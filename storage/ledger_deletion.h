// Deleting a run that has ended, a bounded number of rows at a time so that reports get between. A
// run that is being deleted says so in its row, which goes last: whatever interrupts the deletion,
// it can go on. Plain functions on a connection, to be called inside a ledger write.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storage/ledger_connection.h"

namespace gnomon::ledger {

// runs.state of a run whose rows are going.
inline constexpr RunStatus kDeleting = "deleting";

// Marks the run and cancels what of it waits for a verifier or is with one, with `reason`; `now` in
// seconds since the epoch.
void begin_deletion(Connection& connection, int64_t run, const std::string& reason, double now);
// Deletes at most about `limit` rows of what belongs to the run; returns how many. 0: nothing is
// left but its row in `runs`.
int64_t delete_some_of_run(Connection& connection, int64_t run, int64_t limit);
// The row itself, after all others.
void end_deletion(Connection& connection, int64_t run);

// The tables that delete_some_of_run() empties of a run. Not among them: `audit`, which is for
// ever; `stream` and `outbox`, whose rows go by themselves when they are old or delivered.
std::vector<std::string> tables_of_a_run();

}  // namespace gnomon::ledger

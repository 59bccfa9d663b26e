// Rows of notifications that wait for their receivers, and of what was notified to have begun
// (docs/notifications.md). As in ledger_runs.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "storage/rows.h"

namespace gnomon::ledger {

// `alert` is JSON. It waits behind the receiver's older messages of this run.
void queue_message(Connection& connection, const std::string& receiver, int64_t run,
                   const std::string& kind, const std::string& alert, double now);
// The oldest message of each run for this receiver, of at most `limit` runs above `after_run`, in
// their order.
std::vector<OutboxRow> first_messages(Connection& connection, const std::string& receiver,
                                      int64_t after_run, int64_t limit);
// False when it was gone already.
bool delete_message(Connection& connection, int64_t id);
void note_failed_try(Connection& connection, int64_t id, double next_try_at,
                     const std::string& error);

// All may be tried at once.
void forget_waits(Connection& connection);

// Both delete the oldest rows of a receiver and return how many: all but the newest `keep`, and
// those from before `before` (seconds since the epoch), which are at most `limit`.
int64_t delete_beyond(Connection& connection, const std::string& receiver, int64_t keep);
int64_t delete_waiting_since(Connection& connection, const std::string& receiver, double before,
                             int64_t limit);

struct Waiting {
  int64_t messages = 0;
  double since = 0;  // of the oldest, seconds since the epoch; 0 = none
};
Waiting waiting_for(Connection& connection, const std::string& receiver);
// The names that rows have, in any order.
std::vector<std::string> waiting_receivers(Connection& connection);

// Replaces one that is there.
void begin_condition(Connection& connection, const ConditionRow& row);
// What stood there.
std::optional<ConditionRow> end_condition(Connection& connection, int64_t run,
                                          const std::string& kind);
void forget_conditions(Connection& connection);
// Conditions of all runs, by run and kind.
std::vector<ConditionRow> all_conditions(Connection& connection);
void record_notified(Connection& connection, int64_t run, const std::string& kind,
                     const std::string& notified);
std::vector<std::string> conditions_of(Connection& connection, int64_t run);

}  // namespace gnomon::ledger

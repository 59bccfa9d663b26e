// Rows of what the decision core handled (events), keeps (its state) and wanted (decisions,
// directives), and of the stream that clients follow. As in ledger_runs.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "protocol/records.h"
#include "storage/rows.h"

namespace gnomon::ledger {

// By seq: of the reports of steps only those that have a row in `events` (ledger::steps_after).
std::vector<EventRow> events_after(Connection& connection, int64_t run, int64_t seq);

struct StateRow {
  int64_t seq = 0;  // of the last event it contains
  std::string body;
};

void save_state(Connection& connection, int64_t run, const StateRow& state);
std::optional<StateRow> load_state(Connection& connection, int64_t run);

std::optional<Directive> find_directive(Connection& connection, int64_t run, int64_t number);
// Those that have not ended (applied, rejected, expired), with a number above `after`, in order.
std::vector<Directive> open_directives(Connection& connection, int64_t run, int64_t after);
int64_t last_directive(Connection& connection, int64_t run);  // 0 = none
void mark_delivered(Connection& connection, int64_t run, int64_t number, double now);
void acknowledge_directive(Connection& connection, int64_t run, int64_t number, double now);
// `state` is applied, rejected or expired. One that had expired keeps the reason for that.
void end_directive(Connection& connection, int64_t run, int64_t number, DirectiveState state,
                   const DirectiveAck& answer, double now);

struct StreamRow {
  int64_t id = 0;
  std::string type;
  std::string body;
  int64_t run = 0;
};

// Returns the row's id.
int64_t insert_stream(Connection& connection, double now, int64_t run, const std::string& type,
                      const std::string& body);
std::vector<StreamRow> stream_after(Connection& connection, int64_t id, int limit);

// The ids that are there; they have no gaps. oldest > newest when there is none.
struct StreamRange {
  int64_t oldest = 1;
  int64_t newest = 0;
};
StreamRange stream_range(Connection& connection);
// Deletes the oldest rows up to the first one that was written at or after `before`, at most
// `limit`, and never the newest: ids would start again. Returns how many.
int64_t trim_stream(Connection& connection, double before, int64_t limit);

}  // namespace gnomon::ledger

// Rows of windows, their replays and the replays' results. As in ledger_runs.h.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "protocol/records.h"
#include "storage/rows.h"

namespace gnomon::ledger {

// What a window is closed with, or shows meanwhile.
void close_window(Connection& connection, int64_t run, int64_t window, const std::string& state,
                  const GapNumbers& numbers, double now);
// Its numbers alone: it stays open.
void show_window(Connection& connection, int64_t run, int64_t window, const GapNumbers& numbers);
std::optional<WindowRow> find_window(Connection& connection, int64_t run, int64_t window);

std::optional<ReplayRow> find_replay(Connection& connection, int64_t run, int64_t replay);
// All that wait for a verifier.
std::vector<ReplayRow> queued_replays(Connection& connection);
// `fail_reason` may be empty. An ended state (done, failed, cancelled) is stamped with `now`.
void set_replay_state(Connection& connection, int64_t run, int64_t replay, const std::string& state,
                      int64_t token, const std::string& fail_reason, double now);
// Returns how many were queued.
int cancel_queued_replays(Connection& connection, int64_t run, int64_t window, double now);

// A verifier whose answers the run does not believe any more.
void insert_quarantine(Connection& connection, int64_t run, const std::string& verifier,
                       const std::string& reason, double now);
bool is_quarantined(Connection& connection, int64_t run, const std::string& verifier);
std::set<std::string> quarantined_verifiers(Connection& connection, int64_t run);

void insert_result(Connection& connection, const ReplayRow& replay, const std::string& verifier,
                   const std::string& fingerprint, const ReplayResult& result, double now);

}  // namespace gnomon::ledger

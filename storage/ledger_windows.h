// Rows of windows, their replays and the replays' results. As in ledger_runs.h.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "protocol/records.h"
#include "storage/ledger_connection.h"

namespace gnomon::ledger {

struct WindowRow {
  int64_t window = 0;
  std::string kind;  // shadow, incident, probe, long
  int64_t attempt = 1;
  int64_t start_step = 0;
  int64_t steps = 0;
  std::string start_uri;
  std::string end_uri;
  int64_t plan_version = 0;
  std::string state = "open";  // open, quiet, alarm, skipped, failed
};

// A closed window's numbers; absent ones were not measured.
struct WindowClose {
  int64_t window = 0;
  std::string outcome;
  std::optional<double> gap;
  std::optional<double> offset;
  std::optional<double> d_percent;
  double tolerance_percent = 0;
  std::optional<double> gap_error = {};
  std::string rule = {};  // of an alarm
  std::optional<double> statistic = {};
  std::optional<double> threshold = {};
  std::optional<double> scale_percent = {};
  std::optional<double> null_percent = {};
};

void insert_window(Connection& connection, int64_t run, const WindowRow& window, double now);
void close_window(Connection& connection, int64_t run, const WindowClose& close, double now);
// Its numbers alone: it stays open.
void show_window(Connection& connection, int64_t run, const WindowClose& numbers);
std::optional<WindowRow> find_window(Connection& connection, int64_t run, int64_t window);

struct ReplayRow {
  int64_t run = 0;
  int64_t replay = 0;
  int64_t window = 0;
  std::string arm;
  std::string plan;
  std::string purpose;
  bool evaluate_endpoints = false;
  int64_t priority = 0;
  std::string state = "queued";  // queued, leased, done, failed, cancelled
  int64_t token = 0;
  int64_t nudge = 0;
  std::string avoid = {};
  bool on_trainer = false;
  double ordered_at = 0;
};

void insert_replay(Connection& connection, const ReplayRow& replay);
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

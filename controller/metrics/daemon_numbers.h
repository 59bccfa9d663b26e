// What the metrics say of the daemon as a whole, as plain numbers: whoever counts something adds to
// them. Every number here is a row of docs/metrics.md by the table in daemon_metrics.cc.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "controller/metrics/metric_table.h"

namespace gnomon {

// Seconds.
inline constexpr std::array kLatencyBounds = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                              0.05,   0.1,   0.25,   0.5,   1.0,  2.5};

// Replays that wait while nobody who speaks could do them, by why.
struct UnschedulableCounts {
  int64_t no_verifier = 0;  // none speaks at all
  int64_t labels = 0;       // none of those that speak has what the run requires
  int64_t unsupported = 0;  // those that have it cannot do the arm or read the checkpoints
  int64_t quarantine = 0;   // those that can are not believed by the run
};

// Notifications to one receiver.
struct ReceiverNumbers {
  Counts messages = zeros(std::array{"delivered", "failed", "dropped"});  // failed: tries
  int64_t waiting = 0;
  double waiting_since = 0;  // of the oldest, seconds since the epoch; 0 = none waits
};

// All times in seconds since the epoch.
struct DaemonNumbers {
  // The API. Routes are a fixed, small set.
  std::map<std::pair<std::string, std::string>, double> requests;  // by class of status and route
  std::map<std::string, Histogram> request_seconds;                // by route
  int64_t connections_known = 0;  // the last request's sender is known
  int64_t connections_strangers = 0;
  Counts connections_refused = zeros(std::array{"full", "token"});
  int64_t connections_evicted = 0;
  int64_t transfer_bytes = 0;
  int64_t transfers_refused = 0;

  // The configuration
  bool config_current = false;  // what is in force is the file's
  double config_loaded_at = 0;
  bool tokens_current = true;

  // The ledger
  Histogram commit_seconds{kLatencyBounds};
  int64_t ledger_queue_length = 0;
  int64_t ledger_bytes = 0;
  int64_t wal_bytes = 0;
  std::string integrity = "pending";  // pending, ok, failed, lost
  Counts backups = zeros(std::array{"completed", "failed"});
  double backup_made_at = 0;
  Counts rows_deleted;  // by table

  // Work
  int64_t replays_queued = 0;
  UnschedulableCounts replays_unschedulable;
  int64_t runs_set_aside = 0;
  int64_t leases_active = 0;
  Counts leases =
      zeros(std::array{"completed", "failed", "expired", "unsupported"});  // that have ended

  std::map<std::string, ReceiverNumbers> receivers;

  // A daemon that speaks TLS
  bool has_tls = false;
  int64_t tls_handshake_failures = 0;
  double tls_certificate_ends_at = 0;  // of the one that new connections get
  bool tls_current = false;            // what the files say is in force
};

// `route` is the pattern, never the path. `timed` is false for long polls and streams.
void count_request(DaemonNumbers& numbers, const std::string& route, int status, double seconds,
                   bool timed);
// The numbers of other receivers go.
void keep_receivers(DaemonNumbers& numbers, const std::vector<std::string>& names);
// Messages to a receiver; nothing for one that is not there.
void count_messages(DaemonNumbers& numbers, const std::string& receiver, const char* outcome,
                    int64_t count = 1);

// The metrics of the daemon as a whole, one row each.
const std::vector<MetricRow<DaemonNumbers>>& daemon_metrics();

}  // namespace gnomon

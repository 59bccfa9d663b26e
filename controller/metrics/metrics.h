// What /metrics serves: the names and labels of docs/metrics.md, on prometheus-cpp's registry. A
// run's series exist from its registration (or the daemon's start) until some time after its end.
// Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "controller/metrics/connection_series.h"
#include "controller/metrics/ledger_series.h"
#include "controller/metrics/notification_series.h"
#include "controller/metrics/run_series.h"
#include "controller/metrics/tls_series.h"
#include "protocol/records.h"

namespace gnomon {

// Replays that wait while nobody who speaks could do them, by why.
struct UnservedCounts {
  int64_t no_verifier = 0;  // none speaks at all
  int64_t labels = 0;       // none of those that speak has what the run requires
  int64_t quarantine = 0;   // those that have it are not believed by the run
};

class Metrics {
 public:
  // `ledger_queue_length` is asked at each scrape.
  explicit Metrics(std::function<size_t()> ledger_queue_length);
  ~Metrics();

  // `route` is the pattern, never the path. `timed` is false for long polls and streams.
  void request(const std::string& route, int status, double seconds, bool timed);
  void commit(double seconds);
  // `at` in seconds since the epoch.
  void config_loaded(bool successful, double at);
  // Whether the tokens in force are those of their file.
  void tokens_current(bool current);

  ConnectionSeries& connections() { return *connections_; }
  LedgerSeries& ledger() { return *ledger_; }
  // Only after speak_tls(), which comes before the first scrape.
  TlsSeries& tls() { return *tls_; }
  void speak_tls() { tls_ = std::make_unique<TlsSeries>(*registry_); }
  NotificationSeries& notifications() { return *notifications_; }
  // Called at each scrape, on its thread, before anything is read. Once, before the first.
  void on_scrape(std::function<void()> action) { on_scrape_ = std::move(action); }

  void set_replays_queued(int64_t count);
  void set_replays_unserved(const UnservedCounts& counts);
  void set_runs_set_aside(int64_t count);
  void set_leases_active(int64_t count);
  void lease_ended(const std::string& outcome, int64_t count = 1);  // completed, failed, expired

  // Creates the run's series from what the ledger holds, replacing what there was.
  void start_run(int64_t run, const std::string& label, const RunTotals& totals);
  // Calls `update` with the run's series; does nothing when it has none.
  void update_run(int64_t run, const std::function<void(RunSeries&)>& update);
  // The run's series are dropped at the first scrape after `drop_at` (steady clock seconds); a
  // negative one keeps them.
  void drop_run_at(int64_t run, double drop_at);

  // Text exposition format 0.0.4. `now` in steady clock seconds.
  std::string serialize(double now);

 private:
  struct Daemon;

  std::function<size_t()> ledger_queue_length_;
  mutable std::mutex mutex_;
  std::unique_ptr<prometheus::Registry> registry_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<ConnectionSeries> connections_;
  std::unique_ptr<LedgerSeries> ledger_;
  std::unique_ptr<TlsSeries> tls_;
  std::unique_ptr<NotificationSeries> notifications_;
  std::function<void()> on_scrape_;
  SeriesRegistry run_series_;
  std::unique_ptr<RunFamilies> families_;
  std::map<int64_t, std::unique_ptr<RunSeries>> runs_;
  std::map<int64_t, double> drop_at_;
};

}  // namespace gnomon

// Deletes rows that are older than the configuration keeps them, a few at a time.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "controller/metrics/metrics.h"
#include "storage/ledger.h"

namespace gnomon {

// Days for which a table's rows are kept; 0 = for ever. docs/daemon.md says what each costs.
struct RetentionSettings {
  double stream_days = 7;
  double events_days = 0;  // of runs that ended
  double notices_days = 0;
  double statistics_days = 0;
  double device_health_days = 0;
  double steps_days = 0;         // of runs that ended
  double replay_steps_days = 0;  // of runs that ended
  bool operator==(const RetentionSettings&) const = default;
  double days_of(const std::string& table) const;
};

class Retention {
 public:
  // `now` in seconds since the epoch; `steady_now` in seconds of a clock that never jumps.
  Retention(Metrics& metrics, RetentionSettings settings, std::function<double()> now,
            std::function<double()> steady_now);

  void configure(const RetentionSettings& settings);
  // Whether there is, or may be, something to delete. From any thread.
  bool due() const { return !under_way_ && next_ <= steady_now_(); }
  // Posts one bounded write; when it has rows left to delete, due() is true again at once after it.
  // Logs a failure and tries again a minute later.
  void post(Ledger& ledger);

 private:
  void trim(LedgerTransaction& transaction);

  Metrics& metrics_;
  std::function<double()> now_;
  std::function<double()> steady_now_;
  mutable std::mutex mutex_;
  RetentionSettings settings_;
  size_t table_ = 0;  // the writer's thread only
  std::atomic<bool> under_way_ = false;
  std::atomic<double> next_ = 0;  // steady clock seconds
};

}  // namespace gnomon

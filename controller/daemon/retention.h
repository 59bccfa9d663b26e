// Deletes rows that are older than the configuration keeps them, a few at a time.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "controller/metrics/metrics.h"
#include "protocol/settings.h"
#include "storage/ledger.h"

namespace gnomon {

// Days for which a table's rows are kept; 0 = for ever. docs/daemon.md says what each costs.
struct RetentionSettings {
  double stream_days = 7;
  double events_days = 0;
  double notices_days = 0;
  double statistics_days = 0;
  double device_health_days = 0;
  double steps_days = 0;
  double replay_steps_days = 0;

  // The keys are named after the tables.
  template <class Visitor>
  static void describe(Visitor&& v) {
    using S = RetentionSettings;
    constexpr Range kDays = {0, 100'000};
    v("stream_days", &S::stream_days,
      Setting{.range = kDays,
              .help = "Rows of `stream` except the newest. Clients of `/v1/events` that were away "
                      "longer get 410."});
    v("events_days", &S::events_days,
      Setting{.range = kDays,
              .help = "Events of ended runs. `gnomon backtest` and `gnomon summary` need them."});
    v("notices_days", &S::notices_days,
      Setting{.range = kDays, .help = "Notices except a run's newest. No decision uses them."});
    v("statistics_days", &S::statistics_days,
      Setting{.range = kDays,
              .help = "Tensor statistics except a run's newest step. No decision uses them. Their "
                      "number is limited too."});
    v("device_health_days", &S::device_health_days,
      Setting{.range = kDays, .help = "GPU samples except a run's newest. No decision uses them."});
    v("steps_days", &S::steps_days,
      Setting{.range = kDays,
              .help = "Steps of ended runs except the newest. Curves, reports and backtests need "
                      "them; metric totals stay."});
    v("replay_steps_days", &S::replay_steps_days,
      Setting{.range = kDays,
              .help = "Replay losses of ended runs. The shadow curve needs them; windows, results, "
                      "decisions stay."});
  }
  bool operator==(const RetentionSettings&) const = default;
  double days_of(const std::string& table) const;
};

class Retention {
 public:
  // `now` in seconds since the epoch; `steady_now` in seconds of a clock that never jumps.
  Retention(Metrics& metrics, RetentionSettings settings, std::function<double()> now,
            std::function<double()> steady_now);

  void configure(const RetentionSettings& settings);
  // True when there is, or may be, something to delete. From any thread.
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

// What /metrics serves: the names and labels of docs/metrics.md, made of plain numbers at each
// scrape. A run has numbers from its registration (or the daemon's start) until some time after its
// end. Thread-safe: the daemon's numbers have one lock and each run's its own, so that a scrape
// keeps a commit waiting for one run's samples at most.
#pragma once

#include <prometheus/collectable.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "controller/metrics/daemon_numbers.h"
#include "controller/metrics/run_numbers.h"

namespace gnomon {

class Metrics final : public prometheus::Collectable {
 public:
  Metrics();

  // Calls `change` with the daemon's numbers.
  template <class Change>
  void update(const Change& change) {
    const std::lock_guard lock(mutex_);
    change(daemon_);
  }
  // Called at each scrape, on its thread, before anything is read. Once, before the first.
  void on_scrape(std::function<void()> action) { on_scrape_ = std::move(action); }

  // The run has these numbers from now on, in place of what there was.
  void start_run(int64_t run, const std::string& label, RunNumbers numbers);
  // Calls `change` with the run's numbers; does nothing when it has none.
  void update_run(int64_t run, const std::function<void(RunNumbers&)>& change);
  // The run's numbers are dropped at the first scrape after `drop_at` (steady clock seconds).
  void drop_run_at(int64_t run, double drop_at);

  std::vector<prometheus::MetricFamily> Collect() const override;
  // Text exposition format 0.0.4. `now` in steady clock seconds.
  std::string serialize(double now);

 private:
  struct Run {
    Run(std::string run_label, RunNumbers run_numbers)
        : label(std::move(run_label)), numbers(std::move(run_numbers)) {}
    const std::string label;
    std::optional<double> drop_at;  // guarded by Metrics
    std::mutex mutex;               // guards what follows
    RunNumbers numbers;
  };

  mutable std::mutex mutex_;
  DaemonNumbers daemon_;
  std::map<int64_t, std::shared_ptr<Run>> runs_;
  std::function<void()> on_scrape_;
};

}  // namespace gnomon

#include "controller/metrics/metrics.h"

#include <fmt/format.h>

#include "controller/metrics/text_format.h"
#include "storage/ledger_retention.h"

namespace gnomon {

Metrics::Metrics() {
  for (const ledger::RetainedTable& table : ledger::retained_tables()) {
    daemon_.rows_deleted[table.name] = 0;
  }
}

void Metrics::start_run(int64_t run, const std::string& label, RunNumbers numbers) {
  const std::lock_guard lock(mutex_);
  // Series must not share a label: the run's own go, and those of one that has ended and waits to
  // be dropped. Beside one that lives it has another label.
  std::string own_label = label;
  std::erase_if(runs_, [&](const auto& entry) {
    const bool same = entry.second->label == label;
    const bool goes = entry.first == run || (same && entry.second->drop_at);
    if (same && !goes) own_label = fmt::format("{} (run-{})", label, run);
    return goes;
  });
  runs_[run] = std::make_shared<Run>(own_label, std::move(numbers));
}

void Metrics::update_run(int64_t run, const std::function<void(RunNumbers&)>& change) {
  std::shared_ptr<Run> found;
  {
    const std::lock_guard lock(mutex_);
    if (const auto entry = runs_.find(run); entry != runs_.end()) found = entry->second;
  }
  if (!found) return;
  const std::lock_guard lock(found->mutex);
  change(found->numbers);
}

void Metrics::drop_run_at(int64_t run, double drop_at) {
  const std::lock_guard lock(mutex_);
  if (const auto entry = runs_.find(run); entry != runs_.end()) entry->second->drop_at = drop_at;
}

std::vector<prometheus::MetricFamily> Metrics::Collect() const {
  MetricFamilies<DaemonNumbers> of_daemon(daemon_metrics());
  std::vector<std::shared_ptr<Run>> runs;
  {
    const std::lock_guard lock(mutex_);
    of_daemon.add({}, daemon_);
    for (const auto& [number, run] : runs_) runs.push_back(run);
  }
  MetricFamilies<RunNumbers> of_runs(run_metrics(), runs.size());
  for (const std::shared_ptr<Run>& run : runs) {
    const std::lock_guard lock(run->mutex);
    of_runs.add({{"run", run->label}}, run->numbers);
  }
  std::vector<prometheus::MetricFamily> families = of_daemon.collect();
  for (prometheus::MetricFamily& family : of_runs.collect()) families.push_back(std::move(family));
  return families;
}

std::string Metrics::serialize(double now) {
  if (on_scrape_) on_scrape_();
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(runs_, [&](const auto& entry) {
      return entry.second->drop_at && *entry.second->drop_at <= now;
    });
  }
  return text_format(Collect());
}

}  // namespace gnomon

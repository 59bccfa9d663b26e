#include "controller/metrics/metrics.h"

#include <fmt/format.h>

#include <array>

#include "base/version.h"
#include "controller/metrics/text_format.h"

namespace gnomon {
namespace {

const prometheus::Histogram::BucketBoundaries kLatencyBuckets = {
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5};

std::string status_class(int status) {
  return std::string(1, static_cast<char>('0' + status / 100)) + "xx";
}

}  // namespace

struct Metrics::Daemon {
  explicit Daemon(prometheus::Registry& registry)
      : replays_queued(prometheus::BuildGauge()
                           .Name("gnomon_replays_queued")
                           .Help("replays waiting for a verifier")
                           .Register(registry)
                           .Add({})),
        unserved(prometheus::BuildGauge()
                     .Name("gnomon_replays_unserved")
                     .Help("replays waiting that no verifier that speaks could do")
                     .Register(registry)),
        unserved_no_verifier(unserved.Add({{"reason", "no_verifier"}})),
        unserved_labels(unserved.Add({{"reason", "labels"}})),
        unserved_quarantine(unserved.Add({{"reason", "quarantine"}})),
        runs_set_aside(prometheus::BuildGauge()
                           .Name("gnomon_runs_set_aside")
                           .Help("runs that are not served: their decision state cannot be had")
                           .Register(registry)
                           .Add({})),
        leases_active(prometheus::BuildGauge()
                          .Name("gnomon_leases_active")
                          .Help("leases held now")
                          .Register(registry)
                          .Add({})),
        leases(prometheus::BuildCounter()
                   .Name("gnomon_leases_total")
                   .Help("leases ended")
                   .Register(registry)),
        requests(prometheus::BuildCounter()
                     .Name("gnomon_http_requests_total")
                     .Help("requests answered")
                     .Register(registry)),
        request_duration(prometheus::BuildHistogram()
                             .Name("gnomon_http_request_duration_seconds")
                             .Help("time to answer, long polls excepted")
                             .Register(registry)),
        commits(prometheus::BuildCounter()
                    .Name("gnomon_ledger_commits_total")
                    .Help("transactions committed")
                    .Register(registry)
                    .Add({})),
        commit_duration(prometheus::BuildHistogram()
                            .Name("gnomon_ledger_commit_duration_seconds")
                            .Help("time of a commit")
                            .Register(registry)
                            .Add({}, kLatencyBuckets)),
        queue_length(prometheus::BuildGauge()
                         .Name("gnomon_ledger_queue_length")
                         .Help("writes waiting for the writer")
                         .Register(registry)
                         .Add({})),
        config_successful(prometheus::BuildGauge()
                              .Name("gnomon_config_last_reload_successful")
                              .Help("1 while the configuration in force is the file's")
                              .Register(registry)
                              .Add({})),
        config_success_time(prometheus::BuildGauge()
                                .Name("gnomon_config_last_reload_success_timestamp_seconds")
                                .Help("when a configuration was last taken")
                                .Register(registry)
                                .Add({})),
        tokens_current(prometheus::BuildGauge()
                           .Name("gnomon_auth_last_reload_successful")
                           .Help("0 while the file of tokens cannot be read, so that older ones "
                                 "are in force")
                           .Register(registry)
                           .Add({})) {
    tokens_current.Set(1);
    prometheus::BuildGauge()
        .Name("gnomon_build_info")
        .Help("always 1")
        .Register(registry)
        .Add({{"version", kVersion}, {"revision", kRevision}})
        .Set(1);
    for (const char* outcome : {"completed", "failed", "expired"}) {
      leases.Add({{"outcome", outcome}});
    }
  }

  // Routes are a fixed, small set, so these maps are bounded.
  prometheus::Counter& request_counter(const std::string& route, const std::string& code) {
    prometheus::Counter*& found = request_counters[{route, code}];
    if (!found) {
      found = &requests.Add({{"route", route}, {"code", code}});
    }
    return *found;
  }

  prometheus::Histogram& request_histogram(const std::string& route) {
    prometheus::Histogram*& found = request_histograms[route];
    if (!found) {
      found = &request_duration.Add({{"route", route}}, kLatencyBuckets);
    }
    return *found;
  }

  prometheus::Gauge& replays_queued;
  prometheus::Family<prometheus::Gauge>& unserved;
  prometheus::Gauge& unserved_no_verifier;
  prometheus::Gauge& unserved_labels;
  prometheus::Gauge& unserved_quarantine;
  prometheus::Gauge& runs_set_aside;
  prometheus::Gauge& leases_active;
  prometheus::Family<prometheus::Counter>& leases;
  prometheus::Family<prometheus::Counter>& requests;
  prometheus::Family<prometheus::Histogram>& request_duration;
  prometheus::Counter& commits;
  prometheus::Histogram& commit_duration;
  prometheus::Gauge& queue_length;
  prometheus::Gauge& config_successful;
  prometheus::Gauge& config_success_time;
  prometheus::Gauge& tokens_current;
  std::map<std::pair<std::string, std::string>, prometheus::Counter*> request_counters;
  std::map<std::string, prometheus::Histogram*> request_histograms;
};

Metrics::Metrics(std::function<size_t()> ledger_queue_length)
    : ledger_queue_length_(std::move(ledger_queue_length)),
      registry_(std::make_unique<prometheus::Registry>()),
      daemon_(std::make_unique<Daemon>(*registry_)),
      connections_(std::make_unique<ConnectionSeries>(*registry_)),
      ledger_(std::make_unique<LedgerSeries>(*registry_)),
      notifications_(std::make_unique<NotificationSeries>(*registry_)),
      families_(std::make_unique<RunFamilies>(run_series_)) {}

Metrics::~Metrics() = default;

void Metrics::request(const std::string& route, int status, double seconds, bool timed) {
  std::lock_guard lock(mutex_);
  daemon_->request_counter(route, status_class(status)).Increment();
  if (timed) {
    daemon_->request_histogram(route).Observe(seconds);
  }
}

void Metrics::commit(double seconds) {
  daemon_->commits.Increment();
  daemon_->commit_duration.Observe(seconds);
}

void Metrics::config_loaded(bool successful, double at) {
  daemon_->config_successful.Set(successful ? 1 : 0);
  if (successful) {
    daemon_->config_success_time.Set(at);
  }
}

void Metrics::tokens_current(bool current) { daemon_->tokens_current.Set(current ? 1 : 0); }

void Metrics::set_replays_queued(int64_t count) {
  daemon_->replays_queued.Set(static_cast<double>(count));
}

void Metrics::set_replays_unserved(const UnservedCounts& counts) {
  daemon_->unserved_no_verifier.Set(static_cast<double>(counts.no_verifier));
  daemon_->unserved_labels.Set(static_cast<double>(counts.labels));
  daemon_->unserved_quarantine.Set(static_cast<double>(counts.quarantine));
}

void Metrics::set_runs_set_aside(int64_t count) {
  daemon_->runs_set_aside.Set(static_cast<double>(count));
}

void Metrics::set_leases_active(int64_t count) {
  daemon_->leases_active.Set(static_cast<double>(count));
}

void Metrics::lease_ended(const std::string& outcome, int64_t count) {
  daemon_->leases.Add({{"outcome", outcome}}).Increment(static_cast<double>(count));
}

void Metrics::start_run(int64_t run, const std::string& label, const RunTotals& totals) {
  std::lock_guard lock(mutex_);
  // Before the new series, which would share those of the same label: the run's own, or those of
  // one that has ended and waits to be dropped. Beside one that lives it has another label.
  std::string own_label = label;
  std::erase_if(runs_, [&](const auto& entry) {
    const bool same = entry.second->label() == label;
    const bool goes = entry.first == run || (same && drop_at_.contains(entry.first));
    if (same && !goes) own_label = fmt::format("{} (run-{})", label, run);
    if (goes) drop_at_.erase(entry.first);
    return goes;
  });
  runs_[run] = std::make_unique<RunSeries>(*families_, own_label, totals);
}

void Metrics::update_run(int64_t run, const std::function<void(RunSeries&)>& update) {
  std::lock_guard lock(mutex_);
  auto found = runs_.find(run);
  if (found != runs_.end()) {
    update(*found->second);
  }
}

void Metrics::drop_run_at(int64_t run, double drop_at) {
  std::lock_guard lock(mutex_);
  if (drop_at < 0) {
    drop_at_.erase(run);
  } else {
    drop_at_[run] = drop_at;
  }
}

std::string Metrics::serialize(double now) {
  if (on_scrape_) on_scrape_();
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(drop_at_, [&](const auto& entry) {
      const bool due = entry.second <= now;
      if (due) runs_.erase(entry.first);
      return due;
    });
  }
  daemon_->queue_length.Set(static_cast<double>(ledger_queue_length_()));
  // Without our lock, on which commits wait: the library has its own, family by family.
  std::vector<prometheus::MetricFamily> families = registry_->Collect();
  for (prometheus::MetricFamily& family : run_series_.Collect()) {
    families.push_back(std::move(family));
  }
  return text_format(families);
}

}  // namespace gnomon

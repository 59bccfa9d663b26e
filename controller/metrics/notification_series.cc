#include "controller/metrics/notification_series.h"

#include <algorithm>

namespace gnomon {

NotificationSeries::NotificationSeries(prometheus::Registry& registry)
    : notifications_(prometheus::BuildCounter()
                         .Name("gnomon_notifications_total")
                         .Help("messages that a receiver has, tries that failed, messages dropped")
                         .Register(registry)),
      waiting_(prometheus::BuildGauge()
                   .Name("gnomon_notifications_waiting")
                   .Help("messages that wait for their receiver")
                   .Register(registry)),
      waiting_since_(prometheus::BuildGauge()
                         .Name("gnomon_notifications_oldest_waiting_timestamp_seconds")
                         .Help("since when the oldest of them waits")
                         .Register(registry)) {}

void NotificationSeries::set_receivers(const std::vector<std::string>& names) {
  const std::lock_guard lock(mutex_);
  std::erase_if(series_, [&](const auto& entry) {
    if (std::ranges::find(names, entry.first) != names.end()) return false;
    const Series& gone = entry.second;
    for (prometheus::Counter* counter : {gone.delivered, gone.failed, gone.dropped}) {
      notifications_.Remove(counter);
    }
    waiting_.Remove(gone.waiting);
    waiting_since_.Remove(gone.waiting_since);
    return true;
  });
  for (const std::string& name : names) {
    if (series_.contains(name)) continue;
    const auto counter = [&](const char* outcome) {
      return &notifications_.Add({{"receiver", name}, {"outcome", outcome}});
    };
    series_[name] = {counter("delivered"), counter("failed"), counter("dropped"),
                     &waiting_.Add({{"receiver", name}}),
                     &waiting_since_.Add({{"receiver", name}})};
  }
}

void NotificationSeries::count(const std::string& receiver, prometheus::Counter* Series::*counter,
                               double by) {
  const std::lock_guard lock(mutex_);
  if (const auto found = series_.find(receiver); found != series_.end()) {
    (found->second.*counter)->Increment(by);
  }
}

void NotificationSeries::delivered(const std::string& receiver) {
  count(receiver, &Series::delivered, 1);
}

void NotificationSeries::failed(const std::string& receiver) {
  count(receiver, &Series::failed, 1);
}

void NotificationSeries::dropped(const std::string& receiver, int64_t by) {
  count(receiver, &Series::dropped, static_cast<double>(by));
}

void NotificationSeries::set_waiting(const std::string& receiver, int64_t messages, double since) {
  const std::lock_guard lock(mutex_);
  const auto found = series_.find(receiver);
  if (found == series_.end()) return;
  found->second.waiting->Set(static_cast<double>(messages));
  found->second.waiting_since->Set(since);
}

}  // namespace gnomon

// Metrics of notifications: what became of messages, and what waits, by receiver. Thread-safe.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace gnomon {

class NotificationSeries {
 public:
  explicit NotificationSeries(prometheus::Registry& registry);

  // The series of others go.
  void set_receivers(const std::vector<std::string>& names);
  // These do nothing for a receiver that is not there.
  void delivered(const std::string& receiver);
  void failed(const std::string& receiver);  // a try
  void dropped(const std::string& receiver, int64_t count);
  // `since` in seconds since the epoch, 0 = nothing waits.
  void set_waiting(const std::string& receiver, int64_t messages, double since);

 private:
  struct Series {
    prometheus::Counter* delivered;
    prometheus::Counter* failed;
    prometheus::Counter* dropped;
    prometheus::Gauge* waiting;
    prometheus::Gauge* waiting_since;
  };
  void count(const std::string& receiver, prometheus::Counter* Series::*counter, double by);

  prometheus::Family<prometheus::Counter>& notifications_;
  prometheus::Family<prometheus::Gauge>& waiting_;
  prometheus::Family<prometheus::Gauge>& waiting_since_;
  std::mutex mutex_;
  std::map<std::string, Series> series_;
};

}  // namespace gnomon

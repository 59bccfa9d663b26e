// Gauges of the GPU that a run's rank 0 trains on, as its newest report says.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "controller/metrics/series_family.h"
#include "protocol/records.h"

namespace gnomon {

// Made once.
struct DeviceFamilies {
  explicit DeviceFamilies(SeriesRegistry& registry);
  GaugeFamily &up, &last_sample, &sm_clock, &memory_clock, &power, &power_limit, &temperature,
      &memory_used, &memory_size, &utilization, &throttled, &remapped_rows;
  CounterFamily& ecc_errors;
};

class DeviceSeries {
 public:
  // `families` must outlive this object.
  DeviceSeries(DeviceFamilies& families, std::string run)
      : families_(families), run_(std::move(run)) {}
  ~DeviceSeries() { clear(); }
  DeviceSeries(const DeviceSeries&) = delete;
  DeviceSeries& operator=(const DeviceSeries&) = delete;

  // What the device does not say has no series, and one that does not answer has but `up` and when
  // it was asked, besides its counters. Another host or device takes the place of the one before.
  void take(const std::string& host, const DeviceHealth& health);

 private:
  using Labels = std::map<std::string, std::string>;
  // A counter that follows the device's own, which begins at 0 again with its driver.
  struct Errors {
    prometheus::Counter* counter = nullptr;
    int64_t count = 0;
  };

  void show(GaugeFamily& family, const std::optional<double>& value, const Labels& more = {});
  void show_errors(const char* kind, const std::optional<int64_t>& count);
  Labels labels(const Labels& more) const;
  void clear_gauges();
  void clear();

  DeviceFamilies& families_;
  std::string run_;
  std::string host_;
  std::string device_;
  std::vector<std::pair<GaugeFamily*, prometheus::Gauge*>> gauges_;
  std::map<std::string, Errors> errors_;  // by kind
};

}  // namespace gnomon

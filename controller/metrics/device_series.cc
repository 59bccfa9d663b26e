#include "controller/metrics/device_series.h"

#include <algorithm>

namespace gnomon {
namespace {

constexpr double kHertzPerMegahertz = 1e6;
constexpr double kPercent = 100;

std::optional<double> times(const std::optional<double>& value, double factor) {
  return value ? std::optional(*value * factor) : std::nullopt;
}

template <typename Number>
std::optional<double> real(const std::optional<Number>& value) {
  return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
}

}  // namespace

DeviceFamilies::DeviceFamilies(SeriesRegistry& r)
    : up(r.gauge("gnomon_device_up", "1 if the GPU answered when it was asked last")),
      last_sample(r.gauge("gnomon_device_last_sample_timestamp_seconds", "when that was")),
      sm_clock(r.gauge("gnomon_device_sm_clock_hertz", "clock of the multiprocessors")),
      memory_clock(r.gauge("gnomon_device_memory_clock_hertz", "clock of the memory")),
      power(r.gauge("gnomon_device_power_watts", "power drawn")),
      power_limit(r.gauge("gnomon_device_power_limit_watts", "power that it may draw")),
      temperature(r.gauge("gnomon_device_temperature_celsius", "temperature of the chip")),
      memory_used(r.gauge("gnomon_device_memory_used_bytes", "memory in use")),
      memory_size(r.gauge("gnomon_device_memory_size_bytes", "memory there is")),
      utilization(r.gauge("gnomon_device_utilization_ratio", "share of time with a kernel")),
      throttled(r.gauge("gnomon_device_throttled", "1 while the clock is held back for a reason")),
      remapped_rows(r.gauge("gnomon_device_remapped_rows",
                            "1 if memory rows wait to be replaced, or could not be")),
      ecc_errors(r.counter("gnomon_device_ecc_errors_total",
                           "memory errors since the driver was loaded")) {}

DeviceSeries::Labels DeviceSeries::labels(const Labels& more) const {
  Labels all = more;
  all.insert({{"run", run_}, {"host", host_}, {"device", device_}});
  return all;
}

void DeviceSeries::clear_gauges() {
  for (auto& [family, metric] : gauges_) family->remove(metric);
  gauges_.clear();
}

void DeviceSeries::clear() {
  clear_gauges();
  for (auto& [kind, errors] : errors_) families_.ecc_errors.remove(errors.counter);
  errors_.clear();
}

void DeviceSeries::show(GaugeFamily& family, const std::optional<double>& value,
                        const Labels& more) {
  if (!value) return;
  prometheus::Gauge& metric = family.add(labels(more));
  metric.Set(*value);
  gauges_.emplace_back(&family, &metric);
}

void DeviceSeries::show_errors(const char* kind, const std::optional<int64_t>& count) {
  if (!count) return;
  Errors& errors = errors_[kind];
  if (errors.counter != nullptr && *count < errors.count) {
    families_.ecc_errors.remove(errors.counter);
    errors = {};
  }
  if (errors.counter == nullptr) {
    errors.counter = &families_.ecc_errors.add(labels({{"kind", kind}}));
  }
  errors.counter->Increment(static_cast<double>(*count - errors.count));
  errors.count = *count;
}

void DeviceSeries::take(const std::string& host, const DeviceHealth& health) {
  if (host != host_ || health.device != device_) clear();
  clear_gauges();
  host_ = host;
  device_ = health.device;
  show(families_.up, health.error.empty() ? 1 : 0);
  show(families_.last_sample, health.time);
  show(families_.sm_clock, times(health.sm_clock_mhz, kHertzPerMegahertz));
  show(families_.memory_clock, times(health.memory_clock_mhz, kHertzPerMegahertz));
  show(families_.power, health.power_watts);
  show(families_.power_limit, health.power_limit_watts);
  show(families_.temperature, health.temperature_celsius);
  show(families_.memory_used, real(health.memory_used_bytes));
  show(families_.memory_size, real(health.memory_total_bytes));
  show(families_.utilization, times(health.utilization_percent, 1 / kPercent));
  show_errors("corrected", health.ecc_corrected);
  show_errors("uncorrected", health.ecc_uncorrected);
  show(families_.remapped_rows, real(health.remapped_rows_pending), {{"state", "pending"}});
  show(families_.remapped_rows, real(health.remapped_rows_failure), {{"state", "failure"}});
  if (!health.throttle_reasons) return;
  const std::vector<std::string>& reasons = *health.throttle_reasons;
  for (const std::string_view reason : kThrottleReasons) {
    const bool now = std::ranges::find(reasons, reason) != reasons.end();
    show(families_.throttled, now ? 1 : 0, {{"reason", std::string(reason)}});
  }
}

}  // namespace gnomon

#include "controller/metrics/metric_table.h"

#include <limits>
#include <numeric>

namespace gnomon {

double Histogram::count() const { return std::accumulate(counts.begin(), counts.end(), 0.0); }

prometheus::ClientMetric& SampleWriter::add_metric(std::initializer_list<std::string_view> values) {
  prometheus::ClientMetric& metric = family_.metric.emplace_back();
  metric.label.reserve(common_.size() + own_.size());
  auto next = common_.begin();
  for (size_t i = 0; i < own_.size(); ++i) {
    while (next != common_.end() && next->name < own_[i]) metric.label.push_back(*next++);
    const std::string_view value =
        i < first_.size() ? first_[i] : values.begin()[i - first_.size()];
    metric.label.push_back({own_[i], std::string(value)});
  }
  metric.label.insert(metric.label.end(), next, common_.end());
  return metric;
}

void SampleWriter::add(std::initializer_list<std::string_view> values, double value) {
  prometheus::ClientMetric& metric = add_metric(values);
  if (family_.type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
}

void SampleWriter::add(std::initializer_list<std::string_view> values, const Histogram& histogram) {
  prometheus::ClientMetric::Histogram& written = add_metric(values).histogram;
  written.bucket.reserve(histogram.counts.size());
  double below = 0;
  for (size_t i = 0; i < histogram.counts.size(); ++i) {
    below += histogram.counts[i];
    written.bucket.push_back(
        {static_cast<uint64_t>(below), i < histogram.bounds.size()
                                           ? histogram.bounds[i]
                                           : std::numeric_limits<double>::infinity()});
  }
  written.sample_count = static_cast<uint64_t>(below);
  written.sample_sum = histogram.sum;
}

}  // namespace gnomon

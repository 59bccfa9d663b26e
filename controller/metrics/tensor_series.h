// Gauges of the worst tensors of a run: a bounded number of them, chosen anew with every report.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "controller/metrics/series_family.h"
#include "protocol/records.h"

namespace gnomon {

// Made once.
struct TensorFamilies {
  explicit TensorFamilies(SeriesRegistry& registry);
  GaugeFamily &underflow, &saturation, &sqnr, &kurtosis, &step;
};

class TensorSeries {
 public:
  // Of each family at most this many series a run.
  static constexpr size_t kWorstMax = 16;

  // `families` must outlive this object.
  TensorSeries(TensorFamilies& families, std::string label)
      : families_(families), label_(std::move(label)) {}
  ~TensorSeries();
  TensorSeries(const TensorSeries&) = delete;
  TensorSeries& operator=(const TensorSeries&) = delete;

  // Of the newest step, all parts reported so far: roundings in use with the largest underflow, the
  // largest saturation and the smallest SQNR, and tensors with the largest kurtosis. Parts of older
  // steps change nothing.
  void take(const StatisticsReport& report);

 private:
  using Labels = std::map<std::string, std::string>;
  struct Known {
    Labels labels;
    std::vector<std::optional<double>> numbers;  // by family
  };
  void show(GaugeFamily& family, const std::vector<Known>& known, size_t number, bool largest);
  void clear();

  TensorFamilies& families_;
  std::string label_;
  std::pair<int64_t, int64_t> newest_{0, 0};  // attempt, step
  std::vector<Known> roundings_;              // in use
  std::vector<Known> tensors_;
  std::vector<std::pair<GaugeFamily*, prometheus::Gauge*>> shown_;
};

}  // namespace gnomon

// A family of metrics whose members come and go with runs. The library's own family looks through
// all of its metrics to find the one to remove, so that the end of a thousand runs takes the square
// of that; here each is found by its address.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gnomon {

// Thread-safe. Members are collected in the order in which they were added.
template <typename Metric>
class SeriesFamily final : public prometheus::Collectable {
 public:
  using Labels = std::map<std::string, std::string>;

  SeriesFamily(std::string name, std::string help)
      : name_(std::move(name)), help_(std::move(help)) {}

  const std::string& name() const { return name_; }

  // The labels must differ from those of every other member. The reference lasts until remove().
  template <typename... Arguments>
  Metric& add(const Labels& labels, Arguments&&... arguments) {
    auto metric = std::make_unique<Metric>(std::forward<Arguments>(arguments)...);
    Metric* const added = metric.get();
    const std::lock_guard lock(mutex_);
    members_.push_back({client_labels(labels), std::move(metric)});
    places_[added] = std::prev(members_.end());
    return *added;
  }

  void remove(const Metric* metric) {
    const std::lock_guard lock(mutex_);
    const auto place = places_.find(metric);
    if (place == places_.end()) return;
    members_.erase(place->second);
    places_.erase(place);
  }

  std::vector<prometheus::MetricFamily> Collect() const override {
    const std::lock_guard lock(mutex_);
    if (members_.empty()) return {};
    prometheus::MetricFamily family{name_, help_, Metric::metric_type, {}};
    family.metric.reserve(members_.size());
    for (const Member& member : members_) {
      family.metric.push_back(member.metric->Collect());
      family.metric.back().label = member.labels;
    }
    return {std::move(family)};
  }

 private:
  using ClientLabels = std::vector<prometheus::ClientMetric::Label>;
  struct Member {
    ClientLabels labels;
    std::unique_ptr<Metric> metric;
  };

  static ClientLabels client_labels(const Labels& labels) {
    ClientLabels made;
    for (const auto& [label, value] : labels) made.push_back({label, value});
    return made;
  }

  const std::string name_;
  const std::string help_;
  mutable std::mutex mutex_;
  std::list<Member> members_;
  std::unordered_map<const Metric*, typename std::list<Member>::iterator> places_;
};

using GaugeFamily = SeriesFamily<prometheus::Gauge>;
using CounterFamily = SeriesFamily<prometheus::Counter>;
using HistogramFamily = SeriesFamily<prometheus::Histogram>;

// Every family of this kind, collected one after another.
class SeriesRegistry final : public prometheus::Collectable {
 public:
  GaugeFamily& gauge(std::string name, std::string help) {
    return make<GaugeFamily>(std::move(name), std::move(help));
  }
  CounterFamily& counter(std::string name, std::string help) {
    return make<CounterFamily>(std::move(name), std::move(help));
  }
  HistogramFamily& histogram(std::string name, std::string help) {
    return make<HistogramFamily>(std::move(name), std::move(help));
  }

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> all;
    for (const auto& family : families_) {
      for (prometheus::MetricFamily& each : family->Collect()) all.push_back(std::move(each));
    }
    return all;
  }

 private:
  template <typename Family>
  Family& make(std::string name, std::string help) {
    auto family = std::make_unique<Family>(std::move(name), std::move(help));
    Family& made = *family;
    families_.push_back(std::move(family));
    return made;
  }

  std::vector<std::unique_ptr<prometheus::Collectable>> families_;
};

}  // namespace gnomon

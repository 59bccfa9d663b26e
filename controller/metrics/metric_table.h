// A metric is one row of a table: its name, what it says, its type, how its value is read from a
// struct of numbers, and its labels. prometheus-cpp's families are made of a table and the structs
// at each scrape, so a metric is written down once and its series come and go with the numbers.
#pragma once

#include <prometheus/metric_family.h>

#include <algorithm>
#include <concepts>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace gnomon {

// One series for each word, such as an outcome or a kind.
using Counts = std::map<std::string, double>;
using WordValues = std::vector<std::pair<std::string_view, double>>;

// 1 for `word`, 0 for the other words.
template <class Words, class Word>
WordValues one_of(const Words& words, const Word& word) {
  WordValues values;
  for (const auto& each : words) values.emplace_back(each, each == word ? 1 : 0);
  return values;
}

// Zeros for all words, so that their series exist before the first event.
template <class... Words>
Counts zeros(const Words&... lists) {
  Counts counts;
  const auto add = [&](const auto& words) {
    for (const auto& word : words) counts[std::string(word)] = 0;
  };
  (add(lists), ...);
  return counts;
}

// The first bucket whose upper bound is not below `value`; behind the last one for none.
inline size_t bucket_of(std::span<const double> bounds, double value) {
  return static_cast<size_t>(std::ranges::lower_bound(bounds, value) - bounds.begin());
}

// Observations by upper bound, with one bucket beyond the last. The bounds must outlive it.
struct Histogram {
  explicit Histogram(std::span<const double> upper_bounds)
      : bounds(upper_bounds), counts(upper_bounds.size() + 1) {}

  void observe(double value) {
    counts[bucket_of(bounds, value)] += 1;
    sum += value;
  }
  double count() const;

  std::span<const double> bounds;
  std::vector<double> counts;
  double sum = 0;
};

using MetricLabels = std::vector<prometheus::ClientMetric::Label>;

// Adds samples to one family. All have the labels `common`; a row's own labels get their values
// from add(). Both lists of names are in alphabetical order.
class SampleWriter {
 public:
  SampleWriter(prometheus::MetricFamily& family, const MetricLabels& common,
               const std::vector<std::string>& own)
      : family_(family), common_(common), own_(own) {}

  // The same with the values of the first own labels given.
  SampleWriter within(std::vector<std::string_view> first) const {
    SampleWriter writer = *this;
    writer.first_ = std::move(first);
    return writer;
  }

  void add(std::initializer_list<std::string_view> values, double value);
  void add(std::initializer_list<std::string_view> values, const Histogram& histogram);

  // A number, one that may be absent, one for each word, or a histogram.
  template <class Value>
  void add(const Value& value) {
    if constexpr (std::is_arithmetic_v<Value>) {
      add({}, static_cast<double>(value));
    } else if constexpr (std::same_as<Value, Histogram>) {
      add({}, value);
    } else if constexpr (requires { value.has_value(); }) {
      if (value) add(*value);
    } else {
      for (const auto& [word, number] : value) add({word}, number);
    }
  }

 private:
  prometheus::ClientMetric& add_metric(std::initializer_list<std::string_view> values);

  prometheus::MetricFamily& family_;
  const MetricLabels& common_;
  const std::vector<std::string>& own_;
  std::vector<std::string_view> first_;
};

// A row of a table over Numbers. `read` is a member of Numbers, a function of Numbers that returns
// what SampleWriter::add() takes, or a function of Numbers and a SampleWriter.
template <class Numbers>
struct MetricRow {
  using Labels = std::vector<std::string>;
  using Type = prometheus::MetricType;

  std::string name;
  std::string help;
  Type type;
  std::function<void(const Numbers&, SampleWriter&)> write;
  Labels labels;  // its own, in alphabetical order

  template <class Read>
  static MetricRow gauge(const char* name, const char* help, Read read, Labels labels = {}) {
    return make(name, help, Type::Gauge, read, std::move(labels));
  }
  template <class Read>
  static MetricRow counter(const char* name, const char* help, Read read, Labels labels = {}) {
    return make(name, help, Type::Counter, read, std::move(labels));
  }
  template <class Read>
  static MetricRow histogram(const char* name, const char* help, Read read, Labels labels = {}) {
    return make(name, help, Type::Histogram, read, std::move(labels));
  }

 private:
  template <class Read>
  static MetricRow make(const char* name, const char* help, Type type, Read read, Labels labels) {
    const auto write = [read](const Numbers& numbers, SampleWriter& out) {
      if constexpr (std::invocable<Read, const Numbers&, SampleWriter&>) {
        std::invoke(read, numbers, out);
      } else {
        out.add(std::invoke(read, numbers));
      }
    };
    return {name, help, type, write, std::move(labels)};
  }
};

template <class Numbers>
std::vector<MetricRow<Numbers>> joined(
    std::initializer_list<std::vector<MetricRow<Numbers>>> parts) {
  std::vector<MetricRow<Numbers>> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// The families of a table, in its order.
template <class Numbers>
class MetricFamilies {
 public:
  using Rows = std::vector<MetricRow<Numbers>>;

  // `structs` is about how many will be added.
  explicit MetricFamilies(const Rows& rows, size_t structs = 1) : rows_(rows) {
    for (const MetricRow<Numbers>& row : rows) {
      families_.push_back({row.name, row.help, row.type, {}});
      families_.back().metric.reserve(structs);
    }
  }

  void add(const MetricLabels& common, const Numbers& numbers) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      SampleWriter writer(families_[i], common, rows_[i].labels);
      rows_[i].write(numbers, writer);
    }
  }

  // Those with samples.
  std::vector<prometheus::MetricFamily> collect() {
    std::erase_if(families_, [](const auto& family) { return family.metric.empty(); });
    return std::move(families_);
  }

 private:
  const Rows& rows_;
  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace gnomon

#include "controller/metrics/text_format.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <string_view>

namespace gnomon {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

const char* type_name(MetricType type) {
  if (type == MetricType::Histogram) return "histogram";
  return type == MetricType::Counter ? "counter" : "gauge";
}

void add_number(double value, std::string& out) {
  if (std::isnan(value)) {
    out += "NaN";
  } else if (std::isinf(value)) {
    out += value > 0 ? "+Inf" : "-Inf";
  } else {
    fmt::format_to(std::back_inserter(out), "{}", value);
  }
}

// A quotation mark is escaped in values of labels alone.
void add_escaped(std::string_view text, bool in_label, std::string& out) {
  if (text.find_first_of("\\\n\"") == std::string_view::npos) {
    out += text;
    return;
  }
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || (c == '"' && in_label)) out += '\\';
    out += c;
  }
}

// "name_bucket{run="a",le="0.5"} ", without braces where there is no label.
void add_head(const MetricFamily& family, std::string_view suffix, const ClientMetric& metric,
              const double* bound, std::string& out) {
  out += family.name;
  out += suffix;
  char before = '{';
  const auto add_label = [&](std::string_view name) {
    out += before;
    before = ',';
    out += name;
    out += "=\"";
  };
  for (const ClientMetric::Label& label : metric.label) {
    add_label(label.name);
    add_escaped(label.value, true, out);
    out += '"';
  }
  if (bound != nullptr) {
    add_label("le");
    add_number(*bound, out);
    out += '"';
  }
  out += before == ',' ? "} " : " ";
}

void add_sample(const MetricFamily& family, const ClientMetric& metric, std::string_view suffix,
                double value, std::string& out, const double* bound = nullptr) {
  add_head(family, suffix, metric, bound, out);
  add_number(value, out);
  out += '\n';
}

void add_histogram(const MetricFamily& family, const ClientMetric& metric, std::string& out) {
  const ClientMetric::Histogram& histogram = metric.histogram;
  add_sample(family, metric, "_count", static_cast<double>(histogram.sample_count), out);
  add_sample(family, metric, "_sum", histogram.sample_sum, out);
  for (const ClientMetric::Bucket& bucket : histogram.bucket) {
    add_sample(family, metric, "_bucket", static_cast<double>(bucket.cumulative_count), out,
               &bucket.upper_bound);
  }
}

void add_metric(const MetricFamily& family, const ClientMetric& metric, std::string& out) {
  if (family.type == MetricType::Histogram) return add_histogram(family, metric, out);
  const bool counter = family.type == MetricType::Counter;
  add_sample(family, metric, "", counter ? metric.counter.value : metric.gauge.value, out);
}

}  // namespace

std::string text_format(const std::vector<MetricFamily>& families) {
  std::string out;
  for (const MetricFamily& family : families) {
    if (family.metric.empty()) continue;
    out += fmt::format("# HELP {} ", family.name);
    add_escaped(family.help, false, out);
    out += fmt::format("\n# TYPE {} {}\n", family.name, type_name(family.type));
    for (const ClientMetric& metric : family.metric) add_metric(family, metric, out);
  }
  return out;
}

}  // namespace gnomon

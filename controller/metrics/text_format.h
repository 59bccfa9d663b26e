// Prometheus' text exposition format 0.0.4 of gauges, counters and histograms. The library's own
// serializer takes three to four times as long, which is most of a scrape of a thousand runs, and
// writes 16 digits, so that not every number is read back as it was.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

namespace gnomon {

// Numbers are the shortest that are read back as the same.
std::string text_format(const std::vector<prometheus::MetricFamily>& families);

}  // namespace gnomon

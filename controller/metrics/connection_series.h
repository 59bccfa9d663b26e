// Metrics of the server's connections. Thread-safe.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <cstddef>

namespace gnomon {

class ConnectionSeries {
 public:
  explicit ConnectionSeries(prometheus::Registry& registry);

  void set_open(size_t known, size_t strangers);
  void refused() { full_.Increment(); }               // all places were taken
  void refused_to_token() { of_token_.Increment(); }  // the token has as many as it may
  void set_bytes_held(size_t bytes) { bytes_held_.Set(static_cast<double>(bytes)); }
  void refused_bytes() { of_bytes_.Increment(); }  // too many bytes are on their way
  void evicted() { evicted_.Increment(); }         // a stranger's, for a newcomer

 private:
  prometheus::Family<prometheus::Gauge>& open_;
  prometheus::Gauge& known_;
  prometheus::Gauge& strangers_;
  prometheus::Family<prometheus::Counter>& refusals_;
  prometheus::Counter& full_;
  prometheus::Counter& of_token_;
  prometheus::Counter& evicted_;
  prometheus::Gauge& bytes_held_;
  prometheus::Counter& of_bytes_;
};

}  // namespace gnomon

// HTTP load from one thread: each connection has one request in flight and sends the next one when
// it was answered, or at its next time. It speaks no more of HTTP/1.1 than it must, since it shares
// the machine's cores with what it measures.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/tls_context.h"

namespace gnomon::bench {

// Times in seconds, in the order in which they came; percentiles by sorting.
class Latencies {
 public:
  void add(double seconds) { seconds_.push_back(seconds); }
  void add(const Latencies& other);
  void clear() { seconds_.clear(); }
  size_t count() const { return seconds_.size(); }
  // `share` from 0 to 1; 0 when there are none.
  double quantile(double share) const;

 private:
  std::vector<double> seconds_;
};

struct Load {
  int port = 0;
  TlsContext tls = nullptr;  // null: plain
  int connections = 1;
  double warm_seconds = 1;  // not counted
  double seconds = 5;
  // Between two requests of a connection; 0: as soon as it was answered.
  double interval = 0;
  // A 503 is no answer: the same request is sent again a little later, as trainers and verifiers
  // do.
  bool patient = false;
  // Until this holds, instead of `seconds`.
  const std::atomic<bool>* stop = nullptr;
  // Puts the next request of a connection, with its head, into `request`, which is empty.
  std::function<void(int connection, std::string& request)> next = {};
  // Sees every answer, before the next request of its connection is asked for.
  std::function<void(int connection, int status, std::string_view body)> answered = {};
};

struct LoadResult {
  int64_t requests = 0;  // answered with 2xx in the counted time
  int64_t failures = 0;  // of all time
  int64_t put_off = 0;   // 503s after which the same request was sent again, of all time
  double seconds = 0;
  Latencies latencies;
  double per_second() const { return static_cast<double>(requests) / seconds; }
};

// Throws SystemError when a connection cannot be made or breaks.
LoadResult run_load(const Load& load);

// A request with a JSON body.
void append_post(std::string_view path, std::string_view body, std::string& request);

}  // namespace gnomon::bench

// Metrics of a daemon that speaks TLS; without TLS there are none. Thread-safe.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

namespace gnomon {

class TlsSeries {
 public:
  explicit TlsSeries(prometheus::Registry& registry);

  void handshake_failed() { handshake_failures_.Increment(); }
  // Of the certificate that new connections get, seconds since the epoch.
  void certificate_ends_at(double time) { certificate_expiry_.Set(time); }
  // Whether what the files say is in force.
  void reloaded(bool successful) { reload_successful_.Set(successful ? 1 : 0); }

 private:
  prometheus::Counter& handshake_failures_;
  prometheus::Gauge& certificate_expiry_;
  prometheus::Gauge& reload_successful_;
};

}  // namespace gnomon

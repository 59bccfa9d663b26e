// The certificate, key and clients' authorities that connections get: read at the start, at SIGHUP
// and when the files change. What cannot be used is logged, and the last good ones stay.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "controller/daemon/daemon_config.h"
#include "controller/metrics/metrics.h"

namespace gnomon {

class ServedCertificate {
 public:
  // `config` must have TLS. `metrics`, which shows TLS from now on, must outlive this. Throws
  // ConfigError.
  ServedCertificate(const DaemonConfig& config, Metrics& metrics);

  // For a connection that begins now. From any thread.
  TlsContext context() const;

  // Reads what `config` names; without TLS in it everything stays. One thread at a time, with
  // look().
  void configure(const DaemonConfig& config);
  // Reads the files again when they have changed since they were last read, or could not be used
  // then. `now` in seconds of a steady clock; does nothing before tls.look_seconds are over.
  void look(double now);

 private:
  // What is different once a file was written or its link led elsewhere.
  struct Stamp {
    long long inode = -1, bytes = 0, seconds = 0, nanoseconds = 0;
    bool operator==(const Stamp&) const = default;
  };
  std::vector<Stamp> stamps() const;
  void serve(ServerTls tls);
  void read_again(bool log_again);

  DaemonConfig config_;
  Metrics& metrics_;
  std::vector<Stamp> read_stamps_;
  std::string bad_;  // why the files could not be used, as it was logged; empty: they could
  double next_look_ = 0;
  mutable std::mutex mutex_;
  TlsContext context_;
};

}  // namespace gnomon

// The configuration in force. A reload that cannot be read changes nothing: the last good one
// stays, and the metrics say that it is not the file's.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "controller/daemon/daemon_config.h"
#include "controller/metrics/metrics.h"

namespace gnomon {

class LiveConfig {
 public:
  using Apply = std::function<void(const DaemonConfig&)>;

  // `read` reads and checks anew what the daemon was started with; throws ConfigError. `metrics`
  // must outlive this.
  LiveConfig(DaemonConfig config, std::function<DaemonConfig()> read, Metrics& metrics,
             std::function<double()> now);

  std::shared_ptr<const DaemonConfig> get() const;

  // Called by reload() with what is new, in the order of these calls. What may fail belongs in
  // `read`. Before the first reload.
  void on_reload(Apply apply);

  // Reads again. Logs what it could not take, and the keys that wait for a restart. Returns whether
  // the new configuration is in force.
  bool reload();

 private:
  void note_loaded();

  mutable std::mutex mutex_;
  const DaemonConfig started_;  // of the keys that are only read then
  std::shared_ptr<const DaemonConfig> config_;
  std::function<DaemonConfig()> read_;
  std::vector<Apply> applies_;
  Metrics& metrics_;
  std::function<double()> now_;
};

}  // namespace gnomon

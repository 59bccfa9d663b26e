#include "controller/daemon/live_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include "base/errors.h"

namespace gnomon {

LiveConfig::LiveConfig(DaemonConfig config, std::function<DaemonConfig()> read, Metrics& metrics,
                       std::function<double()> now)
    : started_(config),
      config_(std::make_shared<const DaemonConfig>(std::move(config))),
      read_(std::move(read)),
      metrics_(metrics),
      now_(std::move(now)) {
  note_loaded();
}

void LiveConfig::note_loaded() {
  metrics_.update([&](DaemonNumbers& n) {
    n.config_current = true;
    n.config_loaded_at = now_();
  });
}

std::shared_ptr<const DaemonConfig> LiveConfig::get() const {
  const std::lock_guard lock(mutex_);
  return config_;
}

void LiveConfig::on_reload(Apply apply) { applies_.push_back(std::move(apply)); }

bool LiveConfig::reload() {
  std::shared_ptr<const DaemonConfig> wanted;
  try {
    wanted = std::make_shared<const DaemonConfig>(read_());
  } catch (const std::exception& error) {  // the system's own too: a folder that is gone, memory
    spdlog::error("the configuration was not read again, the last good one stays: {}",
                  error.what());
    metrics_.update([](DaemonNumbers& n) { n.config_current = false; });
    return false;
  }
  const std::vector<std::string> later = keys_for_restart(started_, *wanted);
  for (const Apply& apply : applies_) apply(*wanted);
  {
    const std::lock_guard lock(mutex_);
    config_ = wanted;
  }
  note_loaded();
  if (later.empty()) {
    spdlog::info("the configuration was read again");
  } else {
    spdlog::warn("the configuration was read again; a restart is needed for {}",
                 fmt::join(later, ", "));
  }
  return true;
}

}  // namespace gnomon

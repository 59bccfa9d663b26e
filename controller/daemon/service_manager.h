// What a service manager (systemd, or whoever set NOTIFY_SOCKET) is told: sd_notify(3). Without one
// all of this does nothing.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace gnomon {

class ServiceManager {
 public:
  // Requests are answered from now on. `status` is a line for `systemctl status`.
  static void ready(const std::string& status);
  static void reloading();
  static void stopping();
  // The daemon is well; to be called more often than the watchdog's time.
  static void alive();
  // Half of WatchdogSec, where the unit has one.
  static std::optional<std::chrono::milliseconds> watchdog_interval();
};

}  // namespace gnomon

// Watches a GPU's health on a thread of its own: NVML takes milliseconds, longer where a driver is
// in trouble, and no step may wait for it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "base/shared_library.h"
#include "protocol/records.h"

namespace gnomon {

struct DeviceWatchOptions {
  std::string bus_id;                                            // of the GPU
  std::chrono::milliseconds interval = std::chrono::seconds(1);  // between two samples
  std::chrono::milliseconds patience_at_end = std::chrono::milliseconds(500);
  // Opens NVML, on the watch's thread; nvml::open_library() when empty.
  SharedLibrary (*open)() = nullptr;
};

class DeviceWatch {
 public:
  // Starts the thread. That there is no NVML, or no such GPU, is reported by poll().
  explicit DeviceWatch(DeviceWatchOptions options);
  // Ends the thread. One that the driver has kept inside a call for `patience_at_end` is left
  // behind: it touches nothing of this object.
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  struct News {
    std::optional<DeviceHealth> health;  // the newest sample, unless it was taken before
    std::string trouble;  // a sentence for the log when failing begins or ends; else empty
  };
  // Never waits.
  News poll();

 private:
  struct Shared;
  static void run(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;
};

}  // namespace gnomon

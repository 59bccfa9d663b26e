#include "trainer/device_watch.h"

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/cuda/nvml.h"
#include "trainer/device_health.h"

namespace gnomon {

// Owned by both sides, so that a thread that the driver does not give back harms nobody.
struct DeviceWatch::Shared {
  DeviceWatchOptions options;
  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;
  bool ended = false;
  News news;

  // Returns whether to stop.
  bool wait(std::chrono::milliseconds duration) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, duration, [this] { return stopping; });
  }
  void record_trouble(std::string trouble) {
    std::lock_guard lock(mutex);
    news.trouble = std::move(trouble);
  }
};

DeviceWatch::DeviceWatch(DeviceWatchOptions options) : shared_(std::make_shared<Shared>()) {
  shared_->options = std::move(options);
  std::thread([shared = shared_] {
    run(shared);
    std::lock_guard lock(shared->mutex);
    shared->ended = true;
    shared->changed.notify_all();
  }).detach();
}

DeviceWatch::~DeviceWatch() {
  std::unique_lock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, shared_->options.patience_at_end,
                            [this] { return shared_->ended; });
}

DeviceWatch::News DeviceWatch::poll() {
  std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->news, {});
}

void DeviceWatch::run(const std::shared_ptr<Shared>& shared) try {
  const DeviceWatchOptions& options = shared->options;
  const SharedLibrary library = options.open == nullptr ? nvml::open_library() : options.open();
  DeviceHealthReader reader(options.bus_id, library);
  std::string error;
  do {
    DeviceHealth health = reader.read();
    if (health.error != error) {
      error = health.error;
      shared->record_trouble(
          error.empty() ? fmt::format("the GPU at {} answers again", options.bus_id)
                        : fmt::format("no health of the GPU at {}: {}", options.bus_id, error));
    }
    std::lock_guard lock(shared->mutex);
    shared->news.health = std::move(health);
  } while (!shared->wait(options.interval));
} catch (const std::exception& failure) {
  shared->record_trouble(fmt::format("the health of the GPU at {} is not watched: {}",
                                     shared->options.bus_id, failure.what()));
}

}  // namespace gnomon

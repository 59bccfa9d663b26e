#include "trainer/lease_keeper.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "protocol/json.h"

namespace gnomon {

LeaseKeeper::LeaseKeeper(const ClientOptions& controller, const Lease& lease, spdlog::logger& log)
    : lease_(lease), log_(log), client_(controller), thread_([this] { run(); }) {}

LeaseKeeper::~LeaseKeeper() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  client_.cancel();
  thread_.join();
}

void LeaseKeeper::run() {
  constexpr double kShortest = 0.02;
  const auto interval = std::chrono::duration<double>(std::max(lease_.ttl_seconds / 3, kShortest));
  std::chrono::duration<double> pause = interval;
  std::unique_lock lock(mutex_);
  while (!lost_ && !changed_.wait_for(lock, pause, [this] { return stopping_; })) {
    lock.unlock();
    pause = std::max<std::chrono::duration<double>>(interval, beat());
    lock.lock();
  }
}

// Returns what the controller asks for before the next one.
std::chrono::seconds LeaseKeeper::beat() {
  const auto timeout =
      std::chrono::milliseconds(static_cast<int64_t>(std::max(lease_.ttl_seconds / 3, 1.0) * 1000));
  try {
    client_.checked("POST", fmt::format("/v1/leases/{}/heartbeat", lease_.lease),
                    to_json(LeaseHeartbeat{lease_.token, steps_done_}), timeout);
  } catch (const ApiError& error) {
    lost_ = error.status() == 409 || error.status() == 404;
    log_.warn("{} of lease {}: {}", lost_ ? "the end" : "heartbeat", lease_.lease, error.what());
    if (!lost_) return std::chrono::seconds(error.retry_after());
  } catch (const ConnectionError& error) {
    // The replay goes on: the lease may still be valid when the controller is back, and if not, it
    // will say so.
    log_.warn("heartbeat of lease {}: {}", lease_.lease, error.what());
  }
  return {};
}

}  // namespace gnomon

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
    const HttpResponse response =
        client_.request("POST", fmt::format("/v1/leases/{}/heartbeat", lease_.lease),
                        to_json(LeaseHeartbeat{lease_.token, steps_done_}), timeout);
    if (response.status == 409 || response.status == 404) {
      log_.warn("lease {} is lost ({}): another verifier has the replay now", lease_.lease,
                response.status);
      lost_ = true;
    } else if (response.status >= 400) {
      log_.warn("heartbeat of lease {}: status {}", lease_.lease, response.status);
      return std::chrono::seconds(response.retry_after);
    }
  } catch (const ConnectionError& error) {
    // The replay goes on: the lease may still be valid when the controller is back, and if not, it
    // will say so.
    log_.warn("heartbeat of lease {}: {}", lease_.lease, error.what());
  }
  return {};
}

}  // namespace gnomon

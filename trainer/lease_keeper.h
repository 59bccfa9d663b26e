// Keeps a lease alive while its replay runs: a heartbeat every third of its time to live, on a
// thread of its own and over a connection of its own.
#pragma once

#include <spdlog/logger.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "protocol/client.h"
#include "protocol/records.h"

namespace gnomon {

class LeaseKeeper {
 public:
  // Starts the thread. `log` must outlive the keeper.
  LeaseKeeper(const ClientOptions& controller, const Lease& lease, spdlog::logger& log);
  // Ends the heartbeats at once.
  ~LeaseKeeper();

  void set_steps_done(int64_t steps) { steps_done_ = steps; }
  // The controller gave the replay to somebody else (409) or forgot it (404): stop working on it.
  bool lost() const { return lost_; }

 private:
  void run();
  std::chrono::seconds beat();

  const Lease lease_;
  spdlog::logger& log_;
  HttpClient client_;
  std::atomic<int64_t> steps_done_{0};
  std::atomic<bool> lost_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace gnomon

// Leases of a trainer that replays its own run between two of its steps. A thread asks the
// controller for one at a time, keeps it alive until the loop is at a step boundary, and sends the
// answer: the loop never waits for the network.
#pragma once

#include <spdlog/logger.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "protocol/backoff.h"
#include "protocol/client.h"
#include "protocol/records.h"
#include "trainer/lease_keeper.h"
#include "trainer/reporter.h"

namespace gnomon {

struct InlineLeaseOptions {
  ClientOptions controller;
  std::string name;  // begins with kTrainerPrefix, unique per process
  Fingerprint fingerprint;
  std::chrono::seconds poll = std::chrono::seconds(30);
  std::chrono::milliseconds backoff_first = std::chrono::milliseconds(100);
  std::chrono::milliseconds backoff_longest = std::chrono::seconds(10);
};

class InlineLeases {
 public:
  // Starts the thread, which asks for nothing yet. The references must outlive this. Throws
  // ConfigError as HttpClient does.
  InlineLeases(InlineLeaseOptions options, Reporter& reporter, spdlog::logger& log);
  // Gives back, with one try, a lease that was not answered yet.
  ~InlineLeases();

  // True when the thread may ask for the next lease. One that it waits for already may still come.
  void want(bool wanted);
  // The lease at hand; nothing when there is none. It is kept alive until it is answered.
  std::optional<Lease> pop();

  // The next four are about the lease that pop() gave last.
  void set_steps_done(int64_t steps);
  // The controller gave it to somebody else or forgot it.
  bool lost() const;
  // Hands its answer to the thread; it is dropped where the lease is lost.
  void complete(const ReplayResult& result);
  void fail(const LeaseFailure& failure);

 private:
  struct Answer {
    std::string what;  // complete, fail
    std::string body;
  };
  enum class Next { kAsk, kAnswer, kStop };

  void run();
  Next next();
  void ask();
  bool send(const Answer& answer, std::chrono::milliseconds timeout);
  void give_back();
  void hand_over(Answer answer);
  void pause();
  bool is_stopping() const;

  InlineLeaseOptions options_;
  Reporter& reporter_;
  spdlog::logger& log_;
  HttpClient client_;
  // The thread's only.
  Backoff backoff_;
  std::chrono::milliseconds asked_pause_{0};  // by the controller's last error
  int errors_ = 0;                            // that the answer has met

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  bool wanted_ = false;
  bool popped_ = false;
  bool sending_ = false;
  std::optional<Lease> lease_;  // from its arrival until it is answered
  std::unique_ptr<LeaseKeeper> keeper_;
  std::optional<Answer> answer_;
  std::thread thread_;
};

}  // namespace gnomon

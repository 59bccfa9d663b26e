// Tells the controller what the run did: registers the run and sends the spool's records in order,
// on a thread of its own. The training loop only appends to the spool and never waits for the
// network. Sending twice is harmless, so whatever was not acknowledged is sent again.
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
#include <vector>

#include "protocol/backoff.h"
#include "protocol/client.h"
#include "protocol/messages.h"
#include "trainer/spool.h"

namespace gnomon {

// Whether the controller answers, as seen by all threads that talk to it. Thread-safe.
class Contact {
 public:
  void succeeded();
  void failed();
  // Time since the first failure after the last success; 0 while it answers.
  double away_seconds() const;

 private:
  mutable std::mutex mutex_;
  std::optional<std::chrono::steady_clock::time_point> away_since_;
};

struct ReporterOptions {
  std::string url;
  RunRegistration registration;
  size_t batch_records_max = 256;
  size_t batch_bytes_max = 256 << 10;
  std::chrono::milliseconds request_timeout = std::chrono::seconds(20);
  std::chrono::milliseconds backoff_first = std::chrono::milliseconds(100);
  std::chrono::milliseconds backoff_longest = std::chrono::seconds(10);
  std::chrono::milliseconds sync_interval =
      std::chrono::seconds(1);  // unsent records reach the disk this often
};

class Reporter {
 public:
  // Starts the thread. The references must outlive the reporter. Throws ConfigError for a bad URL.
  Reporter(ReporterOptions options, Spool& spool, Contact& contact, spdlog::logger& log);
  // Stops at once; what was not sent stays in the spool.
  ~Reporter();

  // The run's id at the controller ("run-1"), once it is registered; waits `timeout` at most.
  std::optional<std::string> wait_for_run(std::chrono::milliseconds timeout) const;
  // URIs that the controller still needs, from its newest answer; nothing before the first answer.
  std::optional<std::vector<std::string>> protected_checkpoints() const;
  // Steps, checkpoints and so on that the controller refused and that were dropped, so far.
  int64_t refused() const { return refused_; }

 private:
  void run();
  void register_run();
  void send_oldest();
  size_t send_steps(const std::vector<SpoolRecord>& records);
  void post(const std::string& target, const std::string& body);
  void post_or_drop(const SpoolRecord& record, const std::string& body);
  bool is_refusal(int status);
  void sync_if_due();
  bool wait(std::chrono::milliseconds duration);

  ReporterOptions options_;
  Spool& spool_;
  Contact& contact_;
  spdlog::logger& log_;
  HttpClient client_;
  Backoff backoff_;
  std::chrono::steady_clock::time_point last_sync_;
  std::atomic<int64_t> refused_{0};
  bool registered_again_ = false;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool stopping_ = false;
  std::string run_;
  std::optional<std::vector<std::string>> protected_;
  std::thread thread_;
};

}  // namespace gnomon

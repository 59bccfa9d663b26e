// Tells the controller what the run did: registers the run and sends the spool's records in order,
// on a thread of its own. The training loop only appends to the spool and never waits for the
// network. Sending twice is harmless, so whatever was not acknowledged is sent again. A controller
// whose ledger is new gets what the trainer knows: the run, its attempts, how far directives and
// plans are numbered.
#pragma once

#include <spdlog/logger.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "protocol/backoff.h"
#include "protocol/client.h"
#include "protocol/records.h"
#include "trainer/refused_log.h"
#include "trainer/spool.h"

namespace gnomon {

// Knows whether the controller answers, as seen by all threads that talk to it. Thread-safe.
class Contact {
 public:
  void succeeded();
  void failed(const std::string& why);
  // Time since the first failure after the last success; 0 while it answers.
  double away_seconds() const;
  // The newest failure, in words.
  std::string why() const;
  // True when it is time to say what the controller refuses: once a minute, whoever asks.
  bool should_log_refusal();

 private:
  mutable std::mutex mutex_;
  std::string why_;
  std::optional<std::chrono::steady_clock::time_point> logged_refusal_;
  std::optional<std::chrono::steady_clock::time_point> away_since_;
};

// What the trainer knows of its run, whatever becomes of the controller's ledger.
struct Standing {
  std::vector<AttemptStart> attempts;  // all of them: 1, 2, ...
  int64_t last_directive = 0;          // applied or rejected
  int64_t newest_plan_version = 0;
};

struct ReporterOptions {
  ClientOptions controller;
  RunRegistration registration;  // the standing's members are filled in when it is sent
  std::string incarnation = {};  // trainer/incarnation.h; empty: it is not said
  // Called on a thread of those that talk to the controller, once, when another trainer has taken
  // the run over. May be empty.
  std::function<void()> on_replaced = {};
  Standing standing = {};
  size_t batch_records_max = 256;
  size_t batch_bytes_max = 256 << 10;
  std::chrono::milliseconds request_timeout = std::chrono::seconds(20);
  std::chrono::milliseconds backoff_first = std::chrono::milliseconds(100);
  std::chrono::milliseconds backoff_longest = std::chrono::seconds(10);
  std::chrono::milliseconds sync_interval =
      std::chrono::seconds(1);  // unsent records reach the disk this often
  // A record that the controller fails to take this often, although it takes a registration, is set
  // aside. Errors that may pass (may_pass() of protocol/client.h) and broken connections do not
  // count.
  int tries_max = kServerErrorsMax;
  int64_t refused_bytes_max = 4 << 20;  // of refused.jsonl
  // True when a checkpoint was deleted before it was reported; its report is then left out, so that
  // nobody replays from a directory that is gone.
  std::function<bool(const CheckpointReport&)> deleted = {};
};

// True when the controller has said that another trainer has the run now.
bool is_replaced(const ApiError& error);

class Reporter {
 public:
  // Starts the thread. The references must outlive the reporter. Throws ConfigError as HttpClient
  // does.
  Reporter(ReporterOptions options, Spool& spool, Contact& contact, spdlog::logger& log);
  // Stops at once; what was not sent stays in the spool.
  ~Reporter();

  // The run's id at the controller ("run-1"), once it is registered; waits `timeout` at most.
  std::optional<std::string> wait_for_run(std::chrono::milliseconds timeout) const;
  // The controller's newest answer to a registration; nothing before the first.
  std::optional<RunRegistered> registered() const;
  // Reported again whenever it changes.
  void knows(Standing standing);
  Standing standing() const;
  // For others who talk to the controller: it does not know `run`, or the connection broke and it
  // may have another ledger by now. The run is registered again before anything else is sent.
  void unknown(const std::string& run);
  void doubt(const std::string& run);
  // Also for others who talk to the controller: it has said `why` this trainer has to end. Nothing
  // more is sent.
  void give_up(const std::string& why);
  // Why; nothing as long as the run is this trainer's.
  std::optional<std::string> replaced() const;
  // A request's target with what it says of this process.
  std::string own(const std::string& target) const;
  // How often the ledger was found to be new (1 = the first one), and how often the run was
  // registered.
  int64_t ledgers() const { return ledgers_; }
  int64_t registrations() const { return registrations_; }
  // URIs that the controller still needs, from its newest answer; nothing before the first answer.
  std::optional<std::vector<std::string>> protected_checkpoints() const;
  // Steps, checkpoints and so on that the controller refused and that were set aside in
  // refused.jsonl, so far.
  int64_t refused() const { return refused_; }

 private:
  void run();
  void register_run();
  void send_attempts(int64_t below);
  void send_oldest();
  bool is_of_deleted_checkpoint(const SpoolRecord& record) const;
  size_t send_steps(const std::vector<SpoolRecord>& records);
  void post(const std::string& target, const std::string& body);
  bool deliver(const SpoolRecord& record, const std::string& body);
  bool judge(const SpoolRecord& record, const ApiError& error);
  bool cured_by_attempts(const SpoolRecord& record, const ApiError& error);
  bool cured_by_plans(const SpoolRecord& record, const ApiError& error);
  void set_aside(const SpoolRecord& record, int status, const std::string& why);
  std::string run_id() const;
  void sync_if_due();
  bool wait(std::chrono::milliseconds duration);

  ReporterOptions options_;
  Spool& spool_;
  Contact& contact_;
  spdlog::logger& log_;
  HttpClient client_;
  Backoff backoff_;
  std::chrono::steady_clock::time_point last_sync_;
  RefusedLog refused_log_;
  std::atomic<int64_t> refused_{0};
  std::atomic<int64_t> ledgers_{0};
  std::atomic<int64_t> registrations_{0};
  // The reporter's thread only.
  bool attempts_due_ = true;
  std::string last_run_;          // registered as before
  int64_t cured_ = 0;             // record for which the attempts were sent again
  int64_t cured_by_plans_ = 0;    // and for which the plans were
  int64_t one_by_one_until_ = 0;  // steps up to this record are not sent in batches
  int64_t failing_ = 0;           // record that fails, and how often it did
  int tries_ = 0;
  int64_t registered_for_ = -1;  // the record before whose last try a registration succeeded

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool stopping_ = false;
  std::string run_;  // empty = to be registered
  std::optional<RunRegistered> registered_;
  bool run_unknown_ = false;
  std::optional<std::string> replaced_;
  bool sends_incarnation_ = true;  // to a controller that does not know it, no more
  Standing standing_;
  std::optional<std::vector<std::string>> protected_;
  std::thread thread_;
};

}  // namespace gnomon

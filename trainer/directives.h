// Brings the controller's directives to the training loop: a long poll on a thread of its own.
// Delivery is at least once (the controller repeats what was not applied); each number is handed to
// the loop once, in order. A new ledger's directives are numbered above those of the one that was
// lost; one that reuses a number is rejected.
#pragma once

#include <spdlog/logger.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "protocol/backoff.h"
#include "protocol/client.h"
#include "protocol/records.h"
#include "trainer/reporter.h"
#include "trainer/spool.h"

namespace gnomon {

// Where its answer goes.
std::string ack_target(int64_t number);
// Why a directive is rejected whose number is not above `last`.
std::string used_number(int64_t number, int64_t last);

struct DirectiveOptions {
  ClientOptions controller;
  std::chrono::seconds poll = std::chrono::seconds(30);
  std::chrono::milliseconds backoff_first = std::chrono::milliseconds(100);
  std::chrono::milliseconds backoff_longest = std::chrono::seconds(10);
};

class DirectiveInbox {
 public:
  // Starts the thread. The references must outlive the inbox. Throws ConfigError as HttpClient
  // does.
  DirectiveInbox(DirectiveOptions options, Reporter& reporter, Spool& spool, Contact& contact,
                 spdlog::logger& log);
  ~DirectiveInbox();

  // The next directive, oldest first; nothing when there is none. Its acknowledgement is spooled
  // already.
  std::optional<Directive> pop();
  // True when pop() has one that should not wait for a replay: any but checkpoint_now.
  bool urgent() const;
  // Takes in no more, ends the thread, and returns what pop() had still to return.
  std::vector<Directive> close();

 private:
  void run();
  void poll(const std::string& run);
  void notice_a_new_ledger();
  bool accept(const Directive& directive);
  bool reject_used(const Directive& directive, int64_t last);
  bool answer(const Directive& directive, AckState state, const std::string& reason);
  bool wait(std::chrono::milliseconds duration);

  DirectiveOptions options_;
  Reporter& reporter_;
  Spool& spool_;
  Contact& contact_;
  spdlog::logger& log_;
  HttpClient client_;
  Backoff backoff_;
  // The inbox's thread only.
  int64_t last_seen_ = 0;     // highest number handed to the loop
  int64_t ledger_ = 0;        // Reporter::ledgers() for which that holds
  int64_t registration_ = 0;  // Reporter::registrations() since which all open ones were asked for

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::deque<Directive> queue_;
  std::thread thread_;
};

}  // namespace gnomon

// Brings the controller's directives to the training loop: a long poll on a thread of its own.
// Delivery is at least once (the controller repeats what was not applied); each number is handed to
// the loop once, in order.
#pragma once

#include <spdlog/logger.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "protocol/backoff.h"
#include "protocol/client.h"
#include "protocol/messages.h"
#include "trainer/reporter.h"
#include "trainer/spool.h"

namespace gnomon {

struct DirectiveOptions {
  std::string url;
  int64_t last_applied = 0;  // directives up to this number are of the past
  std::chrono::seconds poll = std::chrono::seconds(30);
  std::chrono::milliseconds backoff_first = std::chrono::milliseconds(100);
  std::chrono::milliseconds backoff_longest = std::chrono::seconds(10);
};

class DirectiveInbox {
 public:
  // Starts the thread. The references must outlive the inbox. Throws ConfigError for a bad URL.
  DirectiveInbox(DirectiveOptions options, Reporter& reporter, Spool& spool, Contact& contact,
                 spdlog::logger& log);
  ~DirectiveInbox();

  // The next directive, oldest first; nothing when there is none. Its acknowledgement is spooled
  // already.
  std::optional<Directive> take();

 private:
  void run();
  void poll(const std::string& run);
  bool accept(const Directive& directive);
  bool wait(std::chrono::milliseconds duration);

  DirectiveOptions options_;
  Reporter& reporter_;
  Spool& spool_;
  Contact& contact_;
  spdlog::logger& log_;
  HttpClient client_;
  Backoff backoff_;
  int64_t last_seen_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::deque<Directive> queue_;
  std::thread thread_;
};

}  // namespace gnomon

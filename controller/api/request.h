// What a route sees of HTTP: a request, an answer, and the few things that may take time while one
// request is served. Routes run in a coroutine of their own, so that these calls look blocking and
// block no thread.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "controller/bell.h"
#include "storage/ledger.h"

namespace gnomon {

struct Request {
  std::string method;
  std::string path;                          // without the query, percent-decoded
  std::map<std::string, std::string> query;  // decoded
  std::vector<std::string> arguments;        // what the route's {…} stood for, in order
  std::string content_type;                  // without parameters, lower case; empty when absent
  std::string last_event_id;
  std::string body;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  bool streamed = false;  // already sent through Exchange::send; the connection is closed
};

class Exchange {
 public:
  using Clock = std::chrono::steady_clock;
  virtual ~Exchange() = default;

  // As Ledger::write and Ledger::read. Throw what the closure threw, LedgerError, LedgerBusy.
  virtual void write(Ledger::Write write) = 0;
  virtual void read(Ledger::Read read) = 0;

  // Waits for the first ring after `seen` (see Bell). False when there was none until the deadline,
  // when the client has hung up or when the daemon is stopping.
  virtual bool wait(Bell& bell, uint64_t seen, Clock::time_point deadline) = 0;
  virtual bool over() = 0;  // the client has hung up, or the daemon is stopping

  // Starts an answer without a known length, then adds to it. send() is false when the client is
  // gone.
  virtual void start_stream(const std::string& content_type) = 0;
  virtual bool send(std::string_view text) = 0;
};

}  // namespace gnomon

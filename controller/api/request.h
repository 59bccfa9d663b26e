// What a route sees of HTTP: a request, an answer, and the few things that may take time while one
// request is served. Routes run in a coroutine of their own, so that these calls look blocking and
// block no thread.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "controller/auth/authenticator.h"
#include "controller/supervisor/change_notifier.h"
#include "storage/ledger.h"

namespace gnomon {

struct QueryParameter;

struct Request {
  std::string method;                                       // HEAD comes to the handler of GET
  std::string path;                                         // without the query, percent-decoded
  std::string target;                                       // path and query as they were sent
  std::map<std::string, std::string> query;                 // decoded
  const std::vector<QueryParameter>* parameters = nullptr;  // what the route declares of the query
  std::vector<std::string> arguments;  // what the route's {…} stood for, in order
  std::string content_type;            // without parameters, lower case; empty when absent
  std::string last_event_id;
  std::string body;                  // without its content coding
  std::string foreign_page;          // that has caused it, as foreign_page() says; empty: none
  PrincipalPtr principal = nullptr;  // who sent it; null: a stranger, on a route open to all
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  bool streamed = false;    // already sent through Exchange::send; the connection is closed
  bool open_ended = false;  // to HEAD: what GET would send has no length
};

class Exchange {
 public:
  using Clock = std::chrono::steady_clock;
  virtual ~Exchange() = default;

  // As Ledger::write and Ledger::read. Throw what the closure threw, LedgerError, LedgerBusy.
  virtual void write(Ledger::Write write) = 0;
  virtual void read(Ledger::Read read) = 0;

  // False when it did not come until the deadline, when the client has hung up or when the daemon
  // is stopping.
  virtual bool wait(const Awaited& awaited, Clock::time_point deadline) = 0;
  virtual bool over() = 0;  // the client has hung up, or the daemon is stopping
  // Lets a moment pass, each time another one. False when it is over().
  virtual bool pause() = 0;

  // Starts an answer without a known length, then adds to it. send() is false when the client is
  // gone.
  virtual void start_stream(const std::string& content_type) = 0;
  virtual bool send(std::string_view text) = 0;
};

// As Exchange::read and audited writes, for long polls and streams: a full queue is waited for
// instead of being told, since whoever woke this one woke thousands of others too. Throws
// LedgerBusy when the client is gone.
void read_patiently(Exchange& exchange, const Ledger::Read& read);

// What a long poll does until `deadline`: looks once, and again each time that what it waits for
// has come, until there is something. `look` returns whether there was; `awaited` is asked before
// each look for what comes after it. A full queue ends no look: it is done again.
bool poll_until(Exchange& exchange, const std::function<Awaited()>& awaited,
                Exchange::Clock::time_point deadline, const std::function<bool()>& look);
Exchange::Clock::time_point deadline_after(double seconds);

}  // namespace gnomon

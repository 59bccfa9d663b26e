// A controller that only records: real HTTP, the protocol's idempotence, no decisions. Tests look
// at what it was told and choose what it answers.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "protocol/records.h"
#include "tests/protocol/http_test_server.h"

namespace gnomon::test {

class FakeController {
 public:
  // What is answered instead of the usual thing, if it returns something. Called for every request.
  using Interference = std::function<std::optional<HttpReply>(const HttpRequest&)>;

  FakeController();
  ~FakeController() { go_away(); }

  std::string url() const { return server_.url(); }
  void go_away();
  void come_back();
  void interfere(Interference interference);

  // Number (unless it has one), state and reason (likewise) are filled in; numbers go on from what
  // the newest registration said. The directive's number.
  int64_t issue(Directive directive);
  int64_t issue(const std::string& kind);
  // All that was told is forgotten, as with a new ledger: the run is unknown until it is
  // registered, and reports of attempts that were not told since are refused in gnomond's words.
  void lose_ledger();
  void protect(std::vector<std::string> uris);
  // What registrations are told from now on.
  void want_on_loss(const std::string& on_loss, double grace_seconds);

  // Copies of what was told.
  struct Received {
    std::vector<RunRegistration> registrations;
    std::vector<AttemptStart> attempts;                       // first time each
    std::map<std::pair<int64_t, int64_t>, StepReport> steps;  // by (attempt, step)
    std::vector<std::pair<int64_t, int64_t>> step_order;      // first time each, as it came
    std::vector<CheckpointReport> checkpoints;                // first time each
    std::vector<std::pair<int64_t, DirectiveAck>> acks;       // (number, ack), every time
    std::vector<TrainerNotice> notices;
    std::vector<RunFinished> finished;
    int64_t requests = 0;
    int64_t repeats = 0;    // steps told again with the same values
    int64_t conflicts = 0;  // with other values
  };
  Received received() const;
  // For polls with nothing to answer: `news()` counts what was told and issued, and `wait_beyond`
  // returns when there is more than `seen`, the controller goes away, or the poll has lasted long.
  int64_t news() const;
  void wait_beyond(int64_t seen);
  int64_t steps_received() const;
  // The newest step reported for `attempt`; -1 when there is none.
  int64_t newest_step(int64_t attempt) const;
  DirectiveAck last_ack(int64_t number) const;  // with state "" when there is none
  std::string ack_state(int64_t number) const { return last_ack(number).state; }
  // Waits until the newest acknowledgement says so.
  bool reaches(int64_t number, const std::string& state) const;

 private:
  HttpReply answer(const HttpRequest& sent);
  HttpReply record(const HttpRequest& request);
  HttpReply take_step_batch(const HttpRequest& request);
  HttpReply list_directives(const HttpRequest& request);
  HttpReply take_attempt(const HttpRequest& request);
  HttpReply acknowledged();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int64_t news_ = 0;
  bool gone_ = false;
  RunRegistered registered_{"run-1", "enforce"};
  Received received_;
  std::vector<Directive> directives_;
  std::vector<std::string> protected_;
  bool strict_ = false;  // since the ledger was lost
  Interference interference_;
  HttpTestServer server_;
};

// A problem document, as gnomond answers.
HttpReply problem(int status, const std::string& title);

}  // namespace gnomon::test

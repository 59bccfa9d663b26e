// Leases for a trainer that replays itself, at a FakeController: hands them out and keeps what was
// answered.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/trainer/fake_controller.h"

namespace gnomon::test {

class LeaseDesk {
 public:
  // Called for each request while nothing is handed out; its numbers are filled in.
  using Work = std::function<std::optional<ReplayTask>(const FakeController::Received& received)>;

  // Answers at `controller`, which must outlive this, as it does the rest.
  LeaseDesk(FakeController& controller, Work work, double ttl_seconds = 0.3);
  ~LeaseDesk();

  struct Seen {
    std::vector<LeaseRequest> requests;
    std::vector<Lease> given;
    std::vector<LeaseHeartbeat> heartbeats;
    std::vector<std::pair<Lease, ReplayResult>> completed;
    std::vector<LeaseFailure> failed;
  };
  Seen seen() const;
  // Every heartbeat is answered with this status from now on.
  void set_heartbeat_status(int status);

 private:
  std::optional<HttpReply> answer(const HttpRequest& request);
  HttpReply give(const HttpRequest& request);

  FakeController& controller_;
  const Work work_;
  const double ttl_seconds_;
  mutable std::mutex mutex_;
  Seen seen_;
  bool out_ = false;
  int heartbeat_status_ = 200;
};

// The windows of ten steps between two checkpoints that were told, each once, in `arms` by turns.
LeaseDesk::Work every_window(std::vector<std::string> arms);
// One endless replay, from step 0.
LeaseDesk::Work one_endless_replay();

}  // namespace gnomon::test

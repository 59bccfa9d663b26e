// A controller that only hands out leases, and what they replay: the windows of a run that a
// FakeController was told of.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "protocol/records.h"
#include "tests/protocol/http_test_server.h"
#include "tests/trainer/fake_controller.h"

namespace gnomon::test {

// Lease 4 under token 17, long-lived: `steps` from the checkpoint of step 0 on, and both end points
// of the window up to that of step 10.
Lease lease_of(const FakeController::Received& received, const std::string& arm,
               int64_t steps = 10);

// Hands out queued leases and records the answers.
class LeaseServer {
 public:
  LeaseServer() : server_([this](const HttpRequest& request) { return answer(request); }) {}

  std::string url() const { return server_.url(); }
  HttpTestServer& server() { return server_; }

  void queue(Lease lease) {
    std::lock_guard lock(mutex_);
    leases_.push_back(std::move(lease));
    changed_.notify_all();
  }
  void set_status(int heartbeat, int answer) {
    std::lock_guard lock(mutex_);
    heartbeat_status_ = heartbeat;
    answer_status_ = answer;
  }
  // True when everything is answered as if the token were not accepted.
  void refuse_token(bool refuse) { refuses_token_ = refuse; }
  std::vector<ReplayResult> completed() {
    std::lock_guard lock(mutex_);
    return completed_;
  }
  std::vector<LeaseFailure> failed() {
    std::lock_guard lock(mutex_);
    return failed_;
  }
  std::vector<LeaseHeartbeat> heartbeats() {
    std::lock_guard lock(mutex_);
    return heartbeats_;
  }
  std::vector<LeaseRequest> asked() {
    std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  HttpReply answer(const HttpRequest& request);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Lease> leases_;
  int heartbeat_status_ = 200;
  int answer_status_ = 200;
  std::vector<LeaseRequest> asked_;
  std::atomic<bool> refuses_token_ = false;
  std::vector<ReplayResult> completed_;
  std::vector<LeaseFailure> failed_;
  std::vector<LeaseHeartbeat> heartbeats_;
  HttpTestServer server_;
};

}  // namespace gnomon::test

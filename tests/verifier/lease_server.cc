#include "tests/verifier/lease_server.h"

#include <algorithm>

#include "base/errors.h"
#include "protocol/json.h"
#include "tests/support/words.h"

namespace gnomon::test {
namespace {

std::string uri_at(const FakeController::Received& received, int64_t step) {
  const auto found = std::ranges::find(received.checkpoints, step, &CheckpointReport::step);
  GNOMON_ASSERT(found != received.checkpoints.end());
  return found->uri;
}

}  // namespace

Lease lease_of(const FakeController::Received& received, const std::string& arm, int64_t steps) {
  constexpr double kLongTtl = 60;
  Lease lease;
  lease.lease = 4;
  lease.token = 17;
  lease.ttl_seconds = kLongTtl;
  lease.task.run = "run-1";
  lease.task.replay = 2;
  lease.task.window = 1;
  lease.task.arm = test::any_word(arm);
  lease.task.purpose = "shadow";
  lease.task.checkpoint_uri = uri_at(received, 0);
  lease.task.steps = steps;
  lease.task.end_checkpoint_uri = uri_at(received, 10);
  lease.task.evaluate_endpoints = true;
  return lease;
}

HttpReply LeaseServer::answer(const HttpRequest& request) {
  if (refuses_token_) return problem(401, "Token not accepted");
  std::unique_lock lock(mutex_);
  if (request.target.starts_with("/v1/leases?")) {
    asked_.push_back(from_json<LeaseRequest>(request.body));
    changed_.wait_for(lock, std::chrono::milliseconds(100), [this] { return !leases_.empty(); });
    if (leases_.empty()) return {204, ""};
    const Lease lease = leases_.front();
    leases_.pop_front();
    return {200, to_json(lease)};
  }
  if (request.target.ends_with("/heartbeat")) {
    heartbeats_.push_back(from_json<LeaseHeartbeat>(request.body));
    return {heartbeat_status_, "{}"};
  }
  if (request.target.ends_with("/complete") && answer_status_ == 200) {
    completed_.push_back(from_json<ReplayResult>(request.body));
  }
  if (request.target.ends_with("/fail")) failed_.push_back(from_json<LeaseFailure>(request.body));
  return {answer_status_, "{}"};
}

}  // namespace gnomon::test

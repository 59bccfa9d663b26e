#include "tests/trainer/lease_desk.h"

#include <algorithm>
#include <memory>

#include "protocol/json.h"
#include "tests/support/words.h"

namespace gnomon::test {
namespace {

constexpr int64_t kWindowSteps = 10;

std::string uri_at(const FakeController::Received& received, int64_t step) {
  const auto found = std::ranges::find(received.checkpoints, step, &CheckpointReport::step);
  return found == received.checkpoints.end() ? "" : found->uri;
}

}  // namespace

LeaseDesk::LeaseDesk(FakeController& controller, Work work, double ttl_seconds)
    : controller_(controller), work_(std::move(work)), ttl_seconds_(ttl_seconds) {
  controller_.interfere([this](const HttpRequest& request) { return answer(request); });
}

LeaseDesk::~LeaseDesk() { controller_.go_away(); }

LeaseDesk::Seen LeaseDesk::seen() const {
  std::lock_guard lock(mutex_);
  return seen_;
}

void LeaseDesk::set_heartbeat_status(int status) {
  std::lock_guard lock(mutex_);
  heartbeat_status_ = status;
}

std::optional<HttpReply> LeaseDesk::answer(const HttpRequest& request) {
  if (!request.target.starts_with("/v1/leases")) return std::nullopt;
  if (request.target.starts_with("/v1/leases?")) return give(request);
  std::lock_guard lock(mutex_);
  if (request.target.ends_with("/heartbeat")) {
    seen_.heartbeats.push_back(from_json<LeaseHeartbeat>(request.body));
    return HttpReply{heartbeat_status_, "{}"};
  }
  // A trainer that ends sends its answer once more where it has not heard that it was taken.
  if (!out_) return HttpReply{409, "{}"};
  if (request.target.ends_with("/complete")) {
    seen_.completed.emplace_back(seen_.given.back(), from_json<ReplayResult>(request.body));
  } else {
    seen_.failed.push_back(from_json<LeaseFailure>(request.body));
  }
  out_ = false;
  return HttpReply{200, "{}"};
}

HttpReply LeaseDesk::give(const HttpRequest& request) {
  const int64_t news = controller_.news();
  const FakeController::Received received = controller_.received();
  {
    std::lock_guard lock(mutex_);
    seen_.requests.push_back(from_json<LeaseRequest>(request.body));
    if (const auto task = out_ ? std::nullopt : work_(received)) {
      out_ = true;
      const int64_t number = std::ssize(seen_.given) + 1;
      Lease lease{number, 100 + number, ttl_seconds_, *task};
      lease.task.run = "run-1";
      lease.task.replay = lease.task.window = number;
      lease.task.purpose = "shadow";
      seen_.given.push_back(lease);
      return {200, to_json(lease)};
    }
  }
  controller_.wait_beyond(news);
  return {204, ""};
}

LeaseDesk::Work every_window(std::vector<std::string> arms) {
  return [arms = std::move(arms), from = int64_t{0},
          given = size_t{0}](const FakeController::Received& received) mutable {
    std::optional<ReplayTask> task;
    if (uri_at(received, from + kWindowSteps).empty()) return task;
    task.emplace();
    task->arm = test::any_word(arms[given++ % arms.size()]);
    task->checkpoint_uri = uri_at(received, from);
    task->start_step = from;
    task->steps = kWindowSteps;
    task->end_checkpoint_uri = uri_at(received, from + kWindowSteps);
    task->evaluate_endpoints = true;
    from += kWindowSteps;
    return task;
  };
}

LeaseDesk::Work one_endless_replay() {
  return [given = false](const FakeController::Received& received) mutable {
    std::optional<ReplayTask> task;
    if (given || uri_at(received, 0).empty()) return task;
    given = true;
    task.emplace();
    task->arm = "bf16";
    task->checkpoint_uri = uri_at(received, 0);
    task->steps = 100'000'000;
    return task;
  };
}

}  // namespace gnomon::test

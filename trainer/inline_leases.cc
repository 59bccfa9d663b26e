#include "trainer/inline_leases.h"

#include <fmt/format.h>

#include <utility>

#include "protocol/json.h"

namespace gnomon {

InlineLeases::InlineLeases(InlineLeaseOptions options, Reporter& reporter, spdlog::logger& log)
    : options_(std::move(options)),
      reporter_(reporter),
      log_(log),
      client_(options_.controller),
      backoff_(options_.backoff_first, options_.backoff_longest),
      thread_([this] { run(); }) {}

InlineLeases::~InlineLeases() {
  bool in_flight = false;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    in_flight = !lease_ || sending_;
  }
  changed_.notify_all();
  if (in_flight) client_.cancel();
  thread_.join();
}

void InlineLeases::want(bool wanted) {
  {
    std::lock_guard lock(mutex_);
    if (wanted_ == wanted) return;
    wanted_ = wanted;
  }
  changed_.notify_all();
}

std::optional<Lease> InlineLeases::pop() {
  std::lock_guard lock(mutex_);
  if (!lease_ || popped_) return std::nullopt;
  popped_ = true;
  return lease_;
}

void InlineLeases::set_steps_done(int64_t steps) {
  std::lock_guard lock(mutex_);
  if (keeper_) keeper_->set_steps_done(steps);
}

bool InlineLeases::lost() const {
  std::lock_guard lock(mutex_);
  return keeper_ == nullptr || keeper_->lost();
}

void InlineLeases::complete(const ReplayResult& result) {
  hand_over({"complete", to_json(result)});
}
void InlineLeases::fail(const LeaseFailure& failure) { hand_over({"fail", to_json(failure)}); }

void InlineLeases::hand_over(Answer answer) {
  {
    std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
  }
  changed_.notify_all();
}

void InlineLeases::run() {
  while (true) {
    switch (next()) {
      case Next::kAsk:
        ask();
        break;
      case Next::kAnswer:
        give_back();
        break;
      case Next::kStop:
        give_back();
        return;
    }
  }
}

InlineLeases::Next InlineLeases::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || answer_ || (wanted_ && !lease_); });
  if (stopping_) return Next::kStop;
  return answer_ ? Next::kAnswer : Next::kAsk;
}

bool InlineLeases::is_stopping() const {
  std::lock_guard lock(mutex_);
  return stopping_;
}

void InlineLeases::pause() {
  std::unique_lock lock(mutex_);
  sending_ = false;
  const auto asked = std::exchange(asked_pause_, std::chrono::milliseconds(0));
  changed_.wait_for(lock, backoff_.next(asked), [this] { return stopping_; });
}

void InlineLeases::ask() {
  constexpr std::chrono::milliseconds kRegistrationCheck(200);
  constexpr std::chrono::seconds kSlack(10);
  const std::optional<std::string> run = reporter_.wait_for_run(kRegistrationCheck);
  if (!run) return;
  try {
    const LeaseRequest request{options_.name, options_.fingerprint, *run, true};
    const HttpResponse response = client_.checked(
        "POST", reporter_.own(fmt::format("/v1/leases?wait={}", options_.poll.count())),
        to_json(request), options_.poll + kSlack);
    backoff_.reset();
    if (response.status == 204 || response.body.empty()) return;
    const Lease lease = from_answer<Lease>(response.body);
    auto keeper = std::make_unique<LeaseKeeper>(options_.controller, lease, log_);
    std::lock_guard lock(mutex_);
    lease_ = lease;
    keeper_ = std::move(keeper);
    popped_ = false;
  } catch (const std::exception& error) {
    // The reporter says that the controller is away.
    log_.debug("leases: {}", error.what());
    const bool unreachable = dynamic_cast<const ConnectionError*>(&error) != nullptr;
    if (unreachable && !is_stopping()) reporter_.doubt(*run);
    const auto* answer = dynamic_cast<const ApiError*>(&error);
    if (answer != nullptr && is_replaced(*answer)) reporter_.give_up(error.what());
    asked_pause_ = asked_pause(error);
    pause();
  }
}

// Tries until the controller has taken or refused the answer, fails at it again and again, or has
// given the lease up. At the end once, whatever the state of the lease.
void InlineLeases::give_back() {
  constexpr std::chrono::seconds kTimeout(30), kLast(2);
  Answer answer;
  errors_ = 0;
  while (true) {
    bool stopping = false;
    {
      std::lock_guard lock(mutex_);
      if (!lease_) return;
      stopping = stopping_;
      sending_ = true;
      answer = answer_.value_or(
          Answer{"fail", to_json(LeaseFailure{lease_->token, "the trainer ends", true})});
    }
    if (lost() || send(answer, stopping ? kLast : kTimeout) || stopping) break;
    pause();
  }
  std::unique_ptr<LeaseKeeper> ended;
  std::lock_guard lock(mutex_);
  if (keeper_->lost()) log_.warn("lease {}: the answer is dropped, it is lost", lease_->lease);
  ended = std::move(keeper_);
  sending_ = false;
  lease_.reset();
  answer_.reset();
}

// Returns whether the controller has taken or refused it.
bool InlineLeases::send(const Answer& answer, std::chrono::milliseconds timeout) {
  const std::string target = fmt::format("/v1/leases/{}/{}", lease_->lease, answer.what);
  try {
    client_.checked("POST", target, answer.body, timeout);
    backoff_.reset();
    return true;
  } catch (const ApiError& error) {
    const bool passes = may_pass(error.status());
    if (!passes && (error.status() < 500 || ++errors_ >= kServerErrorsMax)) {
      log_.warn("lease {}: the answer was refused: {}", lease_->lease, error.what());
      return true;
    }
    asked_pause_ = asked_pause(error);
    log_.debug("{}", error.what());
  } catch (const ConnectionError& error) {
    log_.debug("{}; the answer is sent again", error.what());
  }
  return false;
}

}  // namespace gnomon

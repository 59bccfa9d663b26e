#include "tests/trainer/fake_controller.h"

#include <algorithm>
#include <chrono>

#include "protocol/json.h"
#include "tests/support/child_process.h"
#include "tests/support/words.h"

namespace gnomon::test {
namespace {

bool ends_with(const std::string& text, const std::string& end) { return text.ends_with(end); }

}  // namespace

HttpReply problem(int status, const std::string& title) {
  Problem body;
  body.title = title;
  body.status = status;
  return {status, to_json(body)};
}

FakeController::FakeController()
    : server_([this](const HttpRequest& request) { return answer(request); }) {}

void FakeController::go_away() {
  {
    std::lock_guard lock(mutex_);
    gone_ = true;
  }
  changed_.notify_all();
  server_.stop();
}

void FakeController::come_back() {
  {
    std::lock_guard lock(mutex_);
    gone_ = false;
  }
  server_.start();
}

int64_t FakeController::news() const {
  std::lock_guard lock(mutex_);
  return news_;
}

void FakeController::wait_beyond(int64_t seen) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(1), [&] { return gone_ || news_ > seen; });
}

void FakeController::interfere(Interference interference) {
  std::lock_guard lock(mutex_);
  interference_ = std::move(interference);
}

int64_t FakeController::issue(Directive directive) {
  std::lock_guard lock(mutex_);
  if (directive.number == 0) {
    int64_t last =
        received_.registrations.empty() ? 0 : received_.registrations.back().last_directive;
    for (const Directive& each : directives_) last = std::max(last, each.number);
    directive.number = last + 1;
  }
  if (directive.reason.empty()) directive.reason = "the test wants it";
  directive.state = "pending";
  directives_.push_back(std::move(directive));
  ++news_;
  changed_.notify_all();
  return directives_.back().number;
}

int64_t FakeController::issue(const std::string& kind) {
  Directive directive;
  directive.kind = test::any_word(kind);
  return issue(directive);
}

void FakeController::lose_ledger() {
  std::lock_guard lock(mutex_);
  received_ = {};
  directives_.clear();
  strict_ = true;
}

void FakeController::protect(std::vector<std::string> uris) {
  std::lock_guard lock(mutex_);
  protected_ = std::move(uris);
}

FakeController::Received FakeController::received() const {
  std::lock_guard lock(mutex_);
  return received_;
}

int64_t FakeController::steps_received() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(received_.steps.size());
}

int64_t FakeController::newest_step(int64_t attempt) const {
  std::lock_guard lock(mutex_);
  int64_t newest = -1;
  for (const auto& [key, step] : received_.steps) {
    if (key.first == attempt) newest = std::max(newest, key.second);
  }
  return newest;
}

DirectiveAck FakeController::last_ack(int64_t number) const {
  std::lock_guard lock(mutex_);
  DirectiveAck last;
  for (const auto& [acked, ack] : received_.acks) {
    if (acked == number) last = ack;
  }
  return last;
}

bool FakeController::reaches(int64_t number, const std::string& state) const {
  return eventually([&] { return ack_state(number) == state; });
}

HttpReply FakeController::acknowledged() {
  ReportAck ack;
  ack.accepted = 1;
  ack.protected_checkpoints = protected_;
  return {200, to_json(ack)};
}

HttpReply FakeController::take_step_batch(const HttpRequest& request) {
  for (const StepReport& step : from_json<StepBatch>(request.body).steps) {
    const auto same = [&](const AttemptStart& known) { return known.attempt == step.attempt; };
    if (strict_ && std::none_of(received_.attempts.begin(), received_.attempts.end(), same))
      return problem(409, "Unknown attempt");
    const std::pair<int64_t, int64_t> key{step.attempt, step.step};
    const auto [known, fresh] = received_.steps.emplace(key, step);
    if (fresh) {
      received_.step_order.push_back(key);
    } else if (to_json(known->second) == to_json(step)) {
      ++received_.repeats;
    } else {
      ++received_.conflicts;
      return problem(409, "Step already reported with other values");
    }
  }
  return acknowledged();
}

HttpReply FakeController::list_directives(const HttpRequest& request) {
  const int64_t after = std::stoll(request.target.substr(request.target.find("after=") + 6));
  DirectiveList list;
  std::copy_if(directives_.begin(), directives_.end(), std::back_inserter(list.directives),
               [&](const Directive& directive) {
                 std::string state;
                 for (const auto& [acked, ack] : received_.acks) {
                   if (acked == directive.number) state = ack.state;
                 }
                 return directive.number > after && state != "applied" && state != "rejected";
               });
  return {200, to_json(list)};
}

HttpReply FakeController::take_attempt(const HttpRequest& request) {
  const auto attempt = from_json<AttemptStart>(request.body);
  const auto same = [&](const AttemptStart& known) { return known.attempt == attempt.attempt; };
  if (std::any_of(received_.attempts.begin(), received_.attempts.end(), same))
    return acknowledged();
  if (strict_ && attempt.attempt != static_cast<int64_t>(received_.attempts.size()) + 1)
    return problem(409, "Attempts are numbered without gaps");
  received_.attempts.push_back(attempt);
  return acknowledged();
}

// What a trainer says of its process is nobody's business here.
static HttpRequest without_process(HttpRequest request) {
  if (request.method == "POST" && !request.target.starts_with("/v1/leases?")) {
    request.target = request.target.substr(0, request.target.find('?'));
  }
  return request;
}

HttpReply FakeController::answer(const HttpRequest& sent) {
  const HttpRequest request = without_process(sent);
  Interference interference;
  {
    std::lock_guard lock(mutex_);
    ++received_.requests;
    interference = interference_;
  }
  if (interference) {
    if (auto reply = interference(request)) return *reply;
  }
  if (!request.target.starts_with("/v1/runs/run-1/directives?")) {
    const std::lock_guard lock(mutex_);
    HttpReply reply = record(request);
    ++news_;
    changed_.notify_all();
    return reply;
  }
  const auto listed = [&] {
    const std::lock_guard lock(mutex_);
    if (strict_ && received_.registrations.empty()) return problem(404, "Unknown run");
    return list_directives(request);
  };
  const int64_t seen = news();
  const HttpReply reply = listed();
  if (reply.body != "{\"directives\":[]}") return reply;
  wait_beyond(seen);
  return listed();
}

void FakeController::want_on_loss(const std::string& on_loss, double grace_seconds) {
  const std::lock_guard lock(mutex_);
  registered_.on_loss = test::any_word(on_loss);
  registered_.grace_seconds = grace_seconds;
}

HttpReply FakeController::record(const HttpRequest& request) {
  if (request.target == "/v1/runs") {
    received_.registrations.push_back(from_json<RunRegistration>(request.body));
    return {201, to_json(registered_)};
  }
  if (strict_ && received_.registrations.empty()) return problem(404, "Unknown run");
  if (ends_with(request.target, "/steps")) return take_step_batch(request);
  if (ends_with(request.target, "/attempts")) return take_attempt(request);
  if (ends_with(request.target, "/checkpoints")) {
    const auto checkpoint = from_json<CheckpointReport>(request.body);
    const auto same = [&](const CheckpointReport& known) { return known.uri == checkpoint.uri; };
    if (std::none_of(received_.checkpoints.begin(), received_.checkpoints.end(), same))
      received_.checkpoints.push_back(checkpoint);
    return acknowledged();
  }
  if (ends_with(request.target, "/ack")) {
    const int64_t number =
        std::stoll(request.target.substr(request.target.find("directives/") + 11));
    received_.acks.emplace_back(number, from_json<DirectiveAck>(request.body));
    for (const Directive& directive : directives_) {
      if (directive.number == number) return {200, to_json(directive)};
    }
    return problem(404, "Unknown directive");
  }
  if (ends_with(request.target, "/notices")) {
    received_.notices.push_back(from_json<TrainerNotice>(request.body));
    return acknowledged();
  }
  if (ends_with(request.target, "/finished")) {
    received_.finished.push_back(from_json<RunFinished>(request.body));
    return acknowledged();
  }
  return problem(404, "No such route: " + request.target);
}

}  // namespace gnomon::test

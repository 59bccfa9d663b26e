#include "tests/robustness/verifier.h"

#include <fmt/format.h>

#include <thread>

#include "protocol/json.h"

namespace gnomon::robustness {

Verifier::Verifier(Scene& scene, uint64_t seed, int number, Manners manners)
    : scene_(scene),
      draw_(seed, 2000 + static_cast<uint64_t>(number)),
      manners_(manners),
      name_(fmt::format("verifier:{}", number)),
      endpoint_(scene, name_) {}

void Verifier::violation(const std::string& what) {
  scene_.record.violation(fmt::format("{}: {}", name_, what));
}

std::string Verifier::path(const Lease& lease, const std::string& what) const {
  return fmt::format("/v1/leases/{}/{}", lease.lease, what);
}

int Verifier::number_of(const Lease& lease) const {
  return scene_.record.number_of(std::stoll(lease.task.run.substr(lease.task.run.find('-') + 1)));
}

ReplayResult Verifier::result_for(const Lease& lease) const {
  const int number = number_of(lease);
  const ReplayTask& task = lease.task;
  const int64_t plan =
      scene_.record.plan_version(number, task.attempt, task.start_step + task.steps);
  const RunScenario scenario =
      scene_.record.of(number, [](const RunRecord& record) { return record.scenario; });
  ReplayResult result = result_of(scenario, task, plan);
  result.token = lease.token;
  return result;
}

// A token is given once: two that hold the same one could both be believed.
void Verifier::note_grant(const Lease& lease) {
  scene_.record.count("leases granted");
  const bool fresh = scene_.record.of(number_of(lease), [&](RunRecord& record) {
    return record.granted.emplace(lease.task.replay, lease.token).second;
  });
  if (!fresh) {
    violation(fmt::format("token {} of replay {} of {} was given twice", lease.token,
                          lease.task.replay, lease.task.run));
  }
}

void Verifier::complete(const Lease& lease) {
  const std::string body = to_json(result_for(lease));
  const std::optional<Endpoint::Answer> answer =
      endpoint_.insist("POST", path(lease, "complete"), body);
  if (!answer) return;
  if (answer->response.status == 409) {
    scene_.record.count("results that came too late");
    return;
  }
  if (answer->response.status != 200) {
    violation("a result was refused: " + answer->response.body);
    return;
  }
  scene_.record.count("results accepted");
  const int64_t other = scene_.record.of(number_of(lease), [&](RunRecord& record) {
    const auto [known, fresh] =
        record.results.try_emplace(lease.task.replay, lease.token, Fate::kAcknowledged);
    return fresh || known->second.first == lease.token ? 0 : known->second.first;
  });
  if (other != 0) {
    violation(fmt::format("two results of replay {} of {} were accepted, under tokens {} and {}",
                          lease.task.replay, lease.task.run, other, lease.token));
  }
  if (manners_ == Manners::kAsItIs && draw_.chance(0.1)) complete(lease);
}

// Uses the token before, as a verifier that lost this very replay does, or the next one.
void Verifier::complete_with_wrong_token(const Lease& lease) {
  ReplayResult result = result_for(lease);
  result.token += draw_.chance(0.5) ? 1 : -1;
  const std::optional<Endpoint::Answer> answer =
      endpoint_.insist("POST", path(lease, "complete"), to_json(result));
  if (answer && answer->response.status != 409) {
    violation(fmt::format("a result with token {} was answered {} where the lease has {}",
                          result.token, answer->response.status, lease.token));
  }
}

void Verifier::fail(const Lease& lease) {
  const LeaseFailure failure{lease.token, "the checkpoint could not be read", true};
  const std::optional<Endpoint::Answer> answer =
      endpoint_.insist("POST", path(lease, "fail"), to_json(failure));
  if (answer && answer->response.status != 200 && answer->response.status != 409) {
    violation("a failure was refused: " + answer->response.body);
  }
}

void Verifier::beat(const Lease& lease) {
  const std::optional<HttpResponse> answer =
      endpoint_.attempt("POST", path(lease, "heartbeat"), to_json(LeaseHeartbeat{lease.token, 1}));
  if (answer && answer->status != 200 && answer->status != 409) {
    violation("a heartbeat was refused: " + answer->body);
  }
}

bool Verifier::turn() {
  if (!forgotten_.empty() && draw_.chance(0.3)) {
    const Lease late = forgotten_.front();
    forgotten_.pop_front();
    complete(late);
  }
  const std::optional<HttpResponse> answer =
      endpoint_.attempt("POST", "/v1/leases?wait=0", to_json(LeaseRequest{name_, fingerprint()}));
  unsure_ = !answer;
  if (!answer || answer->status == 204) return false;
  if (answer->status != 200) {
    violation("no lease: " + answer->body);
    return false;
  }
  const Lease lease = from_json<Lease>(answer->body);
  note_grant(lease);
  if (manners_ == Manners::kAsItIs) {
    if (draw_.chance(0.1)) {
      forgotten_.push_back(lease);
      return true;
    }
    if (draw_.chance(0.2)) beat(lease);
    if (draw_.chance(0.05)) complete_with_wrong_token(lease);
    if (draw_.chance(0.05)) {
      fail(lease);
      return true;
    }
  }
  complete(lease);
  return true;
}

void Verifier::run() {
  while (!scene_.over && !scene_.late()) {
    if (!turn()) std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
}

}  // namespace gnomon::robustness

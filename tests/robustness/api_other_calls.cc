// What the fuzzer of the API says as a verifier, an operator, a reader, and as nobody in his mind.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <limits>

#include "protocol/json.h"
#include "protocol/precision_plan.h"
#include "tests/robustness/api_player.h"
#include "tests/support/sockets.h"
#include "tests/support/words.h"

namespace gnomon::robustness {
namespace {

std::string lease_path(int64_t lease, const char* what) {
  return fmt::format("/v1/leases/{}/{}", lease, what);
}

// In every way that a client can damage one.
std::string damaged(const std::string& body, Draw& draw) {
  switch (draw.between(0, 5)) {
    case 0:
      return body.substr(0, body.size() - static_cast<size_t>(draw.between(1, 20)));
    case 1:
      return "{\"nobody_knows_this\":1," + body.substr(1);
    case 2:
      return "null";
    case 3:
      return std::string(5000, '[');
    case 4:
      return body + body;
    default:
      return "{\"steps\":\"\xff\xfe\"}";
  }
}

}  // namespace

void ApiPlayer::lease(Draw& draw) {
  const std::string principal = draw.chance(0.5) ? "first" : "second";
  LeaseRequest request{"verifier:" + principal, fingerprint()};
  if (draw.chance(0.05)) request.verifier = "";
  if (draw.chance(0.05)) request.on_trainer = true;
  const HttpResponse response = ask(principal, "POST", "/v1/leases?wait=0", to_json(request));
  if (response.status == 200) {
    model_.leases.push_back({from_json<Lease>(response.body), principal, ""});
    ++counts_["leases"];
  }
}

void ApiPlayer::heartbeat(Draw& draw) {
  LeaseHeartbeat beat{draw.between(0, 3), draw.between(-1, 5)};
  int64_t lease = draw.between(0, 9);
  std::string principal = draw.chance(0.5) ? "first" : "second";
  if (!model_.leases.empty() && draw.chance(0.8)) {
    const ApiLease& known = model_.leases.back();
    lease = known.lease.lease;
    beat.token = known.lease.token;
    principal = known.principal;
  }
  ask(principal, "POST", lease_path(lease, "heartbeat"), to_json(beat));
}

// As a verifier does it, and now and then again: the same result is known then.
void ApiPlayer::complete(Draw& draw) {
  if (model_.leases.empty()) return lease(draw);
  ApiLease& held =
      draw.chance(0.8)
          ? model_.leases.back()
          : model_.leases[static_cast<size_t>(draw.between(0, std::ssize(model_.leases) - 1))];
  const ReplayTask& task = held.lease.task;
  ApiRun* run = model_.run_of(run_id_of(task.run));
  if (run == nullptr) return;
  const std::string target = lease_path(held.lease.lease, "complete");
  if (!held.result.empty()) {
    must(200, held.principal, "POST", target, held.result);
    return;
  }
  const auto end = run->steps.find({task.attempt, task.start_step + task.steps});
  ReplayResult result =
      result_of(run->scenario, task, end == run->steps.end() ? 1 : end->second.plan_version);
  result.token = held.lease.token;
  const std::string body = to_json(result);
  const HttpResponse response = ask(held.principal, "POST", target, body);
  if (response.status == 200) held.result = body;
  if (response.status != 200 && response.status != 409) {
    broken("a result is recorded, or its lease is over", lines_.back());
  }
  if (response.status == 200) ++counts_["results"];
}

// Completes as somebody else, with another token or with other numbers. Whether a second result is
// refused is not checked here; that it does no harm is.
void ApiPlayer::complete_badly(Draw& draw) {
  if (model_.leases.empty()) return;
  const size_t at = static_cast<size_t>(draw.between(0, std::ssize(model_.leases) - 1));
  ApiLease& held = model_.leases[at];
  ApiRun* run = model_.run_of(run_id_of(held.lease.task.run));
  if (run == nullptr) return;
  const std::string target = lease_path(held.lease.lease, "complete");
  ReplayResult result = result_of(run->scenario, held.lease.task, 1);
  result.token = held.lease.token;
  std::string principal = held.principal;
  const int64_t how = draw.between(0, 6);
  if (how == 0) {
    result.token += draw.between(1, 3);
    must_refuse(principal, "POST", target, to_json(result));
    return;
  }
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static const std::array<double, 8> kNumbers = {kNan, kInfinity, -kInfinity, 1e308,
                                                 0,    -1,        1e-300,     -1e308};
  if (how == 1) principal = principal == "first" ? "second" : "first";
  if (how == 2) result.steps.clear();
  if (how == 3 && !result.steps.empty()) result.steps.back().step += 1;
  if (how == 4) result.replay_end_loss_bf16 = draw.one_of(kNumbers);
  if (how == 5) result.start_loss_bf16 = draw.one_of(kNumbers);
  if (how == 6 && !result.steps.empty()) {
    result.steps.back().loss = draw.one_of(kNumbers);
    result.gap_error = draw.one_of(kNumbers);
    if (draw.chance(0.3)) result.replay_seconds = draw.one_of(kNumbers);
    if (draw.chance(0.3)) result.heldout_tokens = -1;
  }
  const std::string body = to_json(result);
  const HttpResponse response = ask(principal, "POST", target, body);
  if (response.status == 200 && held.result.empty()) {
    held.result = body;
    held.principal = principal;
    ++counts_["results"];
  }
}

void ApiPlayer::fail(Draw& draw) {
  if (model_.leases.empty()) return;
  const ApiLease& held = model_.leases.back();
  const LeaseFailure failure{held.lease.token + (draw.chance(0.2) ? 1 : 0),
                             draw.chance(0.1) ? "" : "the checkpoint could not be read",
                             draw.chance(0.7)};
  ask(held.principal, "POST", lease_path(held.lease.lease, "fail"), to_json(failure));
}

void ApiPlayer::override_run(Draw& draw) {
  static const std::array<std::string, 9> kKinds = {"pause",   "resume",   "stop",
                                                    "silence", "set_plan", "checkpoint_now",
                                                    "mode",    "set_plan", "dance"};
  static const std::array<double, 6> kSeconds = {3600, 0, -1, 1e308, 0.01, 7776001};
  static const std::array<std::string, 4> kModes = {"observe", "advise", "enforce", "whatever"};
  ApiRun& run = drawn_known_run(draw);
  OverrideRequest request;
  request.kind = test::any_word(draw.one_of(kKinds));
  request.owner = draw.chance(0.05) ? "" : "operator";
  request.reason = fmt::format("because of {}", draw.word());
  const bool lasting =
      request.kind == "silence" || request.kind == "set_plan" || request.kind == "mode";
  if (lasting || draw.chance(0.1)) {
    request.expires_seconds = draw.chance(0.7) ? 3600 : draw.one_of(kSeconds);
  }
  if (request.kind == "mode") request.mode = test::any_word(draw.one_of(kModes));
  if (request.kind == "set_plan") {
    request.plan = draw.chance(0.2) ? "no plan" : PrecisionPlan::bf16().to_toml();
  }
  const HttpResponse response =
      ask("operator", "POST", run.path() + "/overrides", to_json(request));
  if (response.status == 200) run.overrides.insert(request.reason);
}

void ApiPlayer::policy(Draw& draw) {
  ApiRun& run = drawn_known_run(draw);
  const std::string now = must(200, "reader", "GET", run.path() + "/policy").body;
  std::string text = now;
  const int64_t how = draw.between(0, 9);
  if (how < 6) text += fmt::format("# the same, {}\n", draw.word());
  if (how == 6) text = "[window]\nevery = 10\nsteps = 5\n";
  if (how == 7) text = "[window]\nevery = -3\n";
  if (how == 8) text = "nonsense";
  if (how == 9) text = "";
  if (draw.chance(0.3)) {
    ask("operator", "POST", "/v1/policy/check", text);
    return;
  }
  const HttpResponse response = ask("operator", "PUT", run.path() + "/policy", text);
  if (response.status == 200 && how >= 6) run.policy_changed = true;
  if (response.status >= 400 && how < 6) broken("a good policy is accepted", lines_.back());
}

void ApiPlayer::end_run(Draw& draw) {
  ApiRun& run = drawn_known_run(draw);
  const EndRequest request{draw.chance(0.1) ? "" : "operator", "it is gone"};
  const HttpResponse response = ask("operator", "POST", run.path() + "/end", to_json(request));
  if (response.status != 204) return;
  if (run.life == "completed" || run.life == "stopped") {
    broken("a run ends once", fmt::format("it was {}: {}", run.life, lines_.back()));
  }
  run.life = "failed";
}

void ApiPlayer::delete_run(Draw& draw) {
  ApiRun& run = drawn_known_run(draw);
  if (run.life == "live") {
    must_refuse("admin", "DELETE", run.path(), "");
    return;
  }
  const std::string path = run.path();
  must(204, "admin", "DELETE", path);
  must(404, "reader", "GET", path);
  run.forget();
}

void ApiPlayer::read_anything(Draw& draw) {
  static const std::array<std::string, 16> kLists = {
      "/steps",     "/checkpoints", "/windows",       "/decisions",
      "/plans",     "/replays",     "/shadow",        "/notices",
      "/overrides", "/audit",       "/layers",        "/directives",
      "/economics", "/statistics",  "/device_health", ""};
  static const std::array<std::string, 9> kOthers = {"/metrics",
                                                     "/livez",
                                                     "/version",
                                                     "/openapi.json",
                                                     "/v1/audit",
                                                     "/v1/runs?limit=1",
                                                     "/v1/notifications",
                                                     "/v1/runs?state=live",
                                                     "/v1/runs?name=scenario-1"};
  static const std::array<std::string, 10> kQuestions = {
      "",           "?limit=1", "?limit=0",        "?from=-1",     "?from=9223372036854775807",
      "?after=1.1", "?what=1",  "?every=7&from=3", "?attempt=999", "?from=99999999999999999999"};
  if (draw.chance(0.3)) {
    must(200, draw.chance(0.5) ? "reader" : "admin", "GET", draw.one_of(kOthers));
    return;
  }
  ApiRun& run = drawn_known_run(draw);
  const std::string& question = draw.one_of(kQuestions);
  const std::string target = run.path() + draw.one_of(kLists) + question;
  question.empty() ? must(200, "reader", "GET", target) : ask("reader", "GET", target);
  if (draw.chance(0.1)) ask("reader", "GET", fmt::format("/v1/runs/run-{}", draw.between(-2, 99)));
}

// The stream from somewhere on: each event follows the one before it.
void ApiPlayer::follow_events(Draw& draw) {
  const FileDescriptor socket = test::connect_to(daemon_->port());
  const int64_t after = draw.chance(0.8) ? 0 : draw.between(0, 100'000);
  std::string head = fmt::format("GET /v1/events?after={} HTTP/1.0\r\nHost: localhost\r\n", after);
  if (with_tokens_) head += fmt::format("Authorization: Bearer {}\r\n", secrets_.at("reader"));
  lines_.push_back(fmt::format("reader: GET /v1/events?after={}", after));
  if (!test::send_all(socket.get(), head + "\r\n")) return;
  std::string text;
  bool ended = false;
  for (int quiet = 0; quiet < 2 && !ended && text.size() < (1 << 20);) {
    const std::string more = test::receive(socket.get(), std::chrono::milliseconds(5), ended);
    if (more.empty()) ++quiet;
    text += more;
  }
  if (text.starts_with("HTTP/1.1 5") || text.starts_with("HTTP/1.0 5")) {
    broken("no GET is a 5xx", fmt::format("{} → {}", lines_.back(), text));
  }
  int64_t last = after;
  for (size_t at = text.find("\nid: "); at != std::string::npos; at = text.find("\nid: ", at + 1)) {
    const int64_t id = std::stoll(text.substr(at + 5, 20));
    if (id > last + 1 || id < last) {
      broken("the stream has no gap", fmt::format("event {} follows event {}", id, last));
    }
    last = id;
  }
}

void ApiPlayer::back_up(Draw&) {
  const HttpResponse response = ask("admin", "POST", "/v1/backups", "{}");
  if (response.status != 200) broken("a backup is made", lines_.back());
}

void ApiPlayer::damaged_body(Draw& draw) {
  ApiRun& run = drawn_known_run(draw);
  const int64_t attempt = std::max<int64_t>(run.newest_attempt(), 1);
  const std::array<std::tuple<std::string, std::string, std::string>, 6> bodies = {{
      {"trainer", "/v1/runs", to_json(registration_of(run.scenario))},
      {"trainer", run.path() + "/steps",
       to_json(StepBatch{{step_of(run.scenario, attempt, 1, 1)}})},
      {"trainer", run.path() + "/checkpoints", to_json(checkpoint_of(run.scenario, attempt, 1, 1))},
      {"trainer", run.path() + "/finished", to_json(finish_of(run.scenario, "stopped", 1))},
      {"operator", run.path() + "/overrides", to_json(OverrideRequest{})},
      {"first", "/v1/leases/1/complete", to_json(ReplayResult{})},
  }};
  const auto& [principal, target, body] = draw.one_of(bodies);
  must_refuse(principal, "POST", target, damaged(body, draw));
}

}  // namespace gnomon::robustness

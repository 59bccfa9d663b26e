// Every message that the API's document has an example of is sent to a real daemon with each of its
// values replaced by ones that no run has: whatever happens, it is no server error, and the run
// goes on afterwards.
#include <fmt/format.h>

#include "tests/controller/api_fixture.h"
#include "tests/controller/openapi_document.h"

namespace gnomon {
namespace {

namespace json = boost::json;
using test::openapi;
using test::openapi_schema;

// Where in a document a value stands: "/steps/0/loss".
void collect_places(const json::value& value, const std::string& at,
                    std::vector<std::string>& places) {
  if (const json::object* object = value.if_object()) {
    for (const auto& [key, inner] : *object) {
      collect_places(inner, fmt::format("{}/{}", at, std::string(key)), places);
    }
  } else if (const json::array* array = value.if_array()) {
    for (size_t i = 0; i < array->size(); ++i) {
      collect_places((*array)[i], fmt::format("{}/{}", at, i), places);
    }
  }
  places.push_back(at);
}

// Values of the types that a place may have, and of others.
std::vector<json::value> hostile_values() {
  std::vector<json::value> values;
  for (const char* text : {"9223372036854775807",
                           "-9223372036854775808",
                           "18446744073709551615",
                           "0",
                           "-1",
                           "1000000000000",
                           "1e308",
                           "-1e308",
                           "5e-324",
                           R"("NaN")",
                           R"("Infinity")",
                           R"("-Infinity")",
                           R"("")",
                           R"("a\u0000b")",
                           R"("\ud83d\udca5 \u202e")",
                           R"("version = 9223372036854775807\n")",
                           "null",
                           "true",
                           "[]",
                           "{}",
                           "[[[]]]"}) {
    values.push_back(json::parse(text));
  }
  values.emplace_back(std::string(200, 'x').c_str());
  values.emplace_back(std::string(300, 'x').c_str());
  return values;
}

class HostileValuesTest : public ApiTest {
 protected:
  HostileValuesTest() {
    trainer.begin(long_registration("test"));
    trainer.train(1, 20);
    provoke_directive(trainer, verifier);
    other.begin(long_registration("other"));
    other.train(1, 5);
    verifier.lease();
  }
  // Steps that are far from each other are within its length.
  static RunRegistration long_registration(const std::string& name) {
    RunRegistration registration = test_registration(name, "1");
    registration.total_steps = 3'000'000;
    return registration;
  }
  // The example of a message, fitted to the runs that are there.
  static json::value example(const std::string& message) {
    json::value made = openapi_schema(message).at("example");
    if (message == "StepBatch") {
      made.as_object()["steps"].as_array()[0].as_object()["device_health"] =
          openapi_schema("DeviceHealth").at("example");
    }
    if (message == "RunRegistration") {
      made.as_object()["faults"] = {
          {{"kind", "k"}, {"site", "lm_head"}, {"start_step", 1}, {"end_step", 0}}};
      made.as_object()["last_directive"] = 0;
      made.as_object()["newest_plan_version"] = 0;
    }
    if (message == "ReplayResult") {
      made.as_object()["heldout_tokens"] = 1;
      made.as_object()["gap_error"] = 0.1;
      made.as_object()["scores"] = {
          {{"site", "lm_head"}, {"phi", 0.1}, {"psi", 0.1}, {"sqnr_db", 1}}};
    }
    return made;
  }
  // Sends the message once for each value of it and each hostile one, in a form that without it
  // would be taken: `fit` makes it new before each.
  void send_all(const std::function<std::string(json::object&)>& fit, const std::string& message) {
    std::vector<std::string> places;
    collect_places(example(message), "", places);
    for (const std::string& place : places) {
      if (place.empty()) continue;
      for (const json::value& hostile : hostile_values()) {
        json::value body = example(message);
        const std::string path = fit(body.as_object());
        body.at_pointer(place) = hostile;
        const HttpResponse answer = client.request("POST", path, json::serialize(body));
        ++statuses[answer.status];
        if (answer.status == 200 && !path.ends_with("/heartbeat")) lease.reset();
        EXPECT_LT(answer.status, 500)
            << path << " " << place << " = " << json::serialize(hostile) << "\n"
            << answer.body;
      }
    }
  }
  void send_all(const std::string& path, const std::string& message) {
    send_all([&](json::object&) { return path; }, message);
  }
  // An attempt that follows the newest one; steps and checkpoints that follow all others.
  std::string fit_attempt(const std::string& base, json::object& body) {
    body["attempt"] = get(base).at("attempt").as_int64() + 1;
    return base + "/attempts";
  }
  std::string fit_steps(const std::string& base, json::object& body) {
    for (json::value& step : body["steps"].as_array()) step.as_object()["step"] = ++fresh;
    return base + "/steps";
  }
  std::string fit_step(const std::string& base, const char* what, json::object& body) {
    body["step"] = ++fresh;
    return base + what;
  }
  // A lease that is held, and the first of the steps that it asks for.
  std::string fit_lease(const char* what, json::object& body) {
    if (!lease) lease = verifier.lease();
    if (!lease) {
      FakeTrainer another(daemon.url());
      another.begin(test_registration(fmt::format("leased-{}", ++fresh), "1"));
      another.train(1, 5);
      lease = verifier.lease().value();
    }
    body["token"] = lease->token;
    if (json::value* steps = body.if_contains("steps")) {
      steps->as_array()[0].as_object()["step"] = lease->task.start_step + 1;
    }
    return fmt::format("/v1/leases/{}/{}", lease->lease, what);
  }
  // Every view of every run.
  void look_at_everything() {
    for (const auto& [path, item] : openapi().at("paths").as_object()) {
      std::string target(path);
      if (!item.as_object().contains("get") || target == "/v1/events") continue;
      for (const char* run : {"1", "2"}) {
        std::string of_run = target;
        if (const size_t at = of_run.find("{run}"); at != std::string::npos) {
          of_run.replace(at, 5, run);
        }
        const HttpResponse answer = client.request("GET", of_run);
        EXPECT_EQ(answer.status, 200) << of_run << "\n" << answer.body;
      }
    }
  }
  FakeTrainer trainer{daemon.url()};
  FakeTrainer other{daemon.url()};
  FakeVerifier verifier{daemon.url()};
  HttpClient client = daemon.client();
  std::map<int, int> statuses;
  int64_t fresh = 1000;
  std::optional<Lease> lease;  // that is held
};

TEST_F(HostileValuesTest, OfVerifiersAreNoServerErrors) {
  send_all([&](json::object& body) { return fit_lease("heartbeat", body); }, "LeaseHeartbeat");
  send_all([&](json::object& body) { return fit_lease("complete", body); }, "ReplayResult");
  send_all([&](json::object& body) { return fit_lease("fail", body); }, "LeaseFailure");
  send_all("/v1/leases", "LeaseRequest");
  EXPECT_GT(statuses[200], 100) << "nothing was let through: the test has lost its way";
  look_at_everything();
}

TEST_F(HostileValuesTest, OfTrainersAreNoServerErrorsAndPoisonNoRun) {
  for (const std::string base : {"/v1/runs/run-1", "/v1/runs/run-2"}) {
    send_all([&](json::object& body) { return fit_steps(base, body); }, "StepBatch");
    send_all([&](json::object& body) { return fit_step(base, "/checkpoints", body); },
             "CheckpointReport");
    send_all([&](json::object& body) { return fit_step(base, "/notices", body); }, "TrainerNotice");
    send_all([&](json::object& body) { return fit_step(base, "/statistics", body); },
             "StatisticsReport");
    send_all(base + "/directives/1/ack", "DirectiveAck");
    send_all(base + "/overrides", "OverrideRequest");
    send_all([&](json::object& body) { return fit_attempt(base, body); }, "AttemptStart");
  }
  send_all(
      [&](json::object& body) {
        body["name"] = fmt::format("new-{}", ++fresh);
        return std::string("/v1/runs");
      },
      "RunRegistration");
  EXPECT_GT(statuses[200], 200) << "nothing was let through: the test has lost its way";
  look_at_everything();
  // And life goes on.
  for (const std::string base : {"/v1/runs/run-1", "/v1/runs/run-2"}) {
    const int64_t attempt = get(base).at("attempt").as_int64() + 1;
    client.checked("POST", base + "/attempts",
                   to_json(AttemptStart{attempt, 2'000'000, "restart", 1, 9.0}));
    client.checked("POST", base + "/steps", to_json(StepBatch{{test_step(2'000'001, attempt)}}));
    client.checked("POST", base + "/checkpoints", to_json(test_checkpoint(2'000'001, attempt)));
  }
  send_all("/v1/runs/run-2/finished", "RunFinished");
  look_at_everything();
  daemon.kill();
  daemon.start_again();
  look_at_everything();
}

}  // namespace
}  // namespace gnomon

// Tokens that are for some runs alone (docs/security.md, 2a), with a real daemon.
#include <gmock/gmock.h>

#include "tests/controller/openapi_document.h"
#include "tests/controller/security_fixture.h"

namespace gnomon {
namespace {

using test::eventually;
using ::testing::HasSubstr;

using RunScopeTest = SecurityTest;

// Every operation that changes a run, and what has a run in its body.
TEST_F(RunScopeTest, ATokenForSomeRunsChangesNoOther) {
  begin();
  std::map<std::string, std::string> theirs;
  for (const char* role : {"trainer", "operator"}) {
    theirs[role] = add("their-" + std::string(role), *role_from_name(role), {"their-*"});
  }
  ASSERT_TRUE(eventually([&] { return ask("GET", "/v1/runs", theirs["operator"]).status == 200; }));
  int refused = 0;
  for (const auto& [pattern, item] : test::openapi().at("paths").as_object()) {
    std::string path = pattern;
    if (!path.starts_with("/v1/runs/{run}")) continue;
    path.replace(path.find("{run}"), 5, "1");
    if (const size_t at = path.find("{number}"); at != std::string::npos) path.replace(at, 8, "1");
    for (const auto& [method, operation] : item.as_object()) {
      if (method == "parameters" || method == "get") continue;
      for (const auto& each : operation.at("security").as_array()) {
        const std::string role(each.at("token").at(0).as_string());
        if (!theirs.contains(role)) continue;
        const Answer answer = ask(method == "post" ? "POST" : "PUT", path, theirs[role], "{}");
        EXPECT_EQ(answer.status, 403) << method << " " << path;
        EXPECT_THAT(answer.body, HasSubstr("their-*")) << method << " " << path;
        ++refused;
      }
    }
  }
  EXPECT_GE(refused, 9);
  EXPECT_EQ(ask("GET", "/v1/runs/1/directives?after=0", theirs["trainer"]).status, 403);
  RunRegistration registration = test_registration();
  EXPECT_EQ(ask("POST", "/v1/runs", theirs["trainer"], to_json(registration)).status, 403);
  LeaseRequest lease{"trainer:host:7", {}, "run-1", true};
  EXPECT_EQ(ask("POST", "/v1/leases", theirs["trainer"], to_json(lease)).status, 403);
  EXPECT_EQ(ask("POST", "/v1/leases", theirs["trainer"], to_json(LeaseRequest{"v", {}})).status,
            403)
      << "a verifier is given any run's replays";

  registration.name = "their-run";
  EXPECT_EQ(ask("POST", "/v1/runs", theirs["trainer"], to_json(registration)).status, 200);
  const std::string attempt = to_json(AttemptStart{1, 0, "start", 1, 1.0});
  EXPECT_EQ(ask("POST", "/v1/runs/2/attempts", theirs["trainer"], attempt).status, 200);
  EXPECT_EQ(ask("GET", "/v1/runs/2/directives?after=0", theirs["trainer"]).status, 200);
  lease.run = "run-2";
  EXPECT_EQ(ask("POST", "/v1/leases", theirs["trainer"], to_json(lease)).status, 204);
  EXPECT_EQ(ask("GET", "/v1/runs/1", theirs["trainer"]).status, 200) << "reading is for all";
  EXPECT_EQ(ask("POST", "/v1/runs/7/finished", theirs["trainer"], "{}").status, 400)
      << "a run that is not there is not theirs to know of";
}

TEST_F(RunScopeTest, ATokenForSomeRunsSpeaksOfNoLeaseOfOthers) {
  begin();
  const std::string theirs = add("theirs", Role::kTrainer, {"their-*"});
  ASSERT_TRUE(eventually([&] { return ask("GET", "/v1/runs", theirs).status == 200; }));
  StepBatch steps;
  for (int64_t step = 1; step <= 10; ++step) {
    StepReport& report = steps.steps.emplace_back();
    report.attempt = 1;
    report.step = step;
    report.plan_version = 1;
    report.loss = 2.0;
  }
  const std::string trainer = secrets["trainer"];
  for (const int64_t step : {5, 10}) {
    CheckpointReport checkpoint;
    checkpoint.attempt = 1;
    checkpoint.step = step;
    checkpoint.uri = fmt::format("/data/step-{}", step);
    ask("POST", "/v1/runs/1/checkpoints", trainer, to_json(checkpoint));
    if (step == 5) {
      ASSERT_EQ(ask("POST", "/v1/runs/1/steps", trainer, to_json(steps)).status, 200);
    }
  }
  const Answer granted =
      ask("POST", "/v1/leases?wait=5s", secrets["verifier"], to_json(LeaseRequest{"v", {}}));
  ASSERT_EQ(granted.status, 200) << granted.body;
  const auto lease = from_json<Lease>(granted.body);
  const std::string path = fmt::format("/v1/leases/{}", lease.lease);
  const std::string beat = to_json(LeaseHeartbeat{lease.token, 1});
  EXPECT_EQ(ask("POST", path + "/heartbeat", theirs, beat).status, 403);
  EXPECT_EQ(ask("POST", path + "/fail", theirs, to_json(LeaseFailure{lease.token, "x"})).status,
            403);
  EXPECT_EQ(ask("POST", path + "/heartbeat", secrets["verifier"], beat).status, 200);
}

}  // namespace
}  // namespace gnomon

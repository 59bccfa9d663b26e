// Overrides by hand: what is refused, what is taken, and where it is on record.
#include <fmt/format.h>

#include "protocol/precision_plan.h"
#include "tests/controller/api_fixture.h"
#include "tests/controller/raw_connection.h"
#include "tests/support/words.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;

class OverridesTest : public ApiTest {
 protected:
  OverridesTest() {
    trainer.begin();
    trainer.train(1, 3);
  }
  OverrideAccepted post(const OverrideRequest& request) {
    return from_json<OverrideAccepted>(
        trainer.client().checked("POST", trainer.path("/overrides"), to_json(request)).body);
  }
  Refused refused_override(const OverrideRequest& request) {
    return refused("POST", trainer.path("/overrides"), to_json(request));
  }
  static OverrideRequest pause() { return {"pause", "", "", "ann", "the disk is changed", 0}; }
  static OverrideRequest set_plan() {
    return {"set_plan", PrecisionPlan::bf16().to_toml(), "", "ann", "to be sure", 3600};
  }
  FakeTrainer trainer{daemon.url()};
};

TEST_F(OverridesTest, WhatIsNoOverrideIsRefusedWithWhatWouldBeAccepted) {
  struct Case {
    const char* what;
    std::function<void(OverrideRequest&)> change;
    const char* detail;
    const char* accepted;
  };
  const Case cases[] = {
      {"kind", [](auto& r) { r.kind = test::any_word("reboot"); }, "\"reboot\"",
       "\"pause\", \"resume\", \"stop\""},
      {"owner", [](auto& r) { r.owner = " "; }, "owner is \" \"", "who asks"},
      {"owner's length", [](auto& r) { r.owner = std::string(201, 'x'); }, "201 bytes", "200"},
      {"reason", [](auto& r) { r.reason = ""; }, "reason: found \"\"", "1 to 4096 bytes"},
      {"no expiry", [](auto& r) { r.expires_seconds = 0; }, "expires_seconds is 0", "above 0"},
      {"negative expiry", [](auto& r) { r.expires_seconds = -1; }, "found -1", "from 0 to 7776000"},
      {"long expiry", [](auto& r) { r.expires_seconds = 7'776'001; }, "7776001",
       "from 0 to 7776000"},
      {"expiry of a directive", [](auto& r) { r = pause(), r.expires_seconds = 5; },
       "expires_seconds is 5 for kind pause", "does not expire"},
      {"silence without expiry",
       [](auto& r) { r.kind = "silence", r.plan = "", r.expires_seconds = 0; }, "for kind silence",
       "above 0"},
      {"mode", [](auto& r) { r.kind = "mode", r.plan = "", r.mode = test::any_word("panic"); },
       "\"panic\"", "\"observe\", \"advise\", \"enforce\""},
      {"a mode for a plan", [](auto& r) { r.mode = "observe"; }, "observe", "kind mode only"},
      {"no plan", [](auto& r) { r.plan = ""; }, "plan is empty", "BF16"},
      {"a plan for pause", [](auto& r) { r.kind = "pause", r.expires_seconds = 0; },
       "a plan is given for kind pause", "set_plan only"},
      {"a plan that is no TOML", [](auto& r) { r.plan = "version = 1\n[[rule"; }, "plan:2", ""},
      {"a plan with an unknown key", [](auto& r) { r.plan = "version = 1\nversoin = 2\n"; },
       "plan:2", ""},
      {"a plan for unknown sites",
       [](auto& r) {
         r.plan = "version = 1\n[[rule]]\nmatch = \"model.layers.9.*\"\nfprop = \"fp8\"\n";
       },
       "model.layers.9.*", ""},
  };
  for (const Case& each : cases) {
    OverrideRequest request = set_plan();
    each.change(request);
    Refused refusal = refused_override(request);
    EXPECT_EQ(refusal.status, 400) << each.what;
    EXPECT_THAT(refusal.detail, HasSubstr(each.detail)) << each.what;
    EXPECT_THAT(refusal.accepted, HasSubstr(each.accepted)) << each.what;
  }
  EXPECT_TRUE(get(trainer.path("/overrides")).as_array().empty());
  EXPECT_TRUE(get(trainer.path("/audit")).as_array().empty());
  EXPECT_EQ(refused("POST", "/v1/runs/run-99/overrides", to_json(pause())).status, 404);
  EXPECT_EQ(refused("GET", "/v1/runs/run-99/overrides").status, 404);
}

TEST_F(OverridesTest, APauseIsADirectiveADecisionARowAnAuditAndAnEvent) {
  RawConnection stream(daemon.port());
  stream.send("GET /v1/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  stream.read_until("event: run");
  OverrideAccepted accepted = post(pause());
  EXPECT_EQ(accepted.directive, 1);
  EXPECT_GT(accepted.decision, 0);
  EXPECT_EQ(accepted.expires_at, 0);
  DirectiveList list = trainer.poll(0);
  ASSERT_EQ(list.directives.size(), 1u);
  EXPECT_EQ(list.directives[0].kind, "pause");
  boost::json::value row = get(trainer.path("/overrides")).at(0);
  EXPECT_EQ(row.at("kind").as_string(), "pause");
  EXPECT_EQ(row.at("owner").as_string(), "ann");
  EXPECT_EQ(row.at("reason").as_string(), "the disk is changed");
  EXPECT_EQ(row.at("decision").as_int64(), accepted.decision);
  EXPECT_EQ(row.at("directive").as_int64(), 1);
  EXPECT_TRUE(row.at("expires_at").is_null());
  boost::json::value audit = get(trainer.path("/audit")).at(0);
  EXPECT_EQ(audit.at("what").as_string(), "override");
  EXPECT_EQ(audit.at("detail").as_string(), "pause by ann: the disk is changed");
  boost::json::value decision =
      get(fmt::format("{}?from={}", trainer.path("/decisions"), accepted.decision)).at(0);
  EXPECT_EQ(decision.at("kind").as_string(), "override");
  EXPECT_EQ(metric("gnomon_run_decisions_total{kind=\"override\",run=\"test/1\"}"), 1);
  EXPECT_THAT(stream.read_until("event: override"), HasSubstr("event: override"));
}

TEST_F(OverridesTest, APlanByHandIsIssuedUnderItsOwnVersionUntilItsExpiry) {
  OverrideAccepted accepted = post(set_plan());
  EXPECT_GT(accepted.expires_at, 1e9);
  DirectiveList list = trainer.poll(0);
  ASSERT_EQ(list.directives.size(), 1u);
  EXPECT_EQ(list.directives[0].kind, "set_plan");
  int64_t version = list.directives[0].plan_version;
  EXPECT_GT(version, 1);
  EXPECT_EQ(get(fmt::format("{}?from={}", trainer.path("/plans"), version)).as_array().size(), 1u);
  EXPECT_NEAR(get(trainer.path("/overrides")).at(0).at("expires_at").as_double(),
              accepted.expires_at, 1e-3);
}

TEST_F(OverridesTest, WhatMakesNoSenseIsA409WithTheReason) {
  trainer.client().checked("POST", trainer.path("/finished"),
                           to_json(RunFinished{"completed", 3, 3.5, 1, 1}));
  Refused refusal = refused_override(pause());
  EXPECT_EQ(refusal.status, 409);
  EXPECT_FALSE(refusal.detail.empty());
  EXPECT_TRUE(get(trainer.path("/overrides")).as_array().empty());
}

TEST_F(OverridesTest, OverridesOutliveTheDaemonThatTookThem) {
  post(pause());
  std::string before = daemon.client().checked("GET", trainer.path("/overrides")).body;
  daemon.kill();
  daemon.start();
  EXPECT_EQ(daemon.client().checked("GET", trainer.path("/overrides")).body, before);
  trainer.connect(daemon.url());
  EXPECT_EQ(trainer.poll(0).directives.size(), 1u);
}

}  // namespace
}  // namespace gnomon

// What is on record, as people and programs read it.
#include <fmt/format.h>

#include "base/files.h"
#include "tests/controller/api_fixture.h"
#include "tests/controller/raw_connection.h"

namespace gnomon {
namespace {

using test::DaemonProcess;
using ::testing::HasSubstr;

class ApiViewTest : public ApiTest {
 protected:
  ApiViewTest() {
    RunRegistration registration = test_registration();
    registration.faults.push_back({"stale_amax", "lm_head", 5, 0, "history stops"});
    trainer.begin(registration);
    trainer.train(1, 10);
  }
  FakeTrainer trainer{daemon.url()};
  FakeVerifier verifier{daemon.url()};
};

TEST_F(ApiViewTest, RunsAreListedAndShownByNameAndByNumber) {
  boost::json::value runs = get("/v1/runs");
  ASSERT_EQ(runs.as_array().size(), 1u);
  EXPECT_EQ(runs.at(0).at("run").as_string(), "run-1");
  EXPECT_EQ(runs.at(0).at("step").as_int64(), 10);
  EXPECT_EQ(runs.at(0).at("phase").as_string(), "watching");
  boost::json::value run = get("/v1/runs/1");
  EXPECT_EQ(run.at("name").as_string(), "test");
  EXPECT_EQ(run.at("registration").at("layers").as_int64(), 2);
  EXPECT_EQ(run.at("faults").at(0).at("kind").as_string(), "stale_amax");
  EXPECT_EQ(run.at("attempts").as_array().size(), 1u);
  EXPECT_EQ(get("/v1/runs/run-1"), run);
}

TEST_F(ApiViewTest, StepsCanBeCutAndThinned) {
  EXPECT_EQ(get(trainer.path("/steps")).as_array().size(), 10u);
  EXPECT_EQ(get(trainer.path("/steps?from=3&to=6")).as_array().size(), 4u);
  boost::json::value thin = get(trainer.path("/steps?every=5"));
  ASSERT_EQ(thin.as_array().size(), 2u);
  EXPECT_EQ(thin.at(1).at("step").as_int64(), 10);
  EXPECT_EQ(thin.at(1).at("loss").as_double(), 3.99);
  EXPECT_TRUE(get(trainer.path("/steps?attempt=2")).as_array().empty());
}

TEST_F(ApiViewTest, CheckpointsPlansReplaysAndLayersAreListed) {
  EXPECT_EQ(get(trainer.path("/checkpoints")).as_array().size(), 3u);
  EXPECT_EQ(get(trainer.path("/plans")).at(0).at("version").as_int64(), 1);
  EXPECT_EQ(get(trainer.path("/replays")).at(0).at("arm").as_string(), "bf16");
  boost::json::value layers = get(trainer.path("/layers"));
  ASSERT_EQ(layers.as_array().size(), 5u);
  EXPECT_EQ(layers.at(0).at("layer").as_string(), "0");
  EXPECT_EQ(layers.at(4).at("site").as_string(), "lm_head");
  EXPECT_EQ(layers.at(4).at("wgrad").as_string(), "fp8");
  // A trainer that its controller has left plans for itself, with versions below zero.
  EXPECT_EQ(get(trainer.path("/layers?plan_version=-1")).as_array().size(), 5u);
}

// A case may take an hour, and people look at the page when it begins.
TEST_F(ApiViewTest, AnAlarmsWindowIsShownWhileItsCaseGoesOn) {
  const std::optional<Lease> lease = verifier.lease();
  ASSERT_TRUE(lease);
  verifier.complete(*lease, 0.2);
  const auto check = [&] {
    const boost::json::value windows = get(trainer.path("/windows"));
    const boost::json::value& window = windows.at(0);
    EXPECT_EQ(window.at("state").as_string(), "open");
    EXPECT_TRUE(window.at("closed_at").is_null());
    EXPECT_NEAR(window.at("d_percent").as_double(), 100 * 0.2 / 3.7, 1e-9);
    EXPECT_NEAR(window.at("gap").as_double(), 0.2, 1e-9);
    EXPECT_EQ(window.at("rule").as_string(), "ceiling");
    EXPECT_NEAR(metric("gnomon_run_gap_ratio{run=\"test/1\"}"), 0.2 / 3.7, 1e-9);
    EXPECT_EQ(metric("gnomon_run_windows_total{outcome=\"alarm\",run=\"test/1\"}"), 0);
  };
  check();
  EXPECT_EQ(get("/v1/runs/1").at("phase").as_string(), "triage");
  daemon.kill();
  daemon.start();
  check();
}

TEST_F(ApiViewTest, DecisionsCarryTheirEvidenceAsJson) {
  provoke_directive(trainer, verifier);
  boost::json::value decisions = get(trainer.path("/decisions"));
  ASSERT_FALSE(decisions.as_array().empty());
  EXPECT_TRUE(decisions.at(0).at("evidence").is_object());
  EXPECT_TRUE(decisions.at(0).at("sites").is_array());
  EXPECT_FALSE(decisions.at(0).at("sentence").as_string().empty());
  EXPECT_GE(metric("gnomon_run_decisions_total{kind=\"alarm\",run=\"test/1\"}"), 1);
}

TEST_F(ApiViewTest, PoliciesAreCheckedShownAndReplaced) {
  HttpClient client = daemon.client();
  EXPECT_EQ(client.checked("GET", trainer.path("/policy")).body, test_policy());
  boost::json::value checked =
      boost::json::parse(client.checked("POST", "/v1/policy/check", "mode = \"observe\"\n").body);
  EXPECT_EQ(checked.at("mode").as_string(), "observe");
  client.checked("PUT", trainer.path("/policy"), "mode = \"advise\"\n");
  EXPECT_EQ(client.checked("GET", trainer.path("/policy")).body, "mode = \"advise\"\n");
  EXPECT_EQ(get("/v1/runs/1").at("mode").as_string(), "advise");
}

TEST_F(ApiViewTest, EventsStreamWhatIsRecordedAndGoOnWhereTheyWereCutOff) {
  RawConnection stream(daemon.port());
  stream.send("GET /v1/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  std::string first = stream.read_until("event: window\n");
  EXPECT_THAT(first, HasSubstr("text/event-stream"));
  EXPECT_THAT(first, HasSubstr("id: 1\nevent: run\n"));
  while (const std::optional<Lease> lease = verifier.lease()) verifier.complete(*lease, 0.001);
  EXPECT_THAT(stream.read_until("\"state\":\"quiet\""), HasSubstr("\"state\":\"quiet\""));
  stream.close();
  RawConnection again(daemon.port());
  again.send("GET /v1/events HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: 1\r\n\r\n");
  std::string rest = again.read_until("\"state\":\"quiet\"");
  EXPECT_THAT(rest, HasSubstr("id: 2\n"));
  EXPECT_THAT(rest, ::testing::Not(HasSubstr("id: 1\n")));
}

TEST_F(ApiViewTest, HealthAndVersionAreServed) {
  EXPECT_TRUE(get("/livez").at("live").as_bool());
  boost::json::value ready = get("/readyz");
  EXPECT_TRUE(ready.at("ready").as_bool());
  EXPECT_EQ(ready.at("checks").as_array().size(), 5u);
  EXPECT_EQ(get("/version").at("name").as_string(), "gnomond");
}

TEST_F(ApiViewTest, TheBuiltInPageIsServedWhereThereIsNoFolder) {
  HttpClient client = daemon.client();
  EXPECT_THAT(client.checked("GET", "/").body, HasSubstr("<h1>gnomond</h1>"));
}

TEST_F(ApiViewTest, EconomicsTellWhatTheRunCostsAndTheMetricsAgree) {
  verifier.complete(verifier.lease().value(), 0.001);
  boost::json::value economics = get(trainer.path("/economics"));
  EXPECT_EQ(economics.at("useful_steps").as_int64(), 10);
  EXPECT_EQ(economics.at("speedup_source").as_string(), "prior");
  EXPECT_EQ(economics.at("replays").as_int64(), 1);
  EXPECT_EQ(economics.at("verification_seconds").to_number<double>(), 2.0);
  // Ten steps of 0.25 seconds and one replay of 2, at the 1.3 that the policy states.
  EXPECT_NEAR(economics.at("net_speedup").to_number<double>(), 1.3 * 2.5 / 4.5, 1e-12);
  EXPECT_FALSE(economics.at("measured").as_bool());
  EXPECT_THAT(std::string(economics.at("sentence").as_string()), HasSubstr("not measured yet"));
  for (const boost::json::value& point : economics.at("points").as_array())
    EXPECT_FALSE(point.at("measured").as_bool());
  // What is assumed is no metric.
  EXPECT_EQ(metric("gnomon_run_net_speedup_ratio{run=\"test/1\"}"), -1);
  EXPECT_NEAR(metric("gnomon_run_verification_ratio{run=\"test/1\"}"), 2.0 / 4.5, 1e-9);
  EXPECT_EQ(metric("gnomon_run_speedup_ratio{run=\"test/1\"}"), -1);
  EXPECT_EQ(metric("gnomon_run_steps_lost{run=\"test/1\"}"), 0);
  EXPECT_NEAR(metric("gnomon_run_hazard_per_step{run=\"test/1\"}"), 0.5 / 10010, 1e-12);
  EXPECT_EQ(refused("GET", "/v1/runs/9/economics").status, 404);
}

// Ten steps in windows of five, and a verifier that has answered nothing.
TEST_F(ApiViewTest, TheVerdictIsThatOfTheMomentAndOutlivesARestart) {
  const auto shown = [&] {
    boost::json::value run = get(trainer.path(""));
    boost::json::value listed = get("/v1/runs").as_array().at(0);
    for (const char* member : {"verdict", "verdict_sentence", "verdict_since"})
      EXPECT_EQ(run.at(member), listed.at(member)) << member;
    return run;
  };
  boost::json::value before = shown();
  EXPECT_EQ(before.at("verdict").as_string(), "unverified");
  EXPECT_THAT(std::string(before.at("verdict_sentence").as_string()),
              HasSubstr("10 steps since step 0 without a measured window"));
  EXPECT_NEAR(before.at("verdict_since").to_number<double>(),
              before.at("reported_at").to_number<double>(), 1);
  EXPECT_EQ(metric("gnomon_run_verdict{run=\"test/1\",verdict=\"unverified\"}"), 1);
  EXPECT_EQ(metric("gnomon_run_verdict{run=\"test/1\",verdict=\"good\"}"), 0);
  EXPECT_EQ(metric("gnomon_run_verification_lag_steps{run=\"test/1\"}"), 10);
  daemon.kill();
  daemon.start_again();
  EXPECT_EQ(shown().at("verdict_since"), before.at("verdict_since"));
  EXPECT_EQ(shown().at("verdict_sentence"), before.at("verdict_sentence"));
  EXPECT_EQ(metric("gnomon_run_verdict{run=\"test/1\",verdict=\"unverified\"}"), 1);
  FakeVerifier again(daemon.url());
  while (std::optional<Lease> lease = again.lease()) again.complete(*lease, 0.001);
  EXPECT_EQ(shown().at("verdict").as_string(), "good") << shown().at("verdict_sentence");
  EXPECT_EQ(shown().at("verification_lag_steps").as_int64(), 0);
  EXPECT_EQ(metric("gnomon_run_verdict{run=\"test/1\",verdict=\"good\"}"), 1);
  FakeTrainer(daemon.url())
      .client()
      .checked("POST", trainer.path("/finished"), to_json(RunFinished{"failed", 10, 3, 1, 1}));
  EXPECT_EQ(shown().at("verdict").as_string(), "ended");
  EXPECT_EQ(metric("gnomon_run_verdict{run=\"test/1\",verdict=\"ended\"}"), 1);
  EXPECT_EQ(metric("gnomon_run_verdict{run=\"test/1\",verdict=\"good\"}"), 0);
  daemon.kill();
  daemon.start_again();
  EXPECT_EQ(shown().at("verdict").as_string(), "ended");
  EXPECT_EQ(metric("gnomon_run_verdict{run=\"test/1\",verdict=\"ended\"}"), 1);
}

TEST_F(ApiViewTest, EconomicsOutliveARestart) {
  verifier.complete(verifier.lease().value(), 0.001);
  boost::json::value before = get(trainer.path("/economics"));
  daemon.kill();
  daemon.start_again();
  EXPECT_EQ(get(trainer.path("/economics")), before);
  EXPECT_EQ(metric("gnomon_run_net_speedup_ratio{run=\"test/1\"}"), -1);
}

class WebRootTest : public ::testing::Test {};

TEST_F(WebRootTest, FilesOfTheWebRootAreServedAndNothingOutsideOfIt) {
  DaemonProcess daemon({"--web-root", std::filesystem::temp_directory_path().string()});
  std::filesystem::path root = daemon.folder() / "web";
  std::filesystem::create_directories(root / "js");
  write_file_atomically(root / "index.html", "<p>page</p>");
  write_file_atomically(root / "js/app.js", "let x;");
  write_file_atomically(daemon.folder() / "secret", "secret");
  std::filesystem::create_symlink(daemon.folder() / "secret", root / "link");
  DaemonProcess served({"--web-root", root.string()});
  served.start();
  HttpClient client = served.client();
  EXPECT_EQ(client.checked("GET", "/").body, "<p>page</p>");
  EXPECT_EQ(client.checked("GET", "/js/app.js").body, "let x;");
  for (const char* path :
       {"/../secret", "/js/../../secret", "/%2e%2e/secret", "/link", "/none.html", "/js"}) {
    EXPECT_EQ(client.request("GET", path).status, 404) << path;
  }
  RawConnection raw(served.port());
  raw.send("GET /js/app.js HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(raw.read_until("let x;"), HasSubstr("text/javascript"));
}

}  // namespace
}  // namespace gnomon

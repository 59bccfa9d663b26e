// What trainers and verifiers do, over HTTP against the real daemon.
#include <fmt/format.h>

#include <cmath>
#include <future>
#include <limits>

#include "tests/controller/api_fixture.h"
#include "tests/controller/raw_connection.h"

namespace gnomon {
namespace {

using test::eventually;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class ApiTrainerTest : public ApiTest {
 protected:
  FakeTrainer trainer{daemon.url()};
  FakeVerifier verifier{daemon.url()};
};

TEST_F(ApiTrainerTest, RegisteringTwiceGivesTheSameRun) {
  HttpClient client = daemon.client();
  std::string body = to_json(test_registration());
  RunRegistered first = from_json<RunRegistered>(client.checked("POST", "/v1/runs", body).body);
  RunRegistered second = from_json<RunRegistered>(client.checked("POST", "/v1/runs", body).body);
  EXPECT_EQ(first.run, "run-1");
  EXPECT_EQ(second.run, first.run);
  EXPECT_EQ(first.mode, "enforce");
  EXPECT_EQ(first.on_loss, "continue");
  EXPECT_EQ(first.grace_seconds, 60);
  client.checked("PUT", "/v1/runs/run-1/policy",
                 "[controller]\non_loss = \"pause\"\ngrace_seconds = 5.0\n");
  second = from_json<RunRegistered>(client.checked("POST", "/v1/runs", body).body);
  EXPECT_EQ(second.on_loss, "pause");
  EXPECT_EQ(second.grace_seconds, 5);
  RunRegistered other = from_json<RunRegistered>(
      client.checked("POST", "/v1/runs", to_json(test_registration("test", "2"))).body);
  EXPECT_EQ(other.run, "run-2");
}

TEST_F(ApiTrainerTest, StepsAreTakenOnceHoweverOftenTheyAreSent) {
  trainer.begin();
  ReportAck first = trainer.post_steps({{test_step(1), test_step(2)}});
  EXPECT_EQ(first.accepted, 2);
  EXPECT_EQ(first.repeated, 0);
  ReportAck second = trainer.post_steps({{test_step(2), test_step(3), test_step(3)}});
  EXPECT_EQ(second.accepted, 1);
  EXPECT_EQ(second.repeated, 2);
  EXPECT_EQ(get(trainer.path("/steps")).as_array().size(), 3u);
}

TEST_F(ApiTrainerTest, NonFiniteLossesPassThroughAndBack) {
  trainer.begin();
  StepReport step = test_step(1);
  step.loss = std::numeric_limits<double>::quiet_NaN();
  step.grad_norm = std::numeric_limits<double>::infinity();
  trainer.post_steps({{step}});
  EXPECT_EQ(trainer.post_steps({{step}}).repeated, 1) << "NaN is the same value as NaN";
  boost::json::value rows = get(trainer.path("/steps"));
  EXPECT_TRUE(rows.at(0).at("loss").is_null());
  EXPECT_EQ(rows.at(0).at("grad_norm").as_string(), "Infinity");
}

TEST_F(ApiTrainerTest, AStepWithOtherValuesIsRefusedAndNothingOfItsBatchIsTaken) {
  trainer.begin();
  trainer.post_steps({{test_step(1)}});
  StepReport other = test_step(1);
  other.loss = 3.25;
  Refused refusal = refused("POST", trainer.path("/steps"),
                            to_json(StepBatch{{test_step(2), other, test_step(3)}}));
  EXPECT_EQ(refusal.status, 409);
  EXPECT_THAT(refusal.detail, HasSubstr("attempt 1 step 1"));
  EXPECT_THAT(refusal.detail, HasSubstr("loss was 3.999 and now is 3.25"));
  EXPECT_EQ(get(trainer.path("/steps")).as_array().size(), 1u);
  boost::json::value audit = get(trainer.path("/audit"));
  ASSERT_EQ(audit.as_array().size(), 1u);
  EXPECT_EQ(audit.at(0).at("what").as_string(), "conflicting_step");
  // and the run goes on
  EXPECT_EQ(trainer.post_steps({{test_step(2)}}).accepted, 1);
}

TEST_F(ApiTrainerTest, EachMemberThatMakesAStepsIdentityIsCompared) {
  trainer.begin();
  trainer.post_steps({{test_step(1)}});
  std::vector<std::pair<std::string, std::function<void(StepReport&)>>> changes = {
      {"grad_norm",
       [](StepReport& step) { step.grad_norm = std::nextafter(*step.grad_norm, 1.0); }},
      {"weights_hash", [](StepReport& step) { step.weights_hash = "ffffffffffffffff"; }},
      {"plan_version", [](StepReport& step) { step.plan_version = 2; }}};
  for (const auto& [member, change] : changes) {
    StepReport step = test_step(1);
    change(step);
    Refused refusal = refused("POST", trainer.path("/steps"), to_json(StepBatch{{step}}));
    EXPECT_EQ(refusal.status, 409) << member;
    EXPECT_THAT(refusal.detail, HasSubstr(member));
  }
}

TEST_F(ApiTrainerTest, AttemptsAndCheckpointsAreIdempotentAndConflictsAreRefused) {
  trainer.begin();
  HttpClient client = daemon.client();
  AttemptStart attempt{1, 0, "start", 1, 9.0};
  EXPECT_EQ(
      from_json<ReportAck>(client.checked("POST", trainer.path("/attempts"), to_json(attempt)).body)
          .repeated,
      1);
  attempt.base_step = 5;
  EXPECT_EQ(refused("POST", trainer.path("/attempts"), to_json(attempt)).status, 409);
  attempt.attempt = 3;
  EXPECT_THAT(refused("POST", trainer.path("/attempts"), to_json(attempt)).accepted,
              HasSubstr("attempt 2"));
  CheckpointReport checkpoint = test_checkpoint(0);
  EXPECT_EQ(from_json<ReportAck>(
                client.checked("POST", trainer.path("/checkpoints"), to_json(checkpoint)).body)
                .repeated,
            1);
  checkpoint.manifest_hash = "other";
  EXPECT_THAT(refused("POST", trainer.path("/checkpoints"), to_json(checkpoint)).detail,
              HasSubstr("manifest_hash"));
}

TEST_F(ApiTrainerTest, ACheckpointOpensAWindowWhichProtectsItAndQueuesReplays) {
  trainer.begin();
  trainer.train(1, 4);
  EXPECT_FALSE(verifier.lease().has_value());
  ReportAck ack = trainer.post_steps({{test_step(5)}});
  HttpClient client = daemon.client();
  ack = from_json<ReportAck>(
      client.checked("POST", trainer.path("/checkpoints"), to_json(test_checkpoint(5))).body);
  EXPECT_THAT(ack.protected_checkpoints, ::testing::Contains("/checkpoints/attempt1/step0"));
  Lease lease = verifier.lease().value();
  EXPECT_EQ(lease.task.arm, "bf16");
  EXPECT_EQ(lease.task.start_step, 0);
  EXPECT_EQ(lease.task.steps, 5);
  EXPECT_EQ(lease.task.run, trainer.run);
  boost::json::value windows = get(trainer.path("/windows"));
  EXPECT_EQ(windows.at(0).at("state").as_string(), "open");
  EXPECT_EQ(metric("gnomon_leases_active"), 1);
}

TEST_F(ApiTrainerTest, AQuietWindowIsClosedAndVerifiesItsEnd) {
  trainer.begin();
  trainer.train(1, 5);
  verifier.complete_twice(verifier.lease().value(), 0.001);
  boost::json::value windows = get(trainer.path("/windows"));
  EXPECT_EQ(windows.at(0).at("state").as_string(), "quiet");
  EXPECT_NEAR(windows.at(0).at("gap").as_double(), 0.001, 1e-12);
  EXPECT_EQ(metric("gnomon_run_windows_total{outcome=\"quiet\",run=\"test/1\"}"), 1);
  EXPECT_EQ(metric("gnomon_run_verified_step{run=\"test/1\"}"), 5);
  EXPECT_EQ(metric("gnomon_run_verify_seconds_total{run=\"test/1\"}"), 4);
  EXPECT_NEAR(metric("gnomon_run_gap_ratio{run=\"test/1\"}"), 0.001 / 3.899, 1e-6);
  EXPECT_NEAR(metric("gnomon_run_paired_loss{run=\"test/1\"}") -
                  metric("gnomon_run_shadow_loss{run=\"test/1\"}"),
              0.001, 1e-5);
}

TEST_F(ApiTrainerTest, AnAlarmLeadsToADirectiveWhoseLifeIsOnRecord) {
  trainer.begin();
  trainer.train(1, 10);
  Directive directive = provoke_directive(trainer, verifier);
  EXPECT_EQ(directive.number, 1);
  EXPECT_EQ(directive.state, "delivered");
  EXPECT_FALSE(directive.reason.empty());
  EXPECT_EQ(trainer.ack(1, {"acknowledged", 1, 10, "", 0}).state, "acknowledged");
  EXPECT_EQ(trainer.ack(1, {"acknowledged", 1, 10, "", 0}).state, "acknowledged")
      << "a repeated ack";
  EXPECT_EQ(trainer.poll(0).directives.at(0).state, "acknowledged");
  EXPECT_TRUE(trainer.poll(1).directives.empty());
  EXPECT_EQ(trainer.ack(1, {"applied", 1, 10, "", 0}).state, "applied");
  EXPECT_EQ(trainer.ack(1, {"applied", 1, 10, "", 0}).state, "applied");
  EXPECT_TRUE(trainer.poll(0).directives.empty()) << "an ended directive is not delivered again";
  EXPECT_EQ(refused("POST", trainer.path("/directives/1/ack"),
                    to_json(DirectiveAck{"rejected", 1, 10, "no", 0}))
                .status,
            409);
  EXPECT_EQ(refused("POST", trainer.path("/directives/1/ack"),
                    to_json(DirectiveAck{"acknowledged", 1, 10, "", 0}))
                .status,
            409);
  boost::json::value row = get(trainer.path("/directives")).at(0);
  EXPECT_EQ(row.at("state").as_string(), "applied");
  for (const char* time : {"issued_at", "delivered_at", "acknowledged_at", "ended_at"}) {
    EXPECT_TRUE(row.at(time).is_double()) << time;
  }
  EXPECT_FALSE(get(trainer.path("/decisions")).as_array().empty());
}

TEST_F(ApiTrainerTest, ALongPollForWorkWakesAsSoonAsThereIsSome) {
  trainer.begin();
  trainer.train(1, 4);
  std::future<Clock::time_point> woken = std::async(std::launch::async, [&] {
    EXPECT_TRUE(verifier.lease("60").has_value());
    return Clock::now();
  });
  // The poll is waiting once the daemon has counted its connection's read; the order does not
  // matter for the result.
  EXPECT_EQ(woken.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  Clock::time_point reported = Clock::now();
  trainer.train(5, 5);
  EXPECT_LT(woken.get() - reported, std::chrono::seconds(2));
}

TEST_F(ApiTrainerTest, ALongPollForDirectivesWakesAsSoonAsThereIsOne) {
  trainer.begin();
  trainer.train(1, 10);
  std::future<DirectiveList> polled = std::async(std::launch::async, [&] {
    FakeTrainer poller(daemon.url());
    poller.run = trainer.run;
    return poller.poll(0, "60s");
  });
  while (polled.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    std::optional<Lease> lease = verifier.lease();
    if (!lease) {
      break;  // the core has what it needs
    }
    verifier.complete(*lease, 0.2);
  }
  ASSERT_EQ(polled.wait_for(std::chrono::seconds(5)), std::future_status::ready);
  EXPECT_EQ(polled.get().directives.size(), 1u);
}

TEST_F(ApiTrainerTest, ALongPollWithoutNewsEndsWithAnEmptyAnswer) {
  trainer.begin();
  Clock::time_point start = Clock::now();
  EXPECT_TRUE(trainer.poll(0, "0.2").directives.empty());
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(200));
  EXPECT_FALSE(verifier.lease("0.2").has_value());
}

TEST_F(ApiTrainerTest, AVerifierThatHangsUpWhileItWaitsGetsNoLease) {
  trainer.begin();
  trainer.train(1, 4);
  {
    RawConnection gone(daemon.port());
    std::string body = to_json(LeaseRequest{"gone:1", test_fingerprint()});
    gone.send(fmt::format(
        "POST /v1/leases?wait=60 HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}",
        body.size(), body));
  }
  trainer.train(5, 5);
  ASSERT_TRUE(eventually([&] { return verifier.lease("0").has_value(); }));
  EXPECT_EQ(metric("gnomon_leases_active"), 1);
}

TEST_F(ApiTrainerTest, TheNextVerifierGetsTheReplayOfOneThatHungUp) {
  trainer.begin();
  trainer.train(1, 4);
  auto gone = std::make_unique<RawConnection>(daemon.port());
  const std::string body = to_json(LeaseRequest{"gone:1", test_fingerprint()});
  gone->send(
      fmt::format("POST /v1/leases?wait=60 HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{}",
                  body.size(), body));
  auto waiting = std::async(std::launch::async, [&] { return verifier.lease("30"); });
  gone.reset();
  trainer.train(5, 5);
  ASSERT_EQ(waiting.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_TRUE(waiting.get().has_value());
}

TEST_F(ApiTrainerTest, AReplayWaitsForAVerifierWithItsRunsLabels) {
  trainer.begin();
  HttpClient client = daemon.client();
  const auto require_pool = [&](const std::string& pool) {
    std::string policy = test_policy();
    policy.insert(policy.find("attempts_max"), fmt::format("requires = [\"pool={}\"]\n", pool));
    client.checked("PUT", trainer.path("/policy"), policy);
  };
  require_pool("a*");
  trainer.train(1, 5);
  verifier.labels = {{"pool", "b7"}};
  EXPECT_FALSE(verifier.lease().has_value());
  EXPECT_TRUE(
      eventually([&] { return metric("gnomon_replays_unserved{reason=\"labels\"}") == 1; }));
  auto waiting = std::async(std::launch::async, [&] { return verifier.lease("30"); });
  require_pool("b?");
  ASSERT_EQ(waiting.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_TRUE(waiting.get().has_value());
  EXPECT_EQ(metric("gnomon_replays_queued"), 0);
  EXPECT_TRUE(
      eventually([&] { return metric("gnomon_replays_unserved{reason=\"labels\"}") == 0; }));
}

TEST_F(ApiTrainerTest, LabelsOutsideTheirBoundsAreRefused) {
  LeaseRequest request{"v:1", test_fingerprint()};
  request.labels = {{"Pool", "a"}};
  const Refused refusal = refused("POST", "/v1/leases", to_json(request));
  EXPECT_EQ(refusal.status, 400);
  EXPECT_THAT(refusal.detail, HasSubstr("\"Pool\""));
  EXPECT_THAT(refusal.accepted, HasSubstr("a key of 1 to 64 characters"));
}

TEST_F(ApiTrainerTest, LeasesMoveByHeartbeatFailureAndCompletion) {
  trainer.begin();
  trainer.train(1, 5);
  HttpClient client = daemon.client();
  Lease first = verifier.lease().value();
  client.checked("POST", fmt::format("/v1/leases/{}/heartbeat", first.lease),
                 to_json(LeaseHeartbeat{first.token, 2}));
  client.checked("POST", fmt::format("/v1/leases/{}/fail", first.lease),
                 to_json(LeaseFailure{first.token, "out of memory", true}));
  Lease second = verifier.lease().value();
  EXPECT_EQ(second.task.replay, first.task.replay);
  EXPECT_EQ(second.token, first.token + 1);
  verifier.complete(second, 0.0);
  verifier.complete(second, 0.0);
  EXPECT_EQ(metric("gnomon_leases_total{outcome=\"failed\"}"), 1);
  EXPECT_EQ(metric("gnomon_leases_total{outcome=\"completed\"}"), 1);
}

TEST_F(ApiTrainerTest, AFinishedRunIsOnRecordAndCanBeReportedAgain) {
  trainer.begin();
  trainer.train(1, 3);
  HttpClient client = daemon.client();
  RunFinished finished{"completed", 3, 3.5, 12.5, 0};
  client.checked("POST", trainer.path("/finished"), to_json(finished));
  EXPECT_EQ(from_json<ReportAck>(
                client.checked("POST", trainer.path("/finished"), to_json(finished)).body)
                .repeated,
            1);
  finished.outcome = "failed";
  EXPECT_EQ(refused("POST", trainer.path("/finished"), to_json(finished)).status, 409);
  boost::json::value run = get(trainer.path(""));
  EXPECT_EQ(run.at("state").as_string(), "completed");
  EXPECT_EQ(run.at("final_loss").as_double(), 3.5);
  EXPECT_EQ(run.at("phase").as_string(), "ended");
}

}  // namespace
}  // namespace gnomon

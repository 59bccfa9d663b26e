// Everything a client can get wrong: the status, and a problem document that says what, with which
// value.
#include <fmt/format.h>

#include "tests/controller/api_fixture.h"
#include "tests/controller/raw_connection.h"
#include "tests/support/words.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;

class ApiErrorTest : public ApiTest {
 protected:
  ApiErrorTest() { trainer.begin(); }
  // Sends `text` as it is and returns the whole answer.
  std::string raw(const std::string& text) {
    RawConnection connection(daemon.port());
    connection.send(text);
    return connection.read_until("\"accepted\":");
  }
  FakeTrainer trainer{daemon.url()};
};

TEST_F(ApiErrorTest, MalformedJsonNamesTheTrouble) {
  Refused refusal = refused("POST", "/v1/runs", "{\"name\": ");
  EXPECT_EQ(refusal.status, 400);
  EXPECT_FALSE(refusal.detail.empty());
}

TEST_F(ApiErrorTest, AWrongMemberIsNamedWithItsPath) {
  Refused refusal = refused("POST", trainer.path("/steps"), R"({"steps":[{"attempt":"one"}]})");
  EXPECT_EQ(refusal.status, 400);
  EXPECT_THAT(refusal.detail, HasSubstr("steps[0]"));
  EXPECT_EQ(refused("POST", trainer.path("/steps"), R"({"steps":[],"more":1})").status, 400);
}

// What the ledger cannot hold must not look like a fault that passes: the trainer would repeat it
// for ever.
TEST_F(ApiErrorTest, NumbersThatNoRunHasAreRefusedForGood) {
  StepReport step = test_step(1);
  step.learning_rate = std::numeric_limits<double>::quiet_NaN();
  Refused refusal = refused("POST", trainer.path("/steps"), to_json(StepBatch{{step}}));
  EXPECT_EQ(refusal.status, 400);
  EXPECT_THAT(refusal.detail, HasSubstr("learning_rate"));
  step = test_step(1);
  step.step_seconds = 1e308;  // two of these have no sum
  EXPECT_EQ(refused("POST", trainer.path("/steps"), to_json(StepBatch{{step}})).status, 400);
  step = test_step(1);
  step.step = INT64_MAX;
  EXPECT_EQ(refused("POST", trainer.path("/steps"), to_json(StepBatch{{step}})).status, 400);
  RunRegistration registration;
  registration.name = "huge";
  registration.checkpoint_every = INT64_MAX;
  refusal = refused("POST", "/v1/runs", to_json(registration));
  EXPECT_EQ(refusal.status, 400);
  EXPECT_THAT(refusal.detail, HasSubstr("checkpoint_every"));
  registration.checkpoint_every = 10;
  registration.last_directive = -1;
  refusal = refused("POST", "/v1/runs", to_json(registration));
  EXPECT_EQ(refusal.status, 400);
  EXPECT_THAT(refusal.detail, HasSubstr("last_directive"));
  AttemptStart attempt;
  attempt.attempt = 2;
  attempt.base_step = INT64_MAX;
  attempt.cause = "restart";
  EXPECT_EQ(refused("POST", trainer.path("/attempts"), to_json(attempt)).status, 400);
}

TEST_F(ApiErrorTest, APolicyNestedTooDeepIsRefusedAndTheDaemonLives) {
  std::string text = "a = ";
  for (int i = 0; i < 255; ++i) text += "{a=";
  text += '1';
  text.append(255, '}');
  EXPECT_EQ(refused("POST", "/v1/policy/check", text).status, 400);
  std::string dotted;
  for (int i = 0; i < 100'000; ++i) dotted += "a.";
  EXPECT_EQ(refused("POST", "/v1/policy/check", dotted + "a = 1").status, 400);
}

TEST_F(ApiErrorTest, UnknownRunsAre404OnEveryPath) {
  std::string batch = to_json(StepBatch{{test_step(1)}});
  EXPECT_EQ(refused("POST", "/v1/runs/run-99/steps", batch).status, 404);
  EXPECT_EQ(
      refused("POST", "/v1/runs/run-99/attempts", to_json(AttemptStart{.cause = "start"})).status,
      404);
  EXPECT_EQ(refused("POST", "/v1/runs/run-99/checkpoints", to_json(test_checkpoint(1))).status,
            404);
  EXPECT_EQ(
      refused("POST", "/v1/runs/run-99/finished", to_json(RunFinished{"completed", 1, 1, 1, 1}))
          .status,
      404);
  EXPECT_EQ(refused("POST", "/v1/runs/run-99/directives/1/ack",
                    to_json(DirectiveAck{"applied", 1, 1, "", 0}))
                .status,
            404);
  EXPECT_EQ(refused("PUT", "/v1/runs/run-99/policy", test_policy()).status, 404);
  for (const char* rest :
       {"", "/steps", "/checkpoints", "/windows", "/decisions", "/directives",
        "/directives?after=0", "/layers", "/plans", "/replays", "/policy", "/audit"}) {
    for (const char* run : {"run-99", "99", "nonsense", "run-0", "run-1x"}) {
      Refused refusal = refused("GET", fmt::format("/v1/runs/{}{}", run, rest));
      EXPECT_EQ(refusal.status, 404) << run << rest;
      EXPECT_THAT(refusal.detail, HasSubstr(run));
    }
  }
}

TEST_F(ApiErrorTest, AnUnknownAttemptIsRefused) {
  Refused refusal = refused("POST", trainer.path("/steps"), to_json(StepBatch{{test_step(1, 4)}}));
  EXPECT_EQ(refusal.status, 409);
  EXPECT_THAT(refusal.detail, HasSubstr("attempt 4"));
  EXPECT_EQ(refused("POST", trainer.path("/checkpoints"), to_json(test_checkpoint(5, 4))).status,
            409);
}

TEST_F(ApiErrorTest, ValuesOutOfRangeAreRefused) {
  StepReport step = test_step(0);
  EXPECT_EQ(refused("POST", trainer.path("/steps"), to_json(StepBatch{{step}})).status, 400);
  step = test_step(1);
  step.step_seconds = -1;
  EXPECT_THAT(refused("POST", trainer.path("/steps"), to_json(StepBatch{{step}})).detail,
              HasSubstr("step_seconds: found -1"));
  EXPECT_THAT(refused("POST", trainer.path("/attempts"),
                      to_json(AttemptStart{2, 0, test::any_word("whim"), 1, 0}))
                  .accepted,
              HasSubstr("rollback"));
  EXPECT_THAT(refused("POST", trainer.path("/finished"),
                      to_json(RunFinished{test::any_word("bored"), 1, 1, 1, 1}))
                  .accepted,
              HasSubstr("completed"));
  RunRegistration nameless = test_registration("", "1");
  EXPECT_EQ(refused("POST", "/v1/runs", to_json(nameless)).status, 400);
  RunRegistration planless = test_registration("other", "1");
  planless.base_plan = "version = 1\n[[rule]]\nmatch = \"model.layers.7.*\"\nfprop = \"fp8\"\n";
  EXPECT_THAT(refused("POST", "/v1/runs", to_json(planless)).detail, HasSubstr("model.layers.7.*"));
}

TEST_F(ApiErrorTest, AnotherModelUnderAKnownNameIsRefused) {
  RunRegistration other = test_registration();
  other.sites.pop_back();
  EXPECT_EQ(refused("POST", "/v1/runs", to_json(other)).status, 409);
}

TEST_F(ApiErrorTest, StaleAndUnknownLeasesAreRefused) {
  FakeVerifier verifier(daemon.url());
  trainer.train(1, 5);
  Lease lease = verifier.lease().value();
  std::string path = fmt::format("/v1/leases/{}", lease.lease);
  EXPECT_EQ(
      refused("POST", path + "/heartbeat", to_json(LeaseHeartbeat{lease.token + 1, 0})).status,
      409);
  EXPECT_EQ(refused("POST", "/v1/leases/99/heartbeat", to_json(LeaseHeartbeat{1, 0})).status, 404);
  EXPECT_EQ(refused("POST", "/v1/leases/x/heartbeat", to_json(LeaseHeartbeat{1, 0})).status, 404);
  verifier.client().checked("POST", path + "/fail",
                            to_json(LeaseFailure{lease.token, "tired", true}));
  EXPECT_EQ(refused("POST", path + "/complete", to_json(verifier.result(lease, 0))).status, 409);
  EXPECT_EQ(refused("POST", path + "/heartbeat", to_json(LeaseHeartbeat{lease.token, 0})).status,
            409);
  boost::json::value audit = get(trainer.path("/audit"));
  EXPECT_EQ(audit.as_array().size(), 3u);
  EXPECT_EQ(audit.at(0).at("what").as_string(), "stale_lease");
  LeaseRequest nameless{"", test_fingerprint()};
  EXPECT_EQ(refused("POST", "/v1/leases?wait=x", to_json(nameless)).status, 400);
}

// Two runs would be called by one name else: "a/b", "1" and "a", "b/1".
TEST_F(ApiErrorTest, ASlashInAJobIdIsRefusedAndOneInANameIsNot) {
  RunRegistration run = test_registration();
  run.job_id = "b/1";
  Refused refusal = refused("POST", "/v1/runs", to_json(run));
  EXPECT_EQ(refusal.status, 400);
  EXPECT_THAT(refusal.detail, HasSubstr("job_id"));
  run.name = "a/b";
  run.job_id = "1";
  daemon.client().checked("POST", "/v1/runs", to_json(run));
}

TEST_F(ApiErrorTest, TextsThatAreLongOrHaveControlCharactersAreRefusedByTheirPlace) {
  StepReport step = test_step(1);
  step.weights_hash = std::string(201, 'f');
  Refused refusal = refused("POST", trainer.path("/steps"), to_json(StepBatch{{step}}));
  EXPECT_EQ(refusal.status, 400);
  EXPECT_THAT(refusal.detail, HasSubstr("steps[0].weights_hash"));
  EXPECT_THAT(refusal.detail, HasSubstr("201 bytes"));
  RunRegistration run = test_registration();
  for (const char* text : {"a\nb", "a\x1b[2Jb",
                           "a\xc2\x9b"
                           "2Jb",
                           "a\xe2\x80\xae"
                           "b"}) {
    run.name = text;
    EXPECT_EQ(refused("POST", "/v1/runs", to_json(run)).status, 400) << text;
  }
  run = test_registration();
  run.fingerprint.device = std::string(300, 'x');
  EXPECT_THAT(refused("POST", "/v1/runs", to_json(run)).detail, HasSubstr("fingerprint.device"));
}

// The log is never trimmed, and the sender may repeat itself for months.
TEST_F(ApiErrorTest, ARepeatedErrorIsAuditedOnlySoOften) {
  trainer.post_steps({{test_step(1)}});
  StepReport other = test_step(1);
  other.loss = 3.25;
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(refused("POST", trainer.path("/steps"), to_json(StepBatch{{other}})).status, 409);
  }
  EXPECT_EQ(get(trainer.path("/audit")).as_array().size(), 20u);
}

TEST_F(ApiErrorTest, AnUnknownDirectiveOrAckIsRefused) {
  EXPECT_EQ(refused("POST", trainer.path("/directives/5/ack"),
                    to_json(DirectiveAck{"applied", 1, 1, "", 0}))
                .status,
            404);
  EXPECT_EQ(refused("POST", trainer.path("/directives/x/ack"),
                    to_json(DirectiveAck{"applied", 1, 1, "", 0}))
                .status,
            404);
}

TEST_F(ApiErrorTest, UnknownPathsAre404AndWrongMethods405) {
  EXPECT_EQ(refused("GET", "/v1/nothing").status, 404);
  EXPECT_EQ(refused("GET", "/nothing").status, 404);
  Refused refusal = refused("DELETE", "/v1/runs");
  EXPECT_EQ(refusal.status, 405);
  EXPECT_EQ(refusal.accepted, "GET, HEAD, POST");
  EXPECT_EQ(refused("POST", "/metrics").status, 405);
  EXPECT_THAT(raw("DELETE /v1/runs HTTP/1.1\r\nHost: localhost\r\n\r\n"),
              HasSubstr("Allow: GET, HEAD, POST"));
}

TEST_F(ApiErrorTest, AnotherContentTypeIs415) {
  std::string answer =
      raw("POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/xml\r\nContent-Length: "
          "4\r\n\r\n<a/>");
  EXPECT_THAT(answer, HasSubstr("415"));
  EXPECT_THAT(answer, HasSubstr("text/xml"));
  EXPECT_THAT(answer, HasSubstr("application/problem+json"));
}

TEST_F(ApiErrorTest, ABodyThatIsTooLargeIs413WhetherItsLengthIsSaidOrNot) {
  std::string body(20'000, ' ');
  EXPECT_THAT(raw(fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}",
                              trainer.path("/finished"), body.size(), body)),
              HasSubstr("413"));
  EXPECT_THAT(raw(fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
                              "chunked\r\n\r\n{:x}\r\n{}\r\n0\r\n\r\n",
                              trainer.path("/finished"), body.size(), body)),
              HasSubstr("413"));
  EXPECT_THAT(
      raw("POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"),
      HasSubstr("413"));
}

TEST_F(ApiErrorTest, BrokenHttpIs400AndAHugeHeader431) {
  EXPECT_THAT(raw("nonsense\r\n\r\n"), HasSubstr("400"));
  EXPECT_THAT(raw("GET / HTTP/1.1\r\nX: " + std::string(40'000, 'x') + "\r\n\r\n"),
              HasSubstr("431"));
  EXPECT_THAT(raw("GET /v1/runs?a=%zz HTTP/1.1\r\nHost: localhost\r\n\r\n"), HasSubstr("400"));
}

TEST_F(ApiErrorTest, ABadPolicyIsRefusedWithItsLineAndTheOldOneStays) {
  Refused refusal = refused("POST", "/v1/policy/check", "[window]\nevery = 5\nsteps = \"many\"\n");
  EXPECT_EQ(refusal.status, 400);
  EXPECT_THAT(refusal.detail, HasSubstr(":3"));
  EXPECT_EQ(refused("PUT", trainer.path("/policy"), "[window]\nevery = -5\n").status, 400);
  HttpClient client = daemon.client();
  EXPECT_EQ(client.checked("GET", trainer.path("/policy")).body, test_policy());
}

TEST_F(ApiErrorTest, TooManyStepsAtOnceAreRefusedInBothDirections) {
  EXPECT_EQ(refused("GET", trainer.path("/steps?every=0")).status, 400);
  EXPECT_EQ(refused("GET", trainer.path("/steps?from=-1")).status, 400);
  StepBatch batch;
  for (int64_t step = 1; step <= 10'001; ++step) {
    batch.steps.push_back(test_step(step));
  }
  EXPECT_EQ(refused("POST", trainer.path("/steps"), to_json(batch)).status, 413);
}

}  // namespace
}  // namespace gnomon

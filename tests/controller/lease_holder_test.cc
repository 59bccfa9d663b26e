// Whose a lease is: it is not guessed, another token cannot end it, and what was handed in once is
// not replaced.
#include "tests/controller/api_fixture.h"
#include "tests/controller/security_fixture.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;

class LeaseHolderTest : public ApiTest {
 protected:
  LeaseHolderTest() {
    trainer.begin();
    trainer.train(1, 5);
    lease = verifier.lease().value();
  }
  std::string path(const std::string& what) const {
    return fmt::format("/v1/leases/{}/{}", lease.lease, what);
  }
  int complete(const ReplayResult& result) {
    return verifier.client().request("POST", path("complete"), to_json(result)).status;
  }
  int64_t audited(const std::string& what) {
    int64_t count = 0;
    const boost::json::value rows = get("/v1/audit");
    for (const auto& row : rows.as_array()) {
      count += row.at("what").as_string() == what ? 1 : 0;
    }
    return count;
  }

  FakeTrainer trainer{daemon.url()};
  FakeVerifier verifier{daemon.url()};
  Lease lease;
};

TEST_F(LeaseHolderTest, SmallNumbersAreNobodysLease) {
  HttpClient client = daemon.client();
  for (int64_t number = 0; number < 300; ++number) {
    for (int64_t token = 0; token < 3; ++token) {
      const auto post = [&](const char* what, const std::string& body) {
        return client.request("POST", fmt::format("/v1/leases/{}/{}", number, what), body).status;
      };
      ASSERT_EQ(post("heartbeat", to_json(LeaseHeartbeat{token, 1})), 404) << number;
      ASSERT_EQ(post("fail", to_json(LeaseFailure{token, "guessed", false})), 404) << number;
    }
  }
  EXPECT_EQ(complete(verifier.result(lease, 0)), 200);
}

TEST_F(LeaseHolderTest, NumbersOfLeasesDoNotFollowOneAnother) {
  std::vector<int64_t> numbers = {lease.lease};
  for (int i = 0; i < 3; ++i) {
    FakeTrainer another(daemon.url());
    another.begin(test_registration(fmt::format("another-{}", i)));
    another.train(1, 5);
    numbers.push_back(verifier.lease().value().lease);
  }
  for (size_t i = 1; i < numbers.size(); ++i) {
    EXPECT_GT(std::abs(numbers[i] - numbers[i - 1]), int64_t{1} << 30) << numbers[i];
    EXPECT_LT(numbers[i], int64_t{1} << 53) << "a number that every JSON reader has";
    EXPECT_GT(numbers[i], 0);
  }
}

TEST_F(LeaseHolderTest, TheSameResultIsAcceptedAgainAndAnotherRejected) {
  const ReplayResult first = verifier.result(lease, 0.001);
  ASSERT_EQ(complete(first), 200);
  EXPECT_EQ(complete(first), 200);
  ReplayResult later = first;
  later.time = 99;
  EXPECT_EQ(complete(later), 200) << "when it was sent is no part of a result";
  const auto expect_refused = [&](const char* member,
                                  const std::function<void(ReplayResult&)>& edit) {
    ReplayResult other = first;
    edit(other);
    const Refused refusal = refused("POST", path("complete"), to_json(other));
    EXPECT_EQ(refusal.status, 409) << member;
    EXPECT_THAT(refusal.detail, HasSubstr(member));
  };
  expect_refused("run_end_loss_bf16", [](ReplayResult& r) { r.run_end_loss_bf16 = 1.0; });
  expect_refused("replay_end_loss_bf16", [](ReplayResult& r) { r.replay_end_loss_bf16.reset(); });
  expect_refused("start_loss_bf16", [](ReplayResult& r) { r.start_loss_bf16 = 9; });
  expect_refused("start_loss_plan", [](ReplayResult& r) { r.start_loss_plan = 9; });
  expect_refused("start_loss_fakequant", [](ReplayResult& r) { r.start_loss_fakequant = 9; });
  expect_refused("gap_error", [](ReplayResult& r) { r.gap_error = 0.5; });
  expect_refused("heldout_tokens", [](ReplayResult& r) { r.heldout_tokens = 1; });
  expect_refused("replay_seconds", [](ReplayResult& r) { r.replay_seconds = 100; });
  expect_refused("eval_seconds", [](ReplayResult& r) { r.eval_seconds = 100; });
  expect_refused("fingerprint", [](ReplayResult& r) { r.fingerprint.device = "another"; });
  expect_refused("steps", [](ReplayResult& r) { r.steps.pop_back(); });
  expect_refused("loss", [](ReplayResult& r) { r.steps[2].loss = 1; });
  expect_refused("grad_norm", [](ReplayResult& r) { r.steps[0].grad_norm = 7; });
  expect_refused("weights_hash", [](ReplayResult& r) { r.steps[1].weights_hash = "abc"; });
  expect_refused("batch_hash", [](ReplayResult& r) { r.steps[1].batch_hash = "abc"; });
  expect_refused("scores", [](ReplayResult& r) { r.scores.push_back({"lm_head", 1, 1, 1}); });
  EXPECT_GT(audited("conflicting_result"), 0);
  EXPECT_EQ(complete(first), 200);
}

TEST_F(LeaseHolderTest, AFailureRepeatedWithAnotherReasonIsRefused) {
  const auto fail = [&](const std::string& reason) {
    return verifier.client()
        .request("POST", path("fail"), to_json(LeaseFailure{lease.token, reason, true}))
        .status;
  };
  EXPECT_EQ(fail("no device"), 200);
  EXPECT_EQ(fail("no device"), 200);
  EXPECT_EQ(fail("no checkpoint"), 409);
  EXPECT_GT(audited("conflicting_result"), 0);
}

class TokenLeaseTest : public SecurityTest {
 protected:
  TokenLeaseTest() {
    secrets["second"] = add("second", Role::kVerifier);
    begin();
    const std::string& trainer = secrets["trainer"];
    ask("POST", "/v1/runs/1/checkpoints", trainer, to_json(test_checkpoint(0)));
    for (int64_t step = 1; step <= 5; ++step) {
      ask("POST", "/v1/runs/1/steps", trainer, to_json(StepBatch{{test_step(step)}}));
    }
    ask("POST", "/v1/runs/1/checkpoints", trainer, to_json(test_checkpoint(5)));
    const Answer granted = ask("POST", "/v1/leases", secrets["verifier"],
                               to_json(LeaseRequest{"verifier:1", test_fingerprint()}));
    EXPECT_EQ(granted.status, 200) << granted.body;
    lease = from_json<Lease>(granted.body);
  }
  int beat(const std::string& who) {
    return ask("POST", fmt::format("/v1/leases/{}/heartbeat", lease.lease), secrets[who],
               to_json(LeaseHeartbeat{lease.token, 1}))
        .status;
  }
  int complete(const std::string& who) {
    return ask("POST", fmt::format("/v1/leases/{}/complete", lease.lease), secrets[who],
               to_json(FakeVerifier(daemon.url()).result(lease, 0)))
        .status;
  }
  Lease lease;
};

TEST_F(TokenLeaseTest, AnotherTokenNeitherKeepsNorEndsALease) {
  // A second look at the file of tokens, which has one more by now.
  ASSERT_TRUE(
      test::eventually([&] { return ask("GET", "/v1/runs", secrets["second"]).status == 200; }));
  EXPECT_EQ(beat("second"), 409);
  EXPECT_EQ(complete("second"), 409);
  EXPECT_EQ(ask("POST", fmt::format("/v1/leases/{}/fail", lease.lease), secrets["second"],
                to_json(LeaseFailure{lease.token, "not mine", false}))
                .status,
            409);
  EXPECT_EQ(beat("verifier"), 200);
  EXPECT_EQ(complete("verifier"), 200);
}

TEST_F(TokenLeaseTest, ATokenThatReplacesARevokedOneHoldsItsLease) {
  ASSERT_TRUE(
      test::eventually([&] { return ask("GET", "/v1/runs", secrets["second"]).status == 200; }));
  revoke("verifier");
  ASSERT_TRUE(
      test::eventually([&] { return ask("GET", "/v1/runs", secrets["verifier"]).status == 401; }));
  EXPECT_EQ(beat("second"), 200);
  EXPECT_EQ(complete("second"), 200);
}

TEST_F(TokenLeaseTest, AfterARestartTheHolderKeepsItsLease) {
  daemon.kill();
  daemon.start_again();
  EXPECT_EQ(beat("verifier"), 200);
  ASSERT_TRUE(
      test::eventually([&] { return ask("GET", "/v1/runs", secrets["second"]).status == 200; }));
  EXPECT_EQ(complete("second"), 409) << "whoever spoke first has it";
  EXPECT_EQ(complete("verifier"), 200);
}

}  // namespace
}  // namespace gnomon

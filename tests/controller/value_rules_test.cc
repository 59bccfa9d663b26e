// What no trainer and no verifier can mean is refused, by the member's name, its value and what is
// accepted; what is a fact, however bad, is taken.
#include <fmt/format.h>

#include <limits>

#include "protocol/precision_plan.h"
#include "tests/controller/api_fixture.h"

namespace gnomon {
namespace {

namespace json = boost::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ValueRulesTest : public ApiTest {
 protected:
  ValueRulesTest() {
    trainer.begin();
    trainer.train(1, 10);
  }
  // The message with the value at that place.
  static std::string with(const std::string& message, const std::string& place,
                          const std::string& value) {
    json::value body = json::parse(message);
    body.at_pointer(place) = json::parse(value);
    return json::serialize(body);
  }
  void expect_refused(const std::string& path, const std::string& message, const std::string& place,
                      const std::string& value) {
    const Refused refusal = refused("POST", path, with(message, place, value));
    const std::string member = place.substr(place.rfind('/') + 1);
    EXPECT_EQ(refusal.status, 400) << place << " = " << value;
    EXPECT_THAT(refusal.detail, HasSubstr(member)) << place << " = " << value;
    EXPECT_FALSE(refusal.accepted.empty()) << place << " = " << value;
  }
  int status_of(const std::string& path, const std::string& body) {
    return daemon.client().request("POST", path, body).status;
  }
  std::string steps(const StepReport& step) { return to_json(StepBatch{{step}}); }

  FakeTrainer trainer{daemon.url()};
};

TEST_F(ValueRulesTest, OfAStep) {
  const std::string path = trainer.path("/steps");
  const std::string message = steps(test_step(11));
  const auto refuse = [&](const char* member, const char* value) {
    expect_refused(path, message, fmt::format("/steps/0/{}", member), value);
  };
  for (const char* value : {"-1", "-0.5", "\"-Infinity\"", "-1e308"}) refuse("grad_norm", value);
  for (const char* value : {"1e308", "-1", "\"NaN\"", "\"Infinity\"", "1e7"}) {
    refuse("learning_rate", value);
  }
  for (const char* value : {"\"\"", "\"not a hash\"", "\"12 34\"", "\"h\u00e9\""}) {
    refuse("weights_hash", value);
  }
  for (const char* value : {"\"z\\tz\"", "\"12 34\""}) refuse("batch_hash", value);
  for (const char* value : {"1000000000000", "1000000001", "-1", "0", "1000001"}) {
    refuse("step", value);
  }
  for (const char* value : {"-1", "0", "1000000000001"}) {
    if (std::string(value) != "0") refuse("tokens", value);
  }
  for (const char* value : {"-1", "\"NaN\"", "\"Infinity\"", "1e10"}) refuse("step_seconds", value);
  for (const char* value : {"-1", "1e300", "\"NaN\""}) refuse("time", value);
  refuse("loss", "1e300");
  EXPECT_EQ(get(trainer.path("/steps")).as_array().size(), 10u);
}

TEST_F(ValueRulesTest, WhatIsAFactIsTaken) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  StepReport step = test_step(11);
  step.loss = nan;
  step.grad_norm = nan;
  EXPECT_EQ(status_of(trainer.path("/steps"), steps(step)), 200);
  step = test_step(12);
  step.loss = infinity;
  step.grad_norm = infinity;
  EXPECT_EQ(status_of(trainer.path("/steps"), steps(step)), 200);
  step = test_step(13);
  step.loss = 3e38;
  step.grad_norm = 0;
  step.learning_rate = 0;
  step.batch_hash = "";
  EXPECT_EQ(status_of(trainer.path("/steps"), steps(step)), 200);
  // Reports may be missing between, and a trainer may say nothing of its weights.
  json::value sparse = json::parse(steps(test_step(900)));
  sparse.at_pointer("/steps/0").as_object().erase("weights_hash");
  EXPECT_EQ(status_of(trainer.path("/steps"), json::serialize(sparse)), 200);
}

TEST_F(ValueRulesTest, APlanIsOneThatTheRunHasHad) {
  const auto with_plan = [&](int64_t version) {
    StepReport step = test_step(11);
    step.plan_version = version;
    return daemon.client().request("POST", trainer.path("/steps"), steps(step));
  };
  for (int64_t version : {-5, -1, 2, 1'000'000}) {
    const HttpResponse answer = with_plan(version);
    EXPECT_EQ(answer.status, 409) << version;
    EXPECT_THAT(answer.body, HasSubstr(fmt::format("plan_version is {}", version)));
  }
  EXPECT_EQ(with_plan(-2'000'000'000'000).status, 400);
  // Checkpoints, attempts and statistics say the same of theirs.
  CheckpointReport checkpoint = test_checkpoint(10);
  checkpoint.step = 11;
  checkpoint.plan_version = -5;
  EXPECT_EQ(status_of(trainer.path("/checkpoints"), to_json(checkpoint)), 409);
  EXPECT_EQ(status_of(trainer.path("/attempts"), to_json(AttemptStart{2, 5, "restart", -5, 1.0})),
            409);
  EXPECT_EQ(status_of(trainer.path("/statistics"), to_json(StatisticsReport{1, 5, -5, {}, 1.0})),
            409);
  // Announced, as a trainer does whose controller is away, it is taken.
  PrecisionPlan plan = PrecisionPlan::bf16();
  plan.version = -1;
  const TrainerNotice notice{1, 10, "plan_without_controller", "BF16", plan.to_toml(), -1, 1.0};
  ASSERT_EQ(status_of(trainer.path("/notices"), to_json(notice)), 200);
  EXPECT_EQ(with_plan(-5).status, 409);
  EXPECT_EQ(with_plan(-1).status, 200);
  // And so is a newer one of a ledger that was lost.
  RunRegistration again = test_registration();
  again.newest_plan_version = 7;
  ASSERT_EQ(status_of("/v1/runs", to_json(again)), 200);
  StepReport step = test_step(12);
  step.plan_version = 7;
  EXPECT_EQ(status_of(trainer.path("/steps"), steps(step)), 200);
  step = test_step(13);
  step.plan_version = 8;
  EXPECT_EQ(status_of(trainer.path("/steps"), steps(step)), 409);
}

TEST_F(ValueRulesTest, OfWhatElseATrainerSays) {
  const std::string checkpoint = to_json(test_checkpoint(11));
  for (const auto& [place, value] :
       std::vector<std::pair<const char*, const char*>>{{"/step", "1000000000000"},
                                                        {"/step", "1000001"},
                                                        {"/step", "-1"},
                                                        {"/bytes", "-1"},
                                                        {"/weights_hash", "\"\""},
                                                        {"/manifest_hash", "\"\""},
                                                        {"/weights_hash", "\"x y\""},
                                                        {"/time", "-1"}}) {
    expect_refused(trainer.path("/checkpoints"), checkpoint, place, value);
  }
  const std::string attempt = to_json(AttemptStart{2, 5, "restart", 1, 1.0});
  for (const char* value : {"1000000000000", "1000001", "-1"}) {
    expect_refused(trainer.path("/attempts"), attempt, "/base_step", value);
  }
  const std::string finished = to_json(RunFinished{"completed", 10, 3, 1, 1});
  for (const auto& [place, value] :
       std::vector<std::pair<const char*, const char*>>{{"/step", "-1"},
                                                        {"/step", "1000000000000"},
                                                        {"/train_seconds", "-1"},
                                                        {"/train_seconds", "\"NaN\""},
                                                        {"/final_loss", "1e300"}}) {
    expect_refused(trainer.path("/finished"), finished, place, value);
  }
  const std::string notice = to_json(TrainerNotice{1, 5, "checkpoint_failed", "no room", "", 0, 1});
  for (const char* value : {"-1", "1000000000000", "1000001"}) {
    expect_refused(trainer.path("/notices"), notice, "/step", value);
  }
  StatisticsReport report{1, 5, 1, {}, 1.0};
  StatisticsRow row;
  row.site = test_registration().sites.front();
  row.tensor = "input";
  row.numbers[static_cast<size_t>(StatisticsNumber::kAmax)] = 1;
  row.numbers[static_cast<size_t>(StatisticsNumber::kZeros)] = 1;
  row.numbers[static_cast<size_t>(StatisticsNumber::kUnderflow)] = 0.1;
  report.rows = {row};
  for (const auto& [place, value] :
       std::vector<std::pair<const char*, const char*>>{{"/step", "1000000000000"},
                                                        {"/rows/0/amax", "-1"},
                                                        {"/rows/0/zeros", "-1"},
                                                        {"/rows/0/underflow", "1.5"},
                                                        {"/rows/0/elements", "-1"}}) {
    expect_refused(trainer.path("/statistics"), to_json(report), place, value);
  }
  const std::string registration = to_json(test_registration("another"));
  for (const auto& [place, value] :
       std::vector<std::pair<const char*, const char*>>{{"/total_steps", "1000000000000"},
                                                        {"/layers", "-1"},
                                                        {"/parameters", "-1"},
                                                        {"/fingerprint/world_size", "0"},
                                                        {"/fingerprint/threads", "-1"},
                                                        {"/newest_plan_version", "-1"},
                                                        {"/tokens_per_step", "-1"}}) {
    expect_refused("/v1/runs", registration, place, value);
  }
}

TEST_F(ValueRulesTest, OfWhatAVerifierSays) {
  FakeVerifier verifier(daemon.url());
  const Lease lease = verifier.lease().value();
  const std::string path = fmt::format("/v1/leases/{}/complete", lease.lease);
  ReplayResult result = verifier.result(lease, 0);
  result.gap_error = 0.1;
  result.scores = {{"lm_head", 0.1, 0.1, 30}};
  const std::string message = to_json(result);
  for (const auto& [place, value] :
       std::vector<std::pair<const char*, const char*>>{{"/steps/0/grad_norm", "-1"},
                                                        {"/steps/0/loss", "1e300"},
                                                        {"/steps/0/step", "-4"},
                                                        {"/steps/0/weights_hash", "\"\""},
                                                        {"/steps/1/weights_hash", "\"g g\""},
                                                        {"/heldout_tokens", "-1"},
                                                        {"/replay_seconds", "-1"},
                                                        {"/eval_seconds", "\"NaN\""},
                                                        {"/gap_error", "-0.1"},
                                                        {"/run_end_loss_bf16", "1e300"},
                                                        {"/scores/0/phi", "1e300"},
                                                        {"/fingerprint/world_size", "-1"},
                                                        {"/time", "\"Infinity\""}}) {
    expect_refused(path, message, place, value);
  }
  const std::string beat = to_json(LeaseHeartbeat{lease.token, 1});
  expect_refused(fmt::format("/v1/leases/{}/heartbeat", lease.lease), beat, "/steps_done", "-1");
  EXPECT_EQ(status_of(path, message), 200);
}

}  // namespace
}  // namespace gnomon

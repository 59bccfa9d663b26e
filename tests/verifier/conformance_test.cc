// `gnomon conformance`: our own trainer and verifier pass, and what is wrong with others is said in
// words.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "protocol/json.h"
#include "tests/support/daemon_process.h"
#include "tests/trainer/trainer_fixture.h"

namespace gnomon {
namespace {

using test::ChildProcess;
using test::eventually;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ConformanceTest : public test::TrainerFixture {
 protected:
  ConformanceTest() { daemon_.start(); }

  std::unique_ptr<ChildProcess> kit(std::vector<std::string> arguments) {
    std::vector<std::string> command = {GNOMON_PROGRAM, "conformance"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return launch(command);
  }
  std::unique_ptr<ChildProcess> kit_for_verifier(const std::string& start, const std::string& end,
                                                 const std::string& patience = "60") {
    return kit({"verifier", daemon_.url(), "--checkpoint", start, "--end-checkpoint", end, "--step",
                "10", "--steps", "10", "--format", "gnomon", "--framework", "gnomon", "--patience",
                patience});
  }
  std::optional<Lease> lease(HttpClient& client) {
    LeaseRequest request{"mine", {"a device", "other", "none", "test", 1, 1}};
    request.can.arms = {"bf16"};
    const HttpResponse response = client.checked("POST", "/v1/leases?wait=5", to_json(request));
    if (response.status == 204) return std::nullopt;
    return from_json<Lease>(response.body);
  }

  test::DaemonProcess daemon_;
};

TEST_F(ConformanceTest, OurTrainerConforms) {
  const auto looks = kit({"trainer", daemon_.url(), "--run", "tiny", "--patience", "60"});
  const auto trainer =
      start(config(1'000'000, {}, kKeepAllCheckpoints), {"--controller", daemon_.url()});
  EXPECT_EQ(looks->wait(), 0) << looks->output() << trainer->output();
  EXPECT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_THAT(
      looks->output(),
      AllOf(HasSubstr("passed  checkpoint_now"), HasSubstr("passed  pause"),
            HasSubstr("passed  alarm"), HasSubstr("passed  attempt"), HasSubstr("passed  return"),
            HasSubstr("passed  finished"), HasSubstr("It conforms."), Not(HasSubstr("failed"))));
}

TEST_F(ConformanceTest, OurVerifierConforms) {
  const auto trainer = start(config(20, {}, kKeepAllCheckpoints));
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  const auto checkpoints = CheckpointStore(run_dir() / "checkpoints").list();
  ASSERT_GE(checkpoints.size(), 2u);
  const CheckpointInfo &before = checkpoints[checkpoints.size() - 2], &last = checkpoints.back();
  ASSERT_EQ(last.step - before.step, 10);
  const auto looks = kit_for_verifier(before.path.string(), last.path.string());
  const auto verifier = launch({GNOMON_VERIFIER, "--controller", daemon_.url(), "--name", "mine"});
  EXPECT_EQ(looks->wait(), 0) << looks->output() << verifier->output();
  EXPECT_THAT(looks->output(),
              AllOf(HasSubstr("passed  bf16 replay_end_loss_bf16"), HasSubstr("passed  repetition"),
                    HasSubstr("passed  same replay_end_loss_bf16"), HasSubstr("It conforms.")));
}

// It registers and reports, and never asks for directives.
TEST_F(ConformanceTest, ATrainerThatHearsNothingIsTold) {
  HttpClient client(daemon_.url());
  RunRegistration registration;
  registration.name = "deaf";
  registration.job_id = "1";
  registration.fingerprint = {"a device", "other", "none", "test", 1, 1};
  registration.base_plan = "version = 1\n[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n";
  registration.sites = {"lm_head"};
  registration.layers = 1;
  registration.checkpoint_every = 5;
  registration.capabilities.exact_replay = false;
  const std::string run =
      from_json<RunRegistered>(client.checked("POST", "/v1/runs", to_json(registration)).body).run;
  const std::string base = "/v1/runs/" + run;
  client.checked("POST", base + "/attempts", to_json(AttemptStart{1, 0, "start", 1, 1.0}));
  const auto looks = kit({"trainer", daemon_.url(), "--run", "deaf", "--patience", "5"});
  int64_t step = 0;
  const auto train = [&] {
    // Not faster than its windows are replayed.
    const bool open = std::ranges::any_of(daemon_.rows("windows"), [](const auto& window) {
      return window.at("state").as_string() == "open";
    });
    if (open) return !looks->running();
    CheckpointReport checkpoint;
    checkpoint.step = step;
    checkpoint.uri = fmt::format("memory/{}", step);
    checkpoint.plan_version = 1;
    client.checked("POST", base + "/checkpoints", to_json(checkpoint));
    StepBatch batch;
    for (int i = 0; i < 5; ++i) {
      StepReport report;
      report.step = ++step;
      report.plan_version = 1;
      report.loss = 2;
      batch.steps.push_back(report);
    }
    client.checked("POST", base + "/steps", to_json(batch));
    return !looks->running();
  };
  EXPECT_TRUE(eventually(train)) << looks->output();
  EXPECT_EQ(looks->wait(), 1);
  EXPECT_THAT(looks->output(),
              AllOf(HasSubstr("passed  window"), HasSubstr("noted   grad_norm"),
                    HasSubstr("failed  checkpoint_now: directive 1 is pending: long-poll GET"),
                    HasSubstr("It does not conform.")));
}

TEST_F(ConformanceTest, AVerifierWithoutHeldOutLossesIsTold) {
  const auto looks = kit_for_verifier("/a", "/b", "10");
  HttpClient client(daemon_.url());
  const auto answer = [&] {
    if (const std::optional<Lease> task = lease(client)) {
      ReplayResult result;
      result.token = task->token;
      result.fingerprint = {"a device", "other", "none", "test", 1, 1};
      for (int64_t step = task->task.start_step + 1;
           step <= task->task.start_step + task->task.steps; ++step)
        result.steps.push_back({step, 2.0});
      client.checked("POST", fmt::format("/v1/leases/{}/complete", task->lease), to_json(result));
    }
    return !looks->running();
  };
  EXPECT_TRUE(eventually(answer)) << looks->output();
  EXPECT_EQ(looks->wait(), 1);
  EXPECT_THAT(looks->output(),
              AllOf(HasSubstr("failed  bf16 replay_end_loss_bf16: missing or not finite: the "
                              "held-out loss at the replay's end, evaluated in BF16"),
                    HasSubstr("the rest is looked at when this is right")));
}

TEST_F(ConformanceTest, NobodyThereIsSaidToo) {
  const auto looks = kit({"trainer", daemon_.url(), "--run", "nobody", "--patience", "1"});
  EXPECT_EQ(looks->wait(), 1);
  EXPECT_THAT(looks->output(), HasSubstr("no run nobody registered within 1 s"));
}

}  // namespace
}  // namespace gnomon

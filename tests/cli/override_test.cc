// What `gnomon override` orders and what the other commands then tell, with a real controller.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <boost/json.hpp>
#include <chrono>

#include "base/files.h"
#include "protocol/json.h"
#include "tests/cli/program.h"
#include "tests/cli/synthetic_ledger.h"
#include "tests/controller/fake_clients.h"
#include "tests/controller/registration.h"
#include "tests/support/daemon_process.h"
#include "tests/support/words.h"

namespace gnomon::cli {
namespace {

using test::DaemonProcess;
using test::EndedProcess;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class OverrideTest : public ::testing::Test {
 protected:
  OverrideTest() {
    daemon_.start();
    post("/v1/runs", to_json(small_registration()));
    AttemptStart start;
    start.cause = "start";
    start.plan_version = 1;
    post("/v1/runs/run-1/attempts", to_json(start));
  }
  std::string post(const std::string& target, const std::string& body) {
    return daemon_.client().checked("POST", target, body).body;
  }
  EndedProcess gnomon(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--url", daemon_.url()});
    return run_gnomon(arguments);
  }
  // Those on record, oldest first.
  boost::json::array overrides() {
    return boost::json::parse(daemon_.client().checked("GET", "/v1/runs/run-1/overrides").body)
        .as_array();
  }
  static double now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }

  DaemonProcess daemon_;
  TemporaryDirectory files_;
};

TEST_F(OverrideTest, IsOnRecordWithWhoAndWhy) {
  EndedProcess result = gnomon({"override", "small", "pause", "--reason", "moving the job"});
  EXPECT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(result.output, AllOf(HasSubstr("run-1: pause is recorded as decision 1 by tester"),
                                   HasSubstr("Directive 1 carries it to the trainer: gnomon "
                                             "directives run-1 "),
                                   Not(HasSubstr("It ends at"))));
  ASSERT_EQ(overrides().size(), 1u);
  boost::json::value row = overrides()[0];
  EXPECT_EQ(row.at("directive").to_number<int64_t>(), 1);
  EXPECT_EQ(row.at("kind").as_string(), "pause");
  EXPECT_EQ(row.at("owner").as_string(), "tester");
  EXPECT_EQ(row.at("reason").as_string(), "moving the job");
  EXPECT_TRUE(row.at("expires_at").is_null());
  EXPECT_THAT(gnomon({"decisions", "small"}).output,
              AllOf(HasSubstr("tester"), HasSubstr("moving the job")));
}

TEST_F(OverrideTest, TheOwnerCanBeAnother) {
  EXPECT_EQ(
      gnomon({"override", "small", "checkpoint-now", "--reason", "r", "--owner", "mira"}).status,
      0);
  EXPECT_EQ(overrides()[0].at("owner").as_string(), "mira");
  EXPECT_EQ(overrides()[0].at("kind").as_string(), "checkpoint_now");
}

TEST_F(OverrideTest, HoldsAsLongAsAsked) {
  double before = now();
  EndedProcess result =
      gnomon({"override", "small", "silence", "--for", "1h30m", "--reason", "new data"});
  EXPECT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(result.output, AllOf(HasSubstr("It ends at"), HasSubstr("in 90 min")));
  double ends = overrides()[0].at("expires_at").to_number<double>();
  EXPECT_GE(ends, before + 5400);
  EXPECT_LE(ends, now() + 5400);
  EXPECT_THAT(gnomon({"status", "small"}).output,
              AllOf(HasSubstr("override: silence until "), HasSubstr("by tester: new data")));
}

TEST_F(OverrideTest, CarriesThePlanAndTheMode) {
  std::string plan = "version = 1\n[[rule]]\nmatch = \"lm_head\"\nfprop = \"fp8\"\n";
  std::string file = files_.path() / "plan.toml";
  write_file_atomically(file, plan);
  EndedProcess result =
      gnomon({"override", "small", "set-plan", file, "--for", "3d", "--reason", "r"});
  EXPECT_EQ(result.status, 0) << result.errors;
  result = gnomon({"override", "small", "mode", "observe", "--for", "2h", "--reason", "r"});
  EXPECT_EQ(result.status, 0) << result.errors;
  EXPECT_EQ(overrides()[0].at("kind").as_string(), "set_plan");
  EXPECT_EQ(overrides()[0].at("plan").as_string(), plan);
  EXPECT_EQ(overrides()[1].at("mode").as_string(), "observe");
  EXPECT_THAT(gnomon({"status", "small"}).output, HasSubstr("override: mode observe until "));
}

TEST_F(OverrideTest, JsonIsTheAnswer) {
  EndedProcess result =
      gnomon({"override", "small", "silence", "--for", "2h", "--reason", "r", "--json"});
  boost::json::value answer = boost::json::parse(result.output);
  EXPECT_EQ(answer.at("decision").to_number<int64_t>(), 1);
  EXPECT_NEAR(answer.at("expires_at").to_number<double>(), now() + 7200, 60);
  EXPECT_EQ(answer.at("directive").to_number<int64_t>(), 0) << "nothing for the trainer to do";
  result = gnomon({"override", "small", "pause", "--reason", "r", "--json"});
  EXPECT_GT(boost::json::parse(result.output).at("directive").to_number<int64_t>(), 0);
}

TEST_F(OverrideTest, APlanForOtherSitesIsRefusedByTheController) {
  std::string file = files_.path() / "plan.toml";
  write_file_atomically(file,
                        "version = 1\n[[rule]]\nmatch = \"model.layers.7.*\"\nfprop = \"fp8\"\n");
  EndedProcess result =
      gnomon({"override", "small", "set_plan", file, "--for", "2h", "--reason", "r"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.errors, HasSubstr("model.layers.7.*"));
  EXPECT_TRUE(overrides().empty());
}

TEST_F(OverrideTest, AnEndedRunTakesNone) {
  post(
      "/v1/runs/run-1/finished",
      R"({"outcome": "completed", "step": 0, "final_loss": 2.0, "train_seconds": 1.0, "time": 1.7e9})");
  EndedProcess result = gnomon({"override", "small", "pause", "--reason", "r"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.errors, HasSubstr("ended"));
}

TEST_F(OverrideTest, TheStatusShowsAPauseUntilTheResumeIsApplied) {
  const auto answer = [&](int64_t number, const std::string& state) {
    post(fmt::format("/v1/runs/run-1/directives/{}/ack", number),
         to_json(DirectiveAck{test::any_word(state), 1, 0, "", 0}));
  };
  const auto status = [&] { return gnomon({"status", "small"}).output; };
  gnomon({"override", "small", "pause", "--reason", "to look"});
  EXPECT_THAT(status(), AllOf(HasSubstr("a pause is on its way"), HasSubstr("to go on: ")));
  answer(1, "applied");
  EXPECT_THAT(status(), AllOf(HasSubstr("\npaused at step 0"), HasSubstr("to go on: ")));
  gnomon({"override", "small", "resume", "--reason", "looked"});
  EXPECT_THAT(status(), AllOf(HasSubstr("\npaused at step 0"),
                              HasSubstr("a resume is on its way to the trainer: directive 2, "),
                              Not(HasSubstr("to go on: "))));
  answer(2, "applied");
  EXPECT_THAT(status(), AllOf(Not(HasSubstr("paused")), Not(HasSubstr("to go on"))));
}

TEST_F(OverrideTest, TheStatusHasALineOfTheGpuWhereOneIsWatched) {
  StepReport step;
  step.step = 1;
  step.plan_version = 1;
  post("/v1/runs/run-1/steps", to_json(StepBatch{{step}}));
  EXPECT_THAT(gnomon({"status", "small"}).output, Not(HasSubstr("GPU")));
  step.step = 2;
  step.device_health.emplace().device = "0000:01:00.0";
  step.device_health->temperature_celsius = 61;
  step.device_health->time = now() - 30;
  post("/v1/runs/run-1/steps", to_json(StepBatch{{step}}));
  EXPECT_THAT(gnomon({"status", "small"}).output,
              AllOf(HasSubstr("\nGPU 0000:01:00.0: 61 °C; 3"), HasSubstr("s ago\n")));
}

TEST_F(OverrideTest, NoticesAreToldByThemselvesAndInTheStatus) {
  EXPECT_THAT(gnomon({"notices", "small"}).output, HasSubstr("the trainer has sent no notice"));
  EXPECT_THAT(gnomon({"status", "small"}).output, Not(HasSubstr("notices")));
  for (int64_t step = 1; step <= 4; ++step) {
    TrainerNotice notice;
    notice.step = step;
    notice.kind = "checkpoint_failed";
    notice.text = "No room for checkpoint " + std::to_string(step) + ".";
    notice.time = 1.7e9 + static_cast<double>(step);
    post("/v1/runs/run-1/notices", to_json(notice));
  }
  EndedProcess listed = gnomon({"notices", "small"});
  EXPECT_THAT(listed.output, AllOf(HasSubstr("checkpoint_failed"),
                                   HasSubstr("No room for checkpoint 1."), HasSubstr("2023-11-1")));
  EndedProcess status = gnomon({"status", "small"});
  EXPECT_THAT(status.output,
              AllOf(HasSubstr("notices: 4"), HasSubstr("checkpoint 2."), HasSubstr("at step 4"),
                    Not(HasSubstr("checkpoint 1.")), HasSubstr("gnomon notices run-1")));
  boost::json::value rows = boost::json::parse(gnomon({"notices", "small", "--json"}).output);
  EXPECT_EQ(rows.at(3).at("step").to_number<int64_t>(), 4);
}

TEST_F(OverrideTest, ListsOfALedgersFileAreThoseOfTheDaemon) {
  gnomon({"override", "small", "pause", "--reason", "moving the job"});
  TrainerNotice notice;
  notice.kind = "checkpoint_failed";
  notice.text = "No room.";
  post("/v1/runs/run-1/notices", to_json(notice));
  for (const char* list : {"windows", "decisions", "directives", "notices"}) {
    const std::string file = daemon_.ledger().string();
    const EndedProcess of_file = run_gnomon({list, "small", "--ledger", file, "--json"});
    EXPECT_EQ(of_file.output, gnomon({list, "small", "--json"}).output) << of_file.errors;
    EXPECT_EQ(run_gnomon({list, "small", "--ledger", file}).output, gnomon({list, "small"}).output);
  }
  const EndedProcess status =
      run_gnomon({"status", "small", "--ledger", daemon_.ledger().string()});
  EXPECT_THAT(status.output, AllOf(HasSubstr("small/1 (run-1): live, registered"),
                                   HasSubstr("a pause is on its way"), HasSubstr("No room.")));
  EXPECT_THAT(run_gnomon({"runs", "--ledger", daemon_.ledger().string()}).output,
              AllOf(HasSubstr("run-1"), HasSubstr("small"), HasSubstr("live")));
  EXPECT_EQ(run_gnomon({"decisions", "other", "--ledger", daemon_.ledger().string()}).status, 2);
  const Variables there = {{"GNOMON_URL", daemon_.url()}};
  EXPECT_EQ(run_gnomon({"decisions", "small"}, there).status, 0) << "by the environment";
  const EndedProcess elsewhere =
      run_gnomon({"decisions", "small", "--url", "http://127.0.0.1:1"}, there);
  EXPECT_THAT(elsewhere.errors, HasSubstr("http://127.0.0.1:1"));
}

TEST_F(OverrideTest, TheStatusSaysWhichCheckpointWasVerifiedLast) {
  DaemonProcess daemon({}, "[window]\nevery = 5\nsteps = 5\n");
  daemon.start();
  FakeTrainer trainer(daemon.url());
  trainer.begin();
  trainer.train(1, 10);
  const auto status = [&] { return run_gnomon({"status", "test", "--url", daemon.url()}).output; };
  EXPECT_THAT(status(), HasSubstr("\nthe last verified checkpoint: step 0\n"));
  FakeVerifier verifier(daemon.url());
  while (const std::optional<Lease> lease = verifier.lease("1s")) verifier.complete(*lease, 0.001);
  EXPECT_THAT(status(), HasSubstr("\nthe last verified checkpoint: step 10\n"));
}

TEST_F(OverrideTest, APolicyIsReplacedAndWhatChangesIsPrinted) {
  const std::string file = files_.path() / "policy.toml";
  write_file_atomically(file, "[verification]\nbudget_percent = 20\n");
  EndedProcess replaced = gnomon({"policy", "replace", "small", file});
  EXPECT_EQ(replaced.status, 0) << replaced.errors;
  EXPECT_THAT(replaced.output, AllOf(HasSubstr("run-1: the policy is replaced"),
                                     HasSubstr("verification.budget_percent = 20"),
                                     HasSubstr("(before 5.0)"), Not(HasSubstr("window.steps"))));
  EXPECT_THAT(gnomon({"policy", "show", "--run", "small"}).output,
              HasSubstr("budget_percent = 20"));
  EXPECT_THAT(gnomon({"policy", "explain", "--run", "small"}).output, HasSubstr("20% of the"));
  EXPECT_THAT(gnomon({"policy", "replace", "small", file}).output,
              HasSubstr("it has this policy already"));
  write_file_atomically(file, "[verification]\nbudget = 20\n");
  const EndedProcess refused = gnomon({"policy", "replace", "small", file});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.errors, HasSubstr("budget_percent"));
}

}  // namespace
}  // namespace gnomon::cli

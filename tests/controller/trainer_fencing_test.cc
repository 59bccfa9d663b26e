// Two trainers of one run: the one that started later counts, and what the other says of
// directives, steps and checkpoints is refused in words that tell it to end.
#include <fmt/format.h>

#include <thread>

#include "controller/supervisor/checks.h"
#include "tests/controller/api_fixture.h"
#include "tests/support/words.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

// One process of a trainer.
class Process {
 public:
  Process(const std::string& url, std::string incarnation)
      : client_(url), incarnation_(std::move(incarnation)) {}
  // `running`: how long it has run by then.
  HttpResponse begin(double running) {
    const std::string query =
        incarnation_.empty() ? ""
                             : fmt::format("?incarnation={}&running={}", incarnation_, running);
    return client_.request("POST", "/v1/runs" + query, to_json(test_registration()));
  }
  HttpResponse post(const std::string& what, const std::string& body) {
    return client_.request("POST", fmt::format("/v1/runs/run-1/{}{}", what, own("?")), body);
  }
  HttpResponse attempt(int64_t number, int64_t base_step = 0) {
    return post("attempts",
                to_json(AttemptStart{number, base_step,
                                     number == 1 ? AttemptCause("start") : "restart", 1, 1.0}));
  }
  HttpResponse poll(const std::string& query = "after=0", std::chrono::milliseconds limit = 30s) {
    return client_.request("GET", "/v1/runs/run-1/directives?" + query + own("&"), {}, limit);
  }
  HttpResponse ack(const std::string& state, int64_t attempt) {
    return post("directives/1/ack",
                to_json(DirectiveAck{test::any_word(state), attempt, 3, "", 1.0}));
  }
  HttpResponse step(int64_t number, int64_t attempt) {
    return post("steps", to_json(StepBatch{{test_step(number, attempt)}}));
  }
  HttpResponse ask_for_work() {
    LeaseRequest request{std::string(kTrainerPrefix) + "node:1", test_fingerprint(), "run-1", true};
    return client_.request("POST", "/v1/leases" + own("?"), to_json(request));
  }

 private:
  std::string own(const char* before) const {
    return incarnation_.empty() ? "" : fmt::format("{}incarnation={}", before, incarnation_);
  }
  HttpClient client_;
  std::string incarnation_;
};

class TrainerFencingTest : public ApiTest {
 protected:
  void order() {
    daemon.client().checked("POST", "/v1/runs/run-1/overrides",
                            to_json(OverrideRequest{"pause", "", "", "ann", "to look", 0}));
  }
  std::string state_of_directive() {
    return std::string(get("/v1/runs/run-1/directives").at(0).at("state").as_string());
  }
  // 409, in words by which a trainer knows that it has to end.
  static void expect_replaced(const HttpResponse& answer, const char* what) {
    EXPECT_EQ(answer.status, 409) << what << " " << answer.body;
    if (answer.status != 409) return;
    EXPECT_EQ(from_json<Problem>(answer.body).title, kTrainerReplaced) << what;
  }
  Process older{daemon.url(), "aaaa"};  // which runs for a quarter of an hour
  Process newer{daemon.url(), "bbbb"};  // which has just begun
};

TEST_F(TrainerFencingTest, AnOldAttemptNeitherTakesNorEndsADirective) {
  HttpClient plain = daemon.client();  // as clients that say nothing of their process
  FakeTrainer trainer(daemon.url());
  trainer.begin();
  trainer.train(1, 3);
  plain.checked("POST", trainer.path("/attempts"), to_json(AttemptStart{2, 3, "restart", 1, 1.0}));
  order();
  EXPECT_EQ(plain.request("GET", trainer.path("/directives?after=0&attempt=1")).status, 409);
  EXPECT_EQ(state_of_directive(), "pending");
  for (const char* state : {"acknowledged", "applied", "rejected"}) {
    EXPECT_EQ(plain
                  .request("POST", trainer.path("/directives/1/ack"),
                           to_json(DirectiveAck{test::any_word(state), 1, 3, "", 1.0}))
                  .status,
              409)
        << state;
  }
  EXPECT_EQ(state_of_directive(), "pending");
  EXPECT_EQ(plain.request("GET", trainer.path("/directives?after=0&attempt=2")).status, 200);
  EXPECT_EQ(trainer.ack(1, {"applied", 2, 3, "", 1.0}).state, "applied");
}

TEST_F(TrainerFencingTest, TheTrainerThatStartedLaterTakesOver) {
  ASSERT_EQ(older.begin(900).status, 200);
  ASSERT_EQ(older.attempt(1).status, 200);
  ASSERT_EQ(older.step(1, 1).status, 200);
  order();
  ASSERT_EQ(newer.begin(1).status, 200);
  expect_replaced(older.poll(), "poll");
  EXPECT_EQ(state_of_directive(), "pending");
  expect_replaced(older.ack("applied", 1), "ack");
  expect_replaced(older.ack("acknowledged", 0), "ack");
  expect_replaced(older.step(2, 1), "steps");
  expect_replaced(older.attempt(2, 1), "attempt");
  expect_replaced(older.post("checkpoints", to_json(test_checkpoint(5))), "checkpoint");
  expect_replaced(older.post("finished", to_json(RunFinished{"failed", 1, 3, 1, 1})), "finished");
  expect_replaced(
      older.post("notices", to_json(TrainerNotice{1, 1, "checkpoint_failed", "no room", "", 0, 1})),
      "notice");
  expect_replaced(older.post("statistics", to_json(StatisticsReport{1, 1, 1, {}, 1.0})),
                  "statistics");
  expect_replaced(older.ask_for_work(), "lease");
  expect_replaced(older.begin(900), "registering again, as after a broken connection");
  // The newer one hears of what the older one was told, whatever it had done with it.
  ASSERT_EQ(newer.attempt(2, 1).status, 200);
  const auto open = from_json<DirectiveList>(newer.poll("after=0&attempt=2").body);
  ASSERT_EQ(open.directives.size(), 1u);
  EXPECT_EQ(newer.ack("applied", 2).status, 200);
  EXPECT_EQ(state_of_directive(), "applied");
  EXPECT_EQ(newer.step(2, 2).status, 200);
}

TEST_F(TrainerFencingTest, DirectivesOfTheReplacedTrainerAreDeliveredAgain) {
  ASSERT_EQ(older.begin(900).status, 200);
  ASSERT_EQ(older.attempt(1).status, 200);
  order();
  ASSERT_EQ(older.poll().status, 200);
  ASSERT_EQ(older.ack("acknowledged", 1).status, 200);
  ASSERT_EQ(newer.begin(1).status, 200);
  ASSERT_EQ(newer.attempt(2).status, 200);
  EXPECT_EQ(from_json<DirectiveList>(newer.poll().body).directives.size(), 1u);
}

TEST_F(TrainerFencingTest, AfterARestartOfTheDaemonTheOlderOneIsStillRefused) {
  ASSERT_EQ(older.begin(900).status, 200);
  ASSERT_EQ(newer.begin(1).status, 200);
  daemon.kill();
  daemon.start_again();
  expect_replaced(older.poll(), "poll");
  expect_replaced(older.begin(900), "registering");
  EXPECT_EQ(newer.begin(1).status, 200);
  EXPECT_EQ(newer.attempt(1).status, 200);
}

TEST_F(TrainerFencingTest, APollThatWaitsEndsWhenAnotherTakesOver) {
  ASSERT_EQ(older.begin(900).status, 200);
  const auto start = std::chrono::steady_clock::now();
  std::thread later([&] {
    std::this_thread::sleep_for(500ms);
    EXPECT_EQ(newer.begin(1).status, 200);
  });
  expect_replaced(older.poll("after=0&wait=20", 40s), "poll");
  later.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
}

TEST_F(TrainerFencingTest, ATrainerWithoutAnIncarnationIsNotFenced) {
  Process silent(daemon.url(), "");
  ASSERT_EQ(older.begin(900).status, 200);
  EXPECT_EQ(silent.begin(0).status, 200) << "an older program in the place of a newer one";
  EXPECT_EQ(silent.attempt(1).status, 200);
  EXPECT_EQ(silent.poll().status, 200);
}

}  // namespace
}  // namespace gnomon

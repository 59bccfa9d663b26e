// `gnomon watch` of a run whose steps stay away for a while, and of one that nobody verifies.
#include <gmock/gmock.h>

#include "base/files.h"
#include "protocol/json.h"
#include "tests/controller/fake_clients.h"
#include "tests/controller/registration.h"
#include "tests/protocol/http_test_server.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/temporary_directory.h"

namespace gnomon::cli {
namespace {

using ::testing::HasSubstr;

TEST(WatchTest, SaysThatNoStepComesAndThatTheyComeAgain) {
  test::DaemonProcess daemon;
  daemon.start();
  HttpClient client = daemon.client();
  client.checked("POST", "/v1/runs", to_json(small_registration()));
  client.checked("POST", "/v1/runs/run-1/attempts", to_json(AttemptStart{1, 0, "start", 1, 0}));
  const auto report = [&](int64_t step) {
    StepReport sent;
    sent.step = step;
    sent.plan_version = 1;
    sent.loss = 3;
    sent.weights_hash = "00";
    client.checked("POST", "/v1/runs/run-1/steps", to_json(StepBatch{{sent}}));
  };
  report(1);
  test::TemporaryDirectory folder;
  test::ChildProcess watch({GNOMON_PROGRAM, "watch", "run-1", "--interval", "0.05", "--quiet-after",
                            "0.5", "--url", daemon.url()},
                           folder.path() / "output");
  const auto printed = [&] { return read_file(folder.path() / "output"); };
  ASSERT_TRUE(test::eventually([&] {
    return printed().find("no step has come for 0.5 s after step 1") != std::string::npos;
  }));
  report(2);
  ASSERT_TRUE(test::eventually(
      [&] { return printed().find("steps come again: step 2") != std::string::npos; }));
  client.checked("POST", "/v1/runs/run-1/finished", to_json(RunFinished{"failed", 2, 3, 1, 1}));
  EXPECT_EQ(watch.wait(), 0);
  EXPECT_THAT(printed(), HasSubstr("the run is failed at step 2"));
}

TEST(WatchTest, SaysWhyAWindowIsSkipped) {
  test::DaemonProcess daemon{{}, test_policy()};
  daemon.start();
  FakeTrainer trainer(daemon.url());
  trainer.begin();
  trainer.train(1, 60);
  test::TemporaryDirectory folder;
  test::ChildProcess watch(
      {GNOMON_PROGRAM, "watch", "run-1", "--interval", "0.05", "--url", daemon.url()},
      folder.path() / "output");
  std::string printed;
  EXPECT_TRUE(test::eventually([&] {
    printed = read_file(folder.path() / "output");
    return printed.find(", skipped: 4 windows are open already") != std::string::npos;
  })) << printed;
}

// As behind a proxy while the daemon starts again.
TEST(WatchTest, WaitsWhileAnswersSayThatItMayPass) {
  test::HttpTestServer server([](const test::HttpRequest& request) {
    if (request.target == "/version") return test::HttpReply{200, R"({"name":"gnomond"})"};
    if (request.target == "/v1/runs") return test::HttpReply{200, R"([{"run":"run-1"}])"};
    return test::HttpReply{503, "{}"};
  });
  test::TemporaryDirectory folder;
  test::ChildProcess watch({GNOMON_PROGRAM, "watch", "run-1", "--interval", "0.05", "--patience",
                            "0.2", "--url", server.url()},
                           folder.path() / "output");
  EXPECT_NE(watch.wait(), 0);
  EXPECT_THAT(read_file(folder.path() / "output"), HasSubstr("the controller does not answer"));
}

}  // namespace
}  // namespace gnomon::cli

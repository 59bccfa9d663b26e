// The daemon is killed with SIGKILL and started again: it is in the same state, and its clients go
// on.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <atomic>
#include <map>
#include <sstream>
#include <thread>

#include "tests/controller/api_fixture.h"

namespace gnomon {
namespace {

using test::DaemonProcess;
using test::eventually;

class RestartTest : public ApiTest {
 protected:
  void restart() {
    daemon.kill();
    daemon.start();
    trainer.connect(daemon.url());
    verifier.connect(daemon.url());
  }
  // The samples that must survive a restart, as text by name.
  std::map<std::string, std::string> run_samples() {
    HttpClient client = daemon.client();
    std::istringstream text(client.checked("GET", "/metrics").body);
    std::map<std::string, std::string> samples;
    for (std::string line; std::getline(text, line);) {
      bool of_a_run = line.starts_with("gnomon_run_") || line.starts_with("gnomon_leases") ||
                      line.starts_with("gnomon_replays");
      if (of_a_run) {
        samples[line.substr(0, line.rfind(' '))] = line.substr(line.rfind(' ') + 1);
      }
    }
    return samples;
  }

  FakeTrainer trainer{daemon.url()};
  FakeVerifier verifier{daemon.url()};
};

TEST_F(RestartTest, KilledAndStartedAgainEverythingOnRecordIsAsBefore) {
  trainer.begin();
  trainer.train(1, 5);
  verifier.complete_twice(verifier.lease().value(), 0.001);
  trainer.train(6, 15);
  provoke_directive(trainer, verifier);
  std::vector<std::string> paths = {"",           "/steps",      "/checkpoints", "/windows",
                                    "/decisions", "/directives", "/replays",     "/layers",
                                    "/policy",    "/plans"};
  std::map<std::string, std::string> before;
  HttpClient client = daemon.client();
  for (const std::string& path : paths) {
    before[path] = client.checked("GET", trainer.path(path)).body;
  }
  std::map<std::string, std::string> samples = run_samples();
  restart();
  HttpClient again = daemon.client();
  for (const std::string& path : paths) {
    EXPECT_EQ(again.checked("GET", trainer.path(path)).body, before[path]) << path;
  }
  EXPECT_EQ(run_samples(), samples);
}

TEST_F(RestartTest, ALeaseOutlivesTheDaemonThatGaveIt) {
  trainer.begin();
  trainer.train(1, 5);
  Lease lease = verifier.lease().value();
  restart();
  verifier.client().checked("POST", fmt::format("/v1/leases/{}/heartbeat", lease.lease),
                            to_json(LeaseHeartbeat{lease.token, 1}));
  verifier.complete_twice(lease, 0.001);
  EXPECT_EQ(get("/v1/runs/1/windows").at(0).at("state").as_string(), "quiet");
}

TEST_F(RestartTest, ADirectiveOutlivesTheDaemonThatIssuedIt) {
  trainer.begin();
  trainer.train(1, 10);
  Directive directive = provoke_directive(trainer, verifier);
  restart();
  DirectiveList list = trainer.poll(0);
  ASSERT_EQ(list.directives.size(), 1u);
  EXPECT_EQ(list.directives[0].number, directive.number);
  EXPECT_EQ(list.directives[0].plan, directive.plan);
  EXPECT_EQ(trainer.ack(directive.number, {"applied", 1, 10, "", 0}).state, "applied");
}

// The whole scenario twice, once with a restart before every single request: the decisions must not
// differ.
TEST_F(RestartTest, RestartsBetweenAnyTwoRequestsDoNotChangeWhatIsDecided) {
  auto scenario = [](FakeTrainer& the_trainer, FakeVerifier& the_verifier,
                     const std::function<void()>& between) {
    the_trainer.begin();
    for (int64_t step = 1; step <= 10; ++step) {
      between();
      the_trainer.train(step, step);
    }
    for (int i = 0; i < 12; ++i) {
      between();
      std::optional<Lease> lease = the_verifier.lease();
      between();
      if (lease) {
        the_verifier.complete(*lease, 0.2);
      }
    }
  };
  auto decided = [](const DaemonProcess& of) {
    HttpClient client = of.client();
    std::string text;
    boost::json::value decisions =
        boost::json::parse(client.checked("GET", "/v1/runs/1/decisions").body);
    for (const boost::json::value& decision : decisions.as_array()) {
      text += std::string(decision.at("kind").as_string()) + ": " +
              std::string(decision.at("sentence").as_string()) + "\n";
    }
    return text;
  };
  scenario(trainer, verifier, [&] { restart(); });
  std::string restarted = decided(daemon);
  DaemonProcess calm({}, test_policy());
  calm.start();
  FakeTrainer calm_trainer(calm.url());
  FakeVerifier calm_verifier(calm.url());
  scenario(calm_trainer, calm_verifier, [] {});
  EXPECT_EQ(restarted, decided(calm));
  EXPECT_FALSE(restarted.empty());
}

TEST_F(RestartTest, KilledInTheMiddleOfAStreamOfStepsNothingAcknowledgedIsLost) {
  trainer.begin();
  std::atomic<int64_t> acknowledged = 0;
  std::thread reporter([&] {
    FakeTrainer own(daemon.url());
    own.run = trainer.run;
    try {
      for (int64_t step = 1;; ++step) {
        own.post_steps({{test_step(step)}});
        acknowledged = step;
      }
    } catch (const Error&) {
      // the daemon is gone
    }
  });
  EXPECT_TRUE(eventually([&] { return acknowledged > 50; }));
  daemon.kill();
  reporter.join();
  daemon.start();
  boost::json::value steps = get("/v1/runs/1/steps");
  int64_t kept = static_cast<int64_t>(steps.as_array().size());
  EXPECT_GE(kept, acknowledged);
  EXPECT_LE(kept, acknowledged + 1);
  EXPECT_EQ(metric("gnomon_run_steps_total{run=\"test/1\"}"), static_cast<double>(kept));
}

}  // namespace
}  // namespace gnomon

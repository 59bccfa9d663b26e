// The shipped alerts under the incidents that they are for: a real gnomond, and a real Prometheus
// with alerts.yml, whose waiting times ("for") alone are left out. Trainers and verifiers speak the
// real protocol; what they do is played.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <regex>

#include "base/files.h"
#include "tests/controller/fake_clients.h"
#include "tests/dashboards/prometheus_process.h"
#include "tests/support/daemon_process.h"

namespace gnomon::dashboards {
namespace {

using test::eventually;

// Windows of five steps, one after another; each is checked for whether the instrument is sound.
constexpr const char* kPolicy =
    "[window]\nevery = 5\nsteps = 5\nopen_max = 4\n[verifier]\nlease_ttl_seconds = 60.0\n"
    "[instrument]\nevery = 1\n[triage]\npairs = 0\n[attribution]\nscores = false\n";

class Incidents : public ::testing::Test {
 protected:
  void SetUp() override {
    daemon_.start();
    std::string rules = read_file(std::string(GNOMON_SOURCE) + "/dashboards/prometheus/alerts.yml");
    rules = std::regex_replace(rules, std::regex("\n        for: [0-9]+[smh]"), "");
    prometheus_.start(daemon_.port(), rules);
  }

  bool fires(const std::string& alert, const std::string& run, int seconds = 30) {
    return eventually([&] { return prometheus_.fires(alert, run); }, std::chrono::seconds(seconds));
  }

  boost::json::object run_view(const FakeTrainer& trainer) {
    return boost::json::parse(daemon_.client().checked("GET", "/v1/runs/" + trainer.run).body)
        .as_object();
  }
  std::string verdict(const FakeTrainer& trainer) {
    return std::string(run_view(trainer).at("verdict").as_string());
  }

  // Answers all that waits for this verifier; `change` may alter an answer.
  using Change = std::function<void(const Lease&, ReplayResult&)>;
  static void answer_all(FakeVerifier& verifier, const Change& change) {
    while (std::optional<Lease> lease = verifier.lease()) {
      ReplayResult result = verifier.result(*lease, 0);
      change(*lease, result);
      verifier.client().checked("POST", fmt::format("/v1/leases/{}/complete", lease->lease),
                                to_json(result));
    }
  }

  test::DaemonProcess daemon_{{}, kPolicy};
  PrometheusProcess prometheus_;
};

TEST_F(Incidents, NobodyVerifiesOneRunWhileAnotherHoldsALease) {
  FakeTrainer other(daemon_.url()), trainer(daemon_.url());
  FakeVerifier verifier(daemon_.url());
  other.begin(test_registration("other"));
  other.train(1, 5);
  ASSERT_TRUE(verifier.lease().has_value()) << "the other run's window is being replayed";
  trainer.begin(test_registration("alone"));
  trainer.train(1, 9);
  EXPECT_EQ(verdict(trainer), "unverified");
  EXPECT_FALSE(prometheus_.fires("GnomonRunUnverified", "alone/1")) << "no window is overdue yet";
  trainer.train(10, 40);
  EXPECT_TRUE(fires("GnomonRunUnverified", "alone/1")) << prometheus_.log();
  EXPECT_TRUE(fires("GnomonNoVerifiers", "alone/1"));
  EXPECT_FALSE(prometheus_.fires("GnomonRunUnverified", "other/1"));
  EXPECT_EQ(run_view(trainer).at("verification_lag_steps").as_int64(), 40);
}

TEST_F(Incidents, ATrainerIsKilledAndTheDaemonStartsAgain) {
  FakeTrainer trainer(daemon_.url());
  trainer.begin();
  trainer.train(1, 4);
  EXPECT_EQ(verdict(trainer), "unverified");
  EXPECT_TRUE(fires("GnomonRunSilent", "test/1", 60)) << prometheus_.log();
  EXPECT_EQ(verdict(trainer), "silent");
  daemon_.kill();
  daemon_.start_again();
  EXPECT_EQ(verdict(trainer), "silent") << "what it knew before is on record";
  trainer.train(5, 5);
  EXPECT_EQ(verdict(trainer), "unverified");
}

TEST_F(Incidents, TheInstrumentBreaks) {
  FakeTrainer trainer(daemon_.url());
  FakeVerifier verifier(daemon_.url());
  trainer.begin();
  int perturbed = 0;
  for (int64_t step = 1; step <= 30; step += 5) {
    trainer.train(step, step + 4);
    answer_all(verifier, [&](const Lease& lease, ReplayResult& result) {
      const ReplayTask& task = lease.task;
      if (task.arm == "bf16-perturbed")
        result.replay_end_loss_bf16 = 3.9 * (perturbed++ < 4 ? 1.0002 : 1.05);
      if (task.arm == "bf16" && task.purpose == "instrument" && perturbed > 4) {
        for (ReplayStep& replayed : result.steps) replayed.weights_hash = "1";
      }
    });
  }
  EXPECT_TRUE(fires("GnomonInstrumentBroken", "test/1")) << prometheus_.log();
  EXPECT_EQ(verdict(trainer), "unverified");
}

TEST_F(Incidents, ADirectiveIsRefused) {
  FakeTrainer trainer(daemon_.url());
  FakeVerifier verifier(daemon_.url());
  trainer.begin();
  trainer.train(1, 5);
  const Directive directive = provoke_directive(trainer, verifier);
  EXPECT_EQ(verdict(trainer), "harmful") << "until the trainer has done as it was told";
  trainer.ack(directive.number, {"rejected", 1, 5, "cannot"});
  EXPECT_TRUE(fires("GnomonDirectiveNotApplied", "test/1")) << prometheus_.log();
}

TEST_F(Incidents, AVerifierLies) {
  FakeTrainer trainer(daemon_.url());
  FakeVerifier honest(daemon_.url(), "honest:1"), liar(daemon_.url(), "liar:2");
  trainer.begin();
  trainer.train(1, 5);
  answer_all(honest, [](const Lease&, ReplayResult&) {});
  EXPECT_EQ(verdict(trainer), "good");
  trainer.train(6, 10);
  for (int turn = 0; turn < 10; ++turn) {
    if (std::optional<Lease> lease = liar.lease()) {
      ReplayResult result = liar.result(*lease, 0.2);
      for (ReplayStep& step : result.steps) step.weights_hash = "f00f";
      liar.client().checked("POST", fmt::format("/v1/leases/{}/complete", lease->lease),
                            to_json(result));
    } else {
      answer_all(honest, [](const Lease&, ReplayResult&) {});
    }
  }
  EXPECT_TRUE(fires("GnomonVerifierQuarantined", "test/1")) << prometheus_.log();
}

}  // namespace
}  // namespace gnomon::dashboards

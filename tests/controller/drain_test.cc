// How the daemon drains: unready and without new leases, but answering, from SIGTERM to the stop.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "base/files.h"
#include "tests/controller/api_fixture.h"
#include "tests/controller/raw_connection.h"

namespace gnomon {
namespace {

using test::DaemonProcess;
using test::eventually;
using ::testing::AllOf;
using ::testing::HasSubstr;

class DrainTest : public ::testing::Test {
 protected:
  void start(double drain_seconds) {
    const std::filesystem::path config = folder / "gnomond.toml";
    write_file_atomically(config, fmt::format("[limits]\ndrain_seconds = {}\n", drain_seconds));
    daemon.emplace(std::vector<std::string>{"--config", config.string()}, test_policy());
    daemon->start();
    trainer.emplace(daemon->url());
    trainer->begin();
    trainer->train(1, 10);
  }
  void drain() {
    daemon->signal(SIGTERM);
    ASSERT_TRUE(eventually([&] { return status("GET", "/readyz") == 503; }));
  }
  int status(const std::string& method, const std::string& path, const std::string& body = {}) {
    return daemon->client().request(method, path, body).status;
  }
  std::string lease_request() const {
    const std::string body = to_json(LeaseRequest{"other:1", test_fingerprint()});
    return fmt::format(
        "POST /v1/leases?wait=100 HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}",
        body.size(), body);
  }

  test::TemporaryDirectory folder;
  std::optional<DaemonProcess> daemon;
  std::optional<FakeTrainer> trainer;
};

TEST_F(DrainTest, NothingNewIsLeasedAndAllElseIsAnsweredUntilASecondSignal) {
  start(60);
  FakeVerifier verifier(daemon->url());
  const std::optional<Lease> lease = verifier.lease();
  ASSERT_TRUE(lease);
  ASSERT_EQ(status("GET", "/readyz"), 200);
  drain();
  EXPECT_THAT(daemon->client().request("GET", "/readyz").body,
              HasSubstr(R"({"name":"accepting","ok":false)"));
  EXPECT_EQ(status("GET", "/livez"), 200);

  const HttpResponse refused = verifier.client().request(
      "POST", "/v1/leases", to_json(LeaseRequest{"other:1", test_fingerprint()}));
  EXPECT_EQ(refused.status, 503);
  EXPECT_GT(refused.retry_after, 0);
  EXPECT_EQ(from_json<Problem>(refused.body).title, "The daemon is stopping");

  EXPECT_EQ(trainer->post_steps({{test_step(11)}}).accepted, 1);
  verifier.complete(*lease, 0);
  EXPECT_EQ(daemon->rows("replays").at(0).at("state"), "done");

  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(daemon->stop(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  const std::filesystem::path wal = daemon->ledger().string() + "-wal";
  EXPECT_FALSE(std::filesystem::exists(wal) && std::filesystem::file_size(wal) > 0);
}

TEST_F(DrainTest, ADrainEndsWaitsForLeasesAtOnce) {
  start(60);
  FakeVerifier verifier(daemon->url());
  while (verifier.lease()) {
  }
  RawConnection waiting(daemon->port());
  waiting.send(lease_request());
  ASSERT_EQ(status("GET", "/readyz"), 200);  // answered later: that one waits by now
  drain();
  EXPECT_THAT(waiting.read_until("\r\n\r\n"),
              AllOf(HasSubstr("HTTP/1.1 503"), HasSubstr("Retry-After: ")));
  EXPECT_EQ(daemon->stop(), 0);
}

TEST_F(DrainTest, EndsByItselfAfterItsTime) {
  start(1);
  const auto start = std::chrono::steady_clock::now();
  drain();
  EXPECT_TRUE(eventually([&] {
    try {
      status("GET", "/livez");
      return false;
    } catch (const ConnectionError&) {
      return true;
    }
  }));
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(900));
  EXPECT_EQ(daemon->stop(), 0);
}

TEST_F(DrainTest, MoreSignalsDoNotKillADaemonThatIsClosingItsLedger) {
  for (int i = 0; i < 10; ++i) {
    start(0);
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(100)) {
      daemon->signal(SIGTERM);  // at a pace: without one the daemon does little but take signals
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    ASSERT_EQ(daemon->stop(), 0);
  }
}

}  // namespace
}  // namespace gnomon

// The daemon as a process: how it runs out of disk and stops.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>

#include <future>

#include "base/files.h"
#include "tests/controller/api_fixture.h"
#include "tests/controller/raw_connection.h"

namespace gnomon {
namespace {

using test::DaemonProcess;
using test::eventually;
using ::testing::HasSubstr;

class DaemonTest : public ApiTest {
 protected:
  FakeTrainer trainer{daemon.url()};
};

TEST_F(DaemonTest, StopsWithStatusZeroAndAnEmptyWal) {
  trainer.begin();
  trainer.train(1, 10);
  EXPECT_EQ(daemon.stop(), 0);
  std::filesystem::path wal = daemon.ledger().string() + "-wal";
  EXPECT_FALSE(std::filesystem::exists(wal) && std::filesystem::file_size(wal) > 0);
  daemon.start();
  FakeTrainer after(daemon.url());
  EXPECT_EQ(get("/v1/runs/1/steps").as_array().size(), 10u);
}

TEST_F(DaemonTest, StoppingEndsLongPollsAndStreamsAtOnce) {
  trainer.begin();
  RawConnection stream(daemon.port());
  stream.send("GET /v1/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  stream.read_until("event: run");
  std::future<bool> poll = std::async(std::launch::async, [&] {
    FakeVerifier verifier(daemon.url());
    return verifier.lease("100").has_value();
  });
  // The trainer, the stream, the verifier, and who asks for this.
  ASSERT_TRUE(eventually([&] { return metric("gnomon_http_connections{sender=\"known\"}") == 4; }));
  auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(daemon.stop(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  try {
    EXPECT_FALSE(poll.get());
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 503) << "it was woken when it was said already: no new leases";
  }
}

// A file size limit stands for a full disk: the daemon sees the same failed write.
void limit_file_size(pid_t pid, rlim_t bytes) {
  rlimit limit{bytes, RLIM_INFINITY};
  ASSERT_EQ(::prlimit(pid, RLIMIT_FSIZE, &limit, nullptr), 0);
}

uintmax_t largest_ledger_file(const std::filesystem::path& ledger) {
  return std::max(std::filesystem::file_size(ledger),
                  std::filesystem::file_size(ledger.string() + "-wal"));
}

TEST_F(DaemonTest, WithoutDiskSpaceNothingIsAcknowledgedAndWithItTheSameDaemonGoesOn) {
  trainer.begin();
  limit_file_size(daemon.pid(), largest_ledger_file(daemon.ledger()) + 100'000);
  HttpClient client = daemon.client();
  int64_t acknowledged = 0;
  HttpResponse last;
  for (int64_t step = 1; step <= 5000; ++step) {
    last = client.request("POST", trainer.path("/steps"), to_json(StepBatch{{test_step(step)}}));
    if (last.status != 200) {
      break;
    }
    acknowledged = step;
  }
  ASSERT_GT(acknowledged, 0) << "no room even for one step";
  ASSERT_TRUE(last.status == 503 || last.status == 507) << last.status << last.body;
  EXPECT_THAT(from_json<Problem>(last.body).accepted, HasSubstr("nothing of it has been recorded"));
  limit_file_size(daemon.pid(), 1);  // not even the smallest write
  EXPECT_EQ(client.request("GET", "/readyz").status, 503);
  EXPECT_EQ(client.request("GET", "/livez").status, 200);
  EXPECT_EQ(get(trainer.path(
                    fmt::format("/steps?every=1&from={}", std::max<int64_t>(1, acknowledged - 5))))
                .as_array()
                .back()
                .at("step")
                .as_int64(),
            acknowledged);
  limit_file_size(daemon.pid(), RLIM_INFINITY);
  EXPECT_EQ(client.request("GET", "/readyz").status, 200);
  EXPECT_EQ(trainer.post_steps({{test_step(acknowledged), test_step(acknowledged + 1)}}).accepted,
            1)
      << "the state was ahead of the ledger";
  EXPECT_EQ(metric("gnomon_run_steps_total{run=\"test/1\"}"),
            static_cast<double>(acknowledged + 1));
}

class ExpiringSeriesTest : public ApiTest {
 protected:
  ExpiringSeriesTest() : ApiTest({"--series-keep", "0"}) {}
};

TEST_F(ExpiringSeriesTest, SeriesOfAnEndedRunAreDropped) {
  FakeTrainer trainer(daemon.url());
  trainer.begin();
  trainer.train(1, 1);
  EXPECT_EQ(metric("gnomon_run_step{run=\"test/1\"}"), 1);
  trainer.client().checked("POST", trainer.path("/finished"),
                           to_json(RunFinished{"completed", 1, 3, 1, 1}));
  EXPECT_EQ(metric("gnomon_run_step{run=\"test/1\"}"), -1);
}

TEST(ClockTest, AClockThatIsSetADayAheadExpiresNoDirective) {
  test::TemporaryDirectory folder;
  const std::filesystem::path offset = folder / "offset";
  write_file_atomically(offset, "0");
  DaemonProcess daemon({}, "[directives]\ntimeout_seconds = 600.0\n");
  daemon.start({.environment = {{"GNOMON_FAILPOINTS", "wall_clock=offset:" + offset.string()}}});
  FakeTrainer trainer(daemon.url());
  trainer.begin();
  trainer.train(1, 1);
  trainer.client().checked("POST", trainer.path("/overrides"),
                           to_json(OverrideRequest{"pause", "", "", "ann", "to look", 0}));
  trainer.train(2, 2);  // it lives and has not listened: its directive would expire
  write_file_atomically(offset, "86400");
  const auto logged = [&](const char* what) {
    return daemon.log().find(what) != std::string::npos;
  };
  // Said by the look that would have expired it; the one after it sees what came of that.
  ASSERT_TRUE(eventually([&] { return logged("was set 86400 s ahead"); }));
  HttpClient client = daemon.client();
  const auto looks = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
  while (std::chrono::steady_clock::now() < looks) {
    const DirectiveList open = trainer.poll(0);
    ASSERT_EQ(open.directives.size(), 1u) << daemon.log();
  }
  EXPECT_EQ(trainer.ack(1, {"applied", 1, 1, "", 0}).state, "applied");
  write_file_atomically(offset, "0");
  EXPECT_TRUE(eventually([&] { return logged("machine's clock again"); }));
}

class ShortLeaseTest : public ::testing::Test {};

TEST_F(ShortLeaseTest, AVerifierThatDiesCostsOneLeaseTime) {
  DaemonProcess daemon({},
                       "[window]\nevery = 5\nsteps = 5\n[verifier]\nlease_ttl_seconds = "
                       "1.0\n[instrument]\nevery = 0\n");
  daemon.start();
  FakeTrainer trainer(daemon.url());
  trainer.begin();
  trainer.train(1, 5);
  FakeVerifier dead(daemon.url(), "dead:1");
  FakeVerifier alive(daemon.url(), "alive:1");
  Lease lost = dead.lease().value();
  Lease next = alive.lease("30").value();
  EXPECT_EQ(next.task.replay, lost.task.replay);
  EXPECT_EQ(next.token, lost.token + 1);
  HttpResponse late = dead.client().request(
      "POST", fmt::format("/v1/leases/{}/complete", lost.lease), to_json(dead.result(lost, 0)));
  EXPECT_EQ(late.status, 409);
  alive.complete(next, 0);
}

}  // namespace
}  // namespace gnomon

// Streams and long polls as their clients see them: they go on where they were cut off, cost
// nothing while nothing happens, and who does not read is dropped.
#include <fmt/format.h>
#include <sys/resource.h>

#include <fstream>

#include "base/files.h"
#include "tests/controller/api_fixture.h"
#include "tests/controller/raw_connection.h"
#include "tests/support/sanitized.h"

namespace gnomon {
namespace {

using test::DaemonProcess;
using test::eventually;
using ::testing::HasSubstr;
using ::testing::Not;

// A daemon that gives clients one second to read, and takes 3,000 of them.
class EventStreamTest : public ::testing::Test {
 protected:
  EventStreamTest() : daemon({"--config", config()}, test_policy()) {
    daemon.start();
    trainer.connect(daemon.url());
  }
  std::string config() {
    write_file_atomically(folder / "gnomond.toml",
                          "[limits]\nconnections = 3000\nread_seconds = 1.0\n");
    return (folder / "gnomond.toml").string();
  }
  std::unique_ptr<RawConnection> listen(const std::string& query, const std::string& headers = {}) {
    auto connection = std::make_unique<RawConnection>(daemon.port());
    connection->send(
        fmt::format("GET /v1/events{} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", query, headers));
    return connection;
  }
  void notice(const std::string& run, const std::string& text) {
    trainer.client().checked("POST", fmt::format("/v1/runs/{}/notices", run),
                             to_json(TrainerNotice{1, 0, "reports_dropped", text, "", 0, 0}));
  }

  test::TemporaryDirectory folder;
  DaemonProcess daemon;
  FakeTrainer trainer{"http://127.0.0.1:1"};
};

TEST_F(EventStreamTest, SaysHowLongToWaitBeforeComingAgain) {
  EXPECT_THAT(listen("")->read_until("\n\n"), HasSubstr("200 OK"));
  EXPECT_THAT(listen("")->read_until("retry: 2000\n\n"), HasSubstr("retry: 2000\n\n"));
}

TEST_F(EventStreamTest, GoesOnBehindTheLastIdAfterARestart) {
  trainer.begin(test_registration("first", "1"));
  auto before = listen("?after=0");
  before->read_until("id: 1\n");
  daemon.kill();
  daemon.start_again();
  trainer.connect(daemon.url());
  auto after = listen("", "Last-Event-ID: 1\r\n");
  trainer.begin(test_registration("second", "1"));
  const std::string text = after->read_until("run-2");
  EXPECT_THAT(text, HasSubstr("id: 2\nevent: run\ndata: {\"run\":\"run-2\""));
  EXPECT_THAT(text, Not(HasSubstr("run-1")));
  daemon.kill();
  daemon.start_again();
  EXPECT_THAT(listen("?after=0")->read_until("run-2"), HasSubstr("id: 1\n")) << "from the ledger";
}

TEST_F(EventStreamTest, OfOneRunHasNothingOfTheOthers) {
  trainer.begin(test_registration("first", "1"));
  trainer.begin(test_registration("second", "1"));
  auto past = listen("?run=run-2&after=0");
  auto live = listen("?run=2");
  EXPECT_THAT(live->read_until("retry"), HasSubstr("200 OK"));
  notice("run-1", "of the first");
  notice("run-2", "of the second");
  for (RawConnection* stream : {past.get(), live.get()}) {
    const std::string text = stream->read_until("of the second");
    EXPECT_THAT(text, HasSubstr("id: 4\n"));
    EXPECT_THAT(text, Not(HasSubstr("of the first")));
    EXPECT_THAT(text, Not(HasSubstr("run-1")));
  }
  EXPECT_THAT(listen("?run=run-9")->read_until("accepted"), HasSubstr("404 Not Found"));
  EXPECT_THAT(listen("?run=x")->read_until("accepted"), HasSubstr("404 Not Found"));
  EXPECT_THAT(listen("?runs=1")->read_until("accepted"), HasSubstr("400 Bad Request"));
}

// Who hears of one run alone would otherwise come back with an id that is long gone.
TEST_F(EventStreamTest, AHeartbeatHasTheNewestId) {
  trainer.begin(test_registration("first", "1"));
  trainer.begin(test_registration("second", "1"));
  auto quiet = listen("?run=run-1&after=0");
  quiet->read_until("id: 1\n");
  notice("run-2", "of another run");
  // Receiving waits ten seconds at most; a heartbeat comes after fifteen.
  quiet->read_until("still here");
  const std::string text = quiet->read_until("still here");
  EXPECT_THAT(text, HasSubstr(": still here\nid: 3\n\n"));
}

TEST_F(EventStreamTest, ClientsThatDoNotReadAreDroppedAndCostNoMemory) {
  trainer.begin(test_registration("first", "1"));
  std::vector<std::unique_ptr<RawConnection>> deaf;
  for (int i = 0; i < 20; ++i) {
    deaf.push_back(listen("?after=0"));
    deaf.back()->read_until("id: 1\n");
  }
  const double before = daemon.resident_kib();
  const std::string large(16'000, 'x');
  const int kNotices = 800;  // 13 MB, more than a connection's buffers hold
  for (int i = 0; i < kNotices; ++i) notice("run-1", fmt::format("{} {}", i, large));
  if (!test::kSanitized) {
    EXPECT_LT(daemon.resident_kib() - before, 40'000) << "for 20 clients that are 256 MB behind";
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(2'500));
  const std::string last = fmt::format("{} xxx", kNotices - 1);
  for (const auto& each : deaf) {
    EXPECT_EQ(each->read_until("nothing that ever comes").find(last), std::string::npos);
  }
  EXPECT_NE(listen("?after=0")->read_until(last).find(last), std::string::npos);
}

// More than the queues of the ledger have room for.
TEST_F(EventStreamTest, ThousandsThatWaitCostNothingAndAreAllWoken) {
  trainer.begin(test_registration("first", "1"));
  rlimit own{};
  ::getrlimit(RLIMIT_NOFILE, &own);
  own.rlim_cur = std::max<rlim_t>(own.rlim_cur, 2'600);
  if (::setrlimit(RLIMIT_NOFILE, &own) != 0) GTEST_SKIP() << "needs 2600 open files";
  std::vector<std::unique_ptr<RawConnection>> streams;
  std::vector<std::unique_ptr<RawConnection>> polls;
  for (int i = 0; i < 1'200; ++i) {
    streams.push_back(listen(""));
    polls.push_back(std::make_unique<RawConnection>(daemon.port()));
    polls.back()->send(
        "GET /v1/runs/1/directives?after=0&wait=100 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  for (const auto& each : streams) each->read_until("retry");
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const double before = daemon.processor_seconds();
  std::this_thread::sleep_for(std::chrono::seconds(4));
  EXPECT_LT(daemon.processor_seconds() - before, 0.2);
  trainer.client().checked("POST", "/v1/runs/1/overrides",
                           to_json(OverrideRequest{"checkpoint_now", "", "", "ada", "why not", 0}));
  for (const auto& each : streams) {
    ASSERT_THAT(each->read_until("event: directive"), HasSubstr("event: directive"));
  }
  for (const auto& each : polls) {
    ASSERT_THAT(each->read_until("checkpoint_now"), HasSubstr("200 OK"));
  }
}

TEST_F(EventStreamTest, AClientThatHangsUpIsForgottenAtOnce) {
  trainer.begin(test_registration("first", "1"));
  HttpClient client = daemon.client();
  const auto open_files = [&] {
    return std::distance(
        std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", daemon.pid())), {});
  };
  // The look at every page holds files of its own open.
  ASSERT_TRUE(eventually([&] {
    return client.checked("GET", "/metrics").body.find("gnomon_ledger_integrity{state=\"ok\"} 1") !=
           std::string::npos;
  }));
  const auto before = open_files();
  {
    std::vector<std::unique_ptr<RawConnection>> gone;
    for (int i = 0; i < 50; ++i) {
      gone.push_back(std::make_unique<RawConnection>(daemon.port()));
      // Half of them have sent their next request already.
      gone.back()->send(
          "GET /v1/runs/1/directives?after=0&wait=100 HTTP/1.1\r\nHost: localhost\r\n\r\n");
      if (i % 2 == 0) gone.back()->send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    ASSERT_TRUE(eventually([&] { return open_files() == before + 50; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  EXPECT_TRUE(eventually([&] { return open_files() == before; }));
}

TEST_F(EventStreamTest, RequestsThatWereSentTogetherAreAnsweredInTurn) {
  trainer.begin(test_registration("first", "1"));
  RawConnection both(daemon.port());
  both.send(
      "GET /v1/runs/1/directives?after=0&wait=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
      "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const std::string text = both.read_until("\"live\":true");
  EXPECT_LT(text.find("\"directives\":[]"), text.find("\"live\":true"));
}

// Without descriptors the daemon waits, and takes connections again when there are some.
// Without a descriptor the sanitizers' check of objects cannot read memory (it needs a pipe), and
// ends the daemon for that.
TEST_F(EventStreamTest, TheDaemonOutlivesALackOfDescriptors) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers need descriptors of their own";
  trainer.begin(test_registration("first", "1"));
  HttpClient client = daemon.client();
  client.checked("GET", "/livez");
  rlimit limit{40, 3'500};
  ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
  std::vector<std::unique_ptr<RawConnection>> many;
  for (int i = 0; i < 60; ++i) many.push_back(listen(""));
  client.checked("GET", "/livez");
  const double before = daemon.processor_seconds();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_LT(daemon.processor_seconds() - before, 0.2) << "it spins";
  limit.rlim_cur = 3'500;
  ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
  for (const auto& each : many)
    ASSERT_THAT(each->read_until("retry"), HasSubstr("200 OK")) << daemon.log();
}

}  // namespace
}  // namespace gnomon

// Connections in TLS from their beginning to their end: slow ones, those that wait, those that hang
// up, and those that are there when gnomond stops.
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <list>

#include "tests/controller/tls_fixture.h"
#include "tests/support/sanitized.h"

namespace gnomon {
namespace {

using test::eventually;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class TlsConnectionsTest : public TlsTest {
 protected:
  TlsConnectionsTest() : TlsTest(test_policy()) {
    start({}, "[limits]\nread_seconds = 1.0\nconnections = 2000\nstop_seconds = 5.0\n");
    ClientOptions options = reaching(access);
    trainer.connect(options);
    trainer.begin(test_registration("first", "1"));
  }
  std::unique_ptr<TlsConnection> ask(const std::string& target) {
    auto connection = std::make_unique<TlsConnection>(daemon.port());
    connection->send(fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", target));
    return connection;
  }
  std::unique_ptr<TlsConnection> poll() { return ask("/v1/runs/1/directives?after=0&wait=100"); }
  void order() {
    trainer.client().checked(
        "POST", "/v1/runs/1/overrides",
        to_json(OverrideRequest{"checkpoint_now", "", "", "ada", "why not", 0}));
  }
  // Other files come and go while the ledger's pages are looked at.
  long open_sockets() const {
    long count = 0;
    for (const auto& each :
         std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", daemon.pid()))) {
      std::error_code gone;
      count += std::filesystem::read_symlink(each.path(), gone).string().starts_with("socket:");
    }
    return count;
  }

  FakeTrainer trainer{"http://127.0.0.1:1"};
};

TEST_F(TlsConnectionsTest, AHandshakeThatDoesNotComeIsGivenUpAndKeepsNobodyWaiting) {
  const auto begin = Clock::now();
  RawConnection silent(daemon.port()), slow(daemon.port());
  slow.send("\x16");
  while (Clock::now() - begin < std::chrono::milliseconds(700)) {
    const auto asked = Clock::now();
    EXPECT_EQ(failure(reaching(access)), "");
    EXPECT_LT(Clock::now() - asked, std::chrono::milliseconds(500));
    slow.send("\x03");  // each byte is no new time
  }
  EXPECT_EQ(silent.read_until("nothing that comes"), "");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  slow.read_until("nothing that comes");
  EXPECT_TRUE(eventually([&] { return metric("gnomon_tls_handshake_failures_total") == 2; }));
}

TEST_F(TlsConnectionsTest, ManyRequestsGoOverOneConnection) {
  TlsConnection connection(daemon.port());
  for (int i = 0; i < 3; ++i) connection.send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
  connection.send("GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(connection.read_until("nothing"), AllOf(HasSubstr("live"), HasSubstr("revision")));
  EXPECT_TRUE(connection.ended_in_order());
}

TEST_F(TlsConnectionsTest, LargeAnswersComeWhole) {
  for (int64_t first : {1, 1'001, 2'001}) {
    StepBatch batch;
    for (int64_t i = 0; i < 1'000; ++i) batch.steps.push_back(test_step(first + i));
    trainer.post_steps(batch);
  }
  const std::string target = "/v1/runs/1/steps";
  const std::string body = trainer.client().checked("GET", target).body;
  ASSERT_GT(body.size(), 200'000u);
  EXPECT_EQ(body.substr(body.size() - 2), "}]");
  TlsConnection packed(daemon.port());
  packed.send("GET " + target +
              " HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n");
  const std::string answer = packed.read_until("nothing that comes");
  EXPECT_THAT(answer, HasSubstr("Content-Encoding: gzip"));
  const size_t length = std::stoul(answer.substr(answer.find("Content-Length: ") + 16));
  EXPECT_GT(length, 16u << 10) << "of more than one record";
  EXPECT_EQ(answer.size(), answer.find("\r\n\r\n") + 4 + length);
  EXPECT_TRUE(packed.ended_in_order());
}

// The answer is there before the body is, and must not be lost with it.
TEST_F(TlsConnectionsTest, ABodyThatIsTooLargeIsAnswered) {
  TlsConnection connection(daemon.port());
  connection.send(
      "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 900000000\r\n\r\n");
  const std::string piece(100'000, 'x');
  for (int i = 0; i < 20; ++i) connection.send(piece);
  EXPECT_THAT(connection.read_until("nothing that comes"), HasSubstr("413 Payload Too Large"));
  EXPECT_TRUE(connection.ended_in_order());
}

TEST_F(TlsConnectionsTest, AClientThatSaysItsEndIsAnsweredInKind) {
  TlsConnection connection(daemon.port());
  connection.send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
  connection.read_until("live");
  connection.say_end();
  connection.read_until("nothing that comes");
  EXPECT_TRUE(connection.ended_in_order());
}

TEST_F(TlsConnectionsTest, PollsAndStreamsAreWokenByADirective) {
  auto waiting = poll();
  auto stream = ask("/v1/events");
  stream->read_until("retry");
  order();
  EXPECT_THAT(waiting->read_until("checkpoint_now"), HasSubstr("checkpoint_now"));
  EXPECT_THAT(stream->read_until("event: directive"), HasSubstr("event: directive"));
  // The connection goes on.
  waiting->send("GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(waiting->read_until("revision"), HasSubstr("revision"));
}

TEST_F(TlsConnectionsTest, AClientThatHangsUpIsForgottenAtOnce) {
  const auto before = open_sockets();
  {
    std::list<std::unique_ptr<TlsConnection>> gone;
    for (int i = 0; i < 15; ++i) {
      gone.push_back(i % 3 == 2 ? ask("/v1/events") : poll());
      if (i % 3 == 2) gone.back()->read_until("retry");
      if (i % 3 == 1) gone.back()->send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
      if (i % 2 == 1) gone.back()->say_end();
    }
    EXPECT_TRUE(eventually([&] { return open_sockets() == before + 15; }));
  }
  const auto hung_up = Clock::now();
  EXPECT_TRUE(eventually([&] { return open_sockets() == before; }));
  EXPECT_LT(Clock::now() - hung_up, std::chrono::seconds(5));
}

TEST_F(TlsConnectionsTest, AThousandThatWaitCostNoTimeAndLittleMemory) {
  rlimit own{};
  ::getrlimit(RLIMIT_NOFILE, &own);
  own.rlim_cur = std::max<rlim_t>(own.rlim_cur, 1'200);
  if (::setrlimit(RLIMIT_NOFILE, &own) != 0) GTEST_SKIP() << "needs 1200 open files";
  const double empty = daemon.resident_kib();
  constexpr int kMany = 1'000;
  std::vector<std::unique_ptr<TlsConnection>> polls;
  for (int i = 0; i < kMany; ++i) polls.push_back(poll());
  const double each = (daemon.resident_kib() - empty) / kMany;
  std::printf("%.0f KiB of the daemon for each poll\n", each);
  EXPECT_TRUE(each < 200 || test::kSanitized) << each;
  const double before = daemon.processor_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(daemon.processor_seconds() - before, 0.1);
  order();
  for (const auto& one : polls) {
    ASSERT_THAT(one->read_until("checkpoint_now"), HasSubstr("200 OK"));
  }
}

TEST_F(TlsConnectionsTest, TheEndComesInOrderForAllThatAreConnected) {
  RawConnection no_handshake(daemon.port());
  TlsConnection fresh(daemon.port());
  auto idle = ask("/livez");
  idle->read_until("live");
  auto waiting = poll();
  auto stream = ask("/v1/events");
  stream->read_until("retry");
  const auto begin = Clock::now();
  EXPECT_EQ(daemon.stop(), 0);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(3));
  EXPECT_EQ(daemon.log().find("did not end in time"), std::string::npos);
  EXPECT_THAT(waiting->read_until("}"), HasSubstr("200 OK"));
  for (TlsConnection* each : {&fresh, idle.get(), waiting.get(), stream.get()}) {
    each->read_until("nothing that comes");
    EXPECT_TRUE(each->ended_in_order());
  }
  EXPECT_EQ(no_handshake.read_until("nothing that comes"), "");
}

}  // namespace
}  // namespace gnomon

// Every limit of the API that no other test crosses is crossed here by one, and every connection
// that is not a client's is got rid of; docs/testing.md has the table of all.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <vector>

#include "base/files.h"
#include "tests/controller/api_fixture.h"
#include "tests/controller/raw_connection.h"
#include "tests/support/sanitized.h"

namespace gnomon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class LimitsTest : public ApiTest {
 protected:
  LimitsTest() { trainer.begin(); }
  void expect_refused(const std::string& path, const std::string& body, const char* detail,
                      const char* accepted, int status = 400) {
    const Refused refusal = refused("POST", path, body);
    EXPECT_EQ(refusal.status, status) << detail;
    EXPECT_THAT(refusal.detail, HasSubstr(detail));
    EXPECT_THAT(refusal.accepted, HasSubstr(accepted)) << detail;
  }
  std::string raw(const std::string& text) {
    RawConnection connection(daemon.port());
    connection.send(text);
    return connection.read_until("\"accepted\":");
  }
  FakeTrainer trainer{daemon.url()};
};

TEST_F(LimitsTest, OfARegistration) {
  const auto refuse = [&](const RunRegistration& registration, const char* member,
                          const char* accepted, int status = 400) {
    expect_refused("/v1/runs", to_json(registration), member, accepted, status);
  };
  refuse(test_registration(std::string(201, 'x')), "name: found 201 bytes", "1 to 200 bytes");
  refuse(test_registration(""), "name: found \"\"", "1 to 200 bytes");
  refuse(test_registration("test", std::string(201, 'x')), "job_id: found 201 bytes",
         "at most 200");
  RunRegistration many = test_registration("many");
  many.sites.assign(100'001, "s");
  refuse(many, "sites: found 100001 items", "at most 100000", 413);
  RunRegistration long_run = test_registration("long");
  long_run.total_steps = 1'000'000'001;
  refuse(long_run, "total_steps", "from 0 to 1000000000");
  EXPECT_EQ(get("/v1/runs").as_array().size(), 1u);
}

TEST_F(LimitsTest, OfAttemptsStepsAndCheckpoints) {
  AttemptStart attempt{2, 0, "restart", 1, 1.0};
  attempt.host = std::string(201, 'h');
  expect_refused(trainer.path("/attempts"), to_json(attempt), "host: found 201", "at most 200");
  StepBatch batch;
  for (int64_t step = 1; step <= 10'001; ++step) batch.steps.push_back(test_step(step));
  expect_refused(trainer.path("/steps"), to_json(batch), "steps: found 10001 items",
                 "at most 10000", 413);
  expect_refused(trainer.path("/steps"), to_json(StepBatch{{test_step(1'000'000'001)}}),
                 "steps[0].step: found 1000000001", "from 1 to 1000000000");
  expect_refused(trainer.path("/steps"), to_json(StepBatch{{test_step(1'000'001)}}),
                 "step is 1000001", "at most 1000000 in a run of 1000 total_steps");
  StepReport huge = test_step(1);
  huge.tokens = 1'000'000'000'001;
  expect_refused(trainer.path("/steps"), to_json(StepBatch{{huge}}), "tokens: found 1000000000001",
                 "from 0 to 1000000000000");
  CheckpointReport checkpoint = test_checkpoint(5);
  checkpoint.uri = "/" + std::string(4096, 'u');
  expect_refused(trainer.path("/checkpoints"), to_json(checkpoint), "uri", "4096");
  EXPECT_TRUE(get(trainer.path("/steps")).as_array().empty()) << "of a batch all or nothing";
}

TEST_F(LimitsTest, OfStatistics) {
  StatisticsReport report{1, 1, 1, {}, 1.0};
  report.rows.resize(4'097);
  expect_refused(trainer.path("/statistics"), to_json(report), "rows: found 4097 items",
                 "at most 4096", 413);
  StatisticsRow row;
  row.site = test_registration().sites.front();
  row.tensor = "input";
  row.gemm = "fprop";
  row.recipe = std::string(101, 'r');
  report.rows = {row};
  expect_refused(trainer.path("/statistics"), to_json(report), "recipe", "");
  row.recipe = "current";
  row.histogram.assign(101, 1);
  report.rows = {row};
  expect_refused(trainer.path("/statistics"), to_json(report), "histogram: found 101",
                 "at most 100", 413);
}

TEST_F(LimitsTest, OfOverridesAndNotices) {
  expect_refused(trainer.path("/overrides"),
                 to_json(OverrideRequest{"pause", "", "", "ann", std::string(4097, 'x'), 0}),
                 "4097 bytes", "4096");
}

TEST_F(LimitsTest, OfWhatAVerifierSaysOfItself) {
  LeaseRequest request{std::string(201, 'v'), test_fingerprint()};
  expect_refused("/v1/leases", to_json(request), "verifier: found 201", "1 to 200 bytes");
  request.verifier = "";
  expect_refused("/v1/leases", to_json(request), "verifier: found \"\"", "1 to 200");
  request.verifier = "verifier:1";
  for (int i = 0; i < 17; ++i) request.labels[fmt::format("l{}", i)] = "x";
  expect_refused("/v1/leases", to_json(request), "17 labels", "at most 16");
  request.labels = {{std::string(65, 'k'), "x"}};
  expect_refused("/v1/leases", to_json(request), "the label", "64");
  request.labels = {{"pool", std::string(201, 'x')}};
  expect_refused("/v1/leases", to_json(request), "the label", "200");
  expect_refused("/v1/leases?wait=121", "{}", "wait is \"121\"", "0 to 120");
}

TEST_F(LimitsTest, OfQueries) {
  const auto refuse = [&](const std::string& target, const char* detail, const char* accepted) {
    const Refused refusal = refused("GET", target);
    EXPECT_EQ(refusal.status, 400) << target;
    EXPECT_THAT(refusal.detail, HasSubstr(detail));
    EXPECT_THAT(refusal.accepted, HasSubstr(accepted));
  };
  refuse("/v1/runs?limit=1001", "limit", "1 to 1000");
  refuse("/v1/runs?name=" + std::string(201, 'x'), "name", "at most 200 characters");
  refuse(trainer.path("/windows?limit=100001"), "limit", "1 to 100000");
  refuse(trainer.path("/steps?limit=20001"), "limit", "1 to 20000");
  refuse(trainer.path("/directives?after=0&wait=121"), "wait", "0 to 120");
  refuse("/v1/audit?newest=100001", "newest", "1 to 100000");
  refuse("/v1/notifications?limit=0", "limit", "1 to 100000");
  refuse("/v1/events?after=-1", "after", "0 to");
}

TEST_F(LimitsTest, OfHeadersAndTargets) {
  const std::string within(15'000, 'x');
  const std::string beyond(17'000, 'x');
  EXPECT_THAT(raw("GET /v1/" + within + " HTTP/1.1\r\nHost: localhost\r\n\r\n"),
              StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(raw("GET /v1/" + beyond + " HTTP/1.1\r\nHost: localhost\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 431"), HasSubstr("at most 16384 bytes")));
  EXPECT_THAT(raw("GET /v1/none HTTP/1.1\r\nHost: localhost\r\nX-Long: " + beyond + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431"));
}

// 400 with words that are UTF-8 themselves, and never a 500.
TEST_F(LimitsTest, TextThatIsNoUtf8IsRefused) {
  EXPECT_EQ(refused("POST", "/v1/runs", "{\"name\":\"\xff\xfe\"}").status, 400);
  EXPECT_EQ(refused("POST", trainer.path("/finished"), "\xc3{}").status, 400);
  EXPECT_EQ(refused("PUT", trainer.path("/policy"), "# \xff\n").status, 400);
  EXPECT_EQ(refused("GET", "/v1/runs/%ff%fe").status, 404);
  EXPECT_EQ(refused("GET", "/v1/%c3%28").status, 404);
  EXPECT_LT(daemon.client().request("GET", "/v1/runs?name=%ff").status, 500);
  EXPECT_THAT(raw("GET /v1/\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n"),
              StartsWith("HTTP/1.1 4"));
}

TEST_F(LimitsTest, NumbersThatAreNoneAreRefused) {
  const std::string step = to_json(StepBatch{{test_step(1)}});
  const std::string member = "\"loss\":";
  const size_t at = step.find(member) + member.size();
  const size_t end = step.find_first_of(",}", at);
  for (const char* number : {"NaN", "Infinity", "1e999", "-1e999", "0x10", "1.", "01", "\"nan\""}) {
    const std::string body = step.substr(0, at) + number + step.substr(end);
    EXPECT_EQ(refused("POST", trainer.path("/steps"), body).status, 400) << number;
  }
  EXPECT_TRUE(get(trainer.path("/steps")).as_array().empty());
}

TEST_F(LimitsTest, UnknownMembersAndParametersAreRefusedByName) {
  const auto with_another = [](std::string message, const std::string& before) {
    return message.replace(message.find(before), before.size(), before + R"("colour":"red",)");
  };
  expect_refused("/v1/runs", with_another(to_json(test_registration()), "{"), "colour", "");
  expect_refused("/v1/leases", with_another(to_json(LeaseRequest{"v", test_fingerprint()}), "{"),
                 "colour", "");
  expect_refused(trainer.path("/steps"),
                 with_another(to_json(StepBatch{{test_step(1)}}), R"("steps":[{)"),
                 "steps[0].colour", "");
  EXPECT_THAT(refused("GET", "/v1/runs?colour=red").detail, HasSubstr("colour"));
  EXPECT_THAT(refused("PUT", trainer.path("/policy"), "colour = 1\n").detail, HasSubstr("colour"));
}

// What was taken once is not taken under the token of before, and not twice.
TEST_F(LimitsTest, ATokenThatWasUsedChangesNothingMore) {
  FakeVerifier verifier(daemon.url());
  trainer.train(1, 5);
  const Lease lease = verifier.lease().value();
  verifier.complete(lease, 0.0);
  verifier.complete(lease, 0.0);  // a repeat of the same lease: answered, and not taken again
  const std::string path = fmt::format("/v1/leases/{}", lease.lease);
  EXPECT_EQ(
      refused("POST", path + "/fail", to_json(LeaseFailure{lease.token, "late", true})).status,
      409);
  EXPECT_EQ(
      refused("POST", path + "/heartbeat", to_json(LeaseHeartbeat{lease.token - 1, 0})).status,
      409);
  ReplayResult older = verifier.result(lease, 0);
  older.token = lease.token - 1;
  EXPECT_EQ(refused("POST", path + "/complete", to_json(older)).status, 409);
  EXPECT_EQ(refused("POST", path + "/complete", to_json(verifier.result(lease, 0.5))).status, 409);
  EXPECT_EQ(get(trainer.path("/replays")).at(0).at("state"), "done");
}

class SlowClientTest : public ::testing::Test {
 protected:
  void start(const std::string& limits) {
    const std::filesystem::path config = folder / "gnomond.toml";
    write_file_atomically(config, "[limits]\n" + limits);
    daemon.emplace(std::vector<std::string>{"--config", config.string()}, test_policy());
    daemon->start();
  }
  // Sends a byte now and then until the daemon has had enough; what it said, and after how long.
  std::string drip(const std::string& begin) {
    RawConnection slow(daemon->port());
    slow.send(begin);
    const auto started = std::chrono::steady_clock::now();
    std::string answer;
    while (!slow.ended_within(std::chrono::milliseconds(100))) {
      slow.send("x");
      if (std::chrono::steady_clock::now() - started > std::chrono::seconds(8)) {
        ADD_FAILURE() << "it may go on for ever";
        break;
      }
    }
    return slow.read_until("nothing that comes");
  }

  test::TemporaryDirectory folder;
  std::optional<test::DaemonProcess> daemon;
};

TEST_F(SlowClientTest, AHeaderThatDripsIsCutOffThoughAnIdleConnectionMayStay) {
  start("read_seconds = 1.0\nidle_seconds = 60.0\n");
  RawConnection idle(daemon->port());
  EXPECT_THAT(drip("GET /livez HTTP/1.1\r\nX: "),
              AllOf(HasSubstr("HTTP/1.1 408"), HasSubstr("within 1 seconds")));
  EXPECT_THAT(drip(""), HasSubstr("HTTP/1.1 408"));
  idle.send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(idle.read_until("true"), StartsWith("HTTP/1.1 200"));
}

// A field of 64 KiB there ended the process.
TEST_F(SlowClientTest, FieldsBehindAChunkedBodyAreBounded) {
  start("");
  for (const size_t bytes : {62'000, 66'000}) {
    RawConnection client(daemon->port());
    client.send(
        "GET /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: " +
        std::string(bytes, 'x') + "\r\n\r\n");
    EXPECT_THAT(client.read_until("nothing that comes"), StartsWith("HTTP/1.1 431")) << bytes;
  }
  RawConnection other(daemon->port());
  other.send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(other.read_until("true"), StartsWith("HTTP/1.1 200"));
}

TEST_F(SlowClientTest, ABodyThatDripsIsCutOff) {
  start("read_seconds = 1.0\n");
  EXPECT_THAT(drip("POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"),
              AllOf(HasSubstr("HTTP/1.1 408"), HasSubstr("the body did not come in time")));
}

TEST_F(SlowClientTest, AnIdleConnectionIsClosedAfterItsTime) {
  start("idle_seconds = 1.0\n");
  RawConnection idle(daemon->port());
  idle.send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
  idle.read_until("true");
  EXPECT_TRUE(idle.ended_within(std::chrono::seconds(8)));
}

TEST_F(SlowClientTest, AHalfClosedConnectionStillGetsItsAnswer) {
  start("");
  for (const char* request : {"GET /v1/runs HTTP/1.1\r\nHost: localhost\r\n\r\n",
                              "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n",
                              "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\n"
                              "Content-Length: 2\r\n\r\n{}"}) {
    RawConnection half(daemon->port());
    half.send(request);
    half.end_sending();
    EXPECT_THAT(half.read_until("nothing that comes"), StartsWith("HTTP/1.1 ")) << request;
  }
  // Who waits and has closed its side is not waited with.
  RawConnection waiting(daemon->port());
  const std::string body = to_json(LeaseRequest{"verifier:1", test_fingerprint()});
  waiting.send(
      fmt::format("POST /v1/leases?wait=100 HTTP/1.1\r\nHost: localhost\r\n"
                  "Content-Length: {}\r\n\r\n{}",
                  body.size(), body));
  waiting.end_sending();
  EXPECT_THAT(waiting.read_until("nothing that comes"), StartsWith("HTTP/1.1 204"));
  // A body that ends before its length is no body.
  RawConnection cut(daemon->port());
  cut.send("POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
  cut.end_sending();
  EXPECT_THAT(cut.read_until("nothing that comes"), StartsWith("HTTP/1.1 408"));
}

TEST_F(SlowClientTest, BeyondTheConnectionsThereMayBeIs503AndRoomComesBack) {
  start("connections = 2\n");
  std::optional<RawConnection> first(daemon->port()), second(daemon->port());
  for (RawConnection* each : {&*first, &*second}) {
    each->send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
    each->read_until("true");
  }
  RawConnection third(daemon->port());
  EXPECT_THAT(third.read_until("\"accepted\""),
              AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("Retry-After"),
                    HasSubstr("2 connections are open")));
  first.reset();
  EXPECT_TRUE(test::eventually([&] {
    RawConnection again(daemon->port());
    again.send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
    return again.read_until("}").starts_with("HTTP/1.1 200");
  }));
}

// Bodies of 31 MiB that never end.
class LargeBodiesTest : public SlowClientTest {
 protected:
  // False when the daemon ended the connection before it had all that was sent.
  bool begin_body() {
    constexpr size_t kMebibyte = size_t{1} << 20;
    auto& client = *clients.emplace_back(std::make_unique<RawConnection>(daemon->port()));
    client.send(fmt::format(
        "POST /v1/leases/1/complete HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        32 * kMebibyte));
    const std::string piece(kMebibyte, ' ');
    for (int i = 0; i < 31; ++i) {
      if (!client.send(piece)) return false;
    }
    return true;
  }
  double bytes_held() {
    const std::string metrics = daemon->client().request("GET", "/metrics").body;
    const std::string name = "\ngnomon_http_transfer_bytes ";
    return std::stod(metrics.substr(metrics.find(name) + name.size()));
  }
  std::vector<std::unique_ptr<RawConnection>> clients;
};

TEST_F(LargeBodiesTest, TogetherTheyAreBoundedAndSmallOnesStillComeThrough) {
  start("transfer_mib = 66\n");
  ASSERT_TRUE(begin_body());
  ASSERT_TRUE(begin_body());
  // What still lies in the kernel's buffers is counted when it is read.
  ASSERT_TRUE(test::eventually([&] { return bytes_held() > 61.0 * (1 << 20); }));
  begin_body();
  EXPECT_THAT(clients.back()->read_until("nothing that comes"),
              AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("Retry-After"),
                    HasSubstr("Too many bytes at once"), HasSubstr("transfer_mib")));
  FakeTrainer trainer(daemon->url());
  trainer.begin();
  trainer.train(1, 5);
  const std::string metrics = daemon->client().request("GET", "/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("gnomon_http_transfers_refused_total 1"));
  EXPECT_TRUE(daemon->resident_kib() < 150.0 * 1024 || test::kSanitized);
  clients.clear();
  EXPECT_TRUE(test::eventually([&] { return bytes_held() == 0; }));
  EXPECT_TRUE(begin_body()) << "room comes back";
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(LargeBodiesTest, MemoryThatRunsOutEndsConnectionsAndNotTheDaemon) {
  start("transfer_mib = 1024\n");
  // What there is already: threads' stacks and heaps are room that is set aside and hardly used.
  const rlim_t most = static_cast<rlim_t>(daemon->mapped_kib()) * 1024 + (rlim_t{256} << 20);
  const rlimit limit{most, most};
  ASSERT_EQ(::prlimit(daemon->pid(), RLIMIT_AS, &limit, nullptr), 0);
  bool refused = false;
  for (int i = 0; i < 12; ++i) refused = !begin_body() || refused;
  EXPECT_TRUE(refused) << "so much memory there is not";
  clients.clear();
  // Until the daemon has seen that they are gone, whoever comes may be sent away too.
  EXPECT_TRUE(test::eventually([&] {
    try {
      return bytes_held() == 0;
    } catch (const std::exception&) {
      return false;
    }
  }));
  FakeTrainer trainer(daemon->url());
  trainer.begin();
  trainer.train(1, 5);
}
#endif

}  // namespace
}  // namespace gnomon

// What a client makes of servers that answer slowly, never, without an end or with nonsense: a
// clear error in time, and the next request is a new start.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <ostream>
#include <thread>
#include <utility>
#include <vector>

#include "protocol/client.h"
#include "tests/support/sockets.h"

namespace gnomon {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kBodyMax = 1000;

struct Misdeed {
  const char* name;
  std::string first;                        // what it answers
  std::string again = {};                   // what it sends after that, again and again
  bool closes = true;                       // when it has nothing to send; else it stays silent
  std::string said = {};                    // the error's words
  bool secure = false;                      // the client speaks TLS
  std::chrono::milliseconds between = 0ms;  // two sendings of `again`
};

void PrintTo(const Misdeed& misdeed, std::ostream* out) { *out << misdeed.name; }

// The first connection gets the misdeed, the others get "ok".
class BadServer {
 public:
  explicit BadServer(const Misdeed& misdeed)
      : misdeed_(misdeed), listener_(test::listen_on_loopback(port_)), thread_([this] { run(); }) {}
  ~BadServer() {
    stopping_ = true;
    thread_.join();
  }
  int port() const { return port_; }

 private:
  void run() {
    bool first = true;
    std::vector<FileDescriptor> kept;
    while (!stopping_) {
      FileDescriptor client = test::accept_one(listener_.get(), 20ms);
      if (client.get() < 0) continue;
      bool ended = false;
      test::receive(client.get(), 1s, ended);
      if (!std::exchange(first, false)) {
        test::send_all(client.get(), "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
      } else if (!misbehave(client.get())) {
        continue;
      }
      kept.push_back(std::move(client));
    }
  }
  // Returns whether the connection stays.
  bool misbehave(int client) {
    test::send_all(client, misdeed_.first);
    if (misdeed_.again.empty()) return !misdeed_.closes;
    while (!stopping_ && test::send_all(client, misdeed_.again)) {
      std::this_thread::sleep_for(misdeed_.between);
    }
    return false;
  }

  Misdeed misdeed_;
  int port_ = 0;
  FileDescriptor listener_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

class BadServers : public ::testing::TestWithParam<Misdeed> {};

TEST_P(BadServers, EndAsAnErrorInTimeAndTheNextRequestIsANewStart) {
  BadServer server(GetParam());
  const std::string address = fmt::format("127.0.0.1:{}", server.port());
  HttpClient client(ClientOptions{.url = "http://" + address, .answer_bytes_max = kBodyMax});
  HttpClient secure(ClientOptions{.url = "https://" + address});
  const auto start = Clock::now();
  try {
    (GetParam().secure ? secure : client).request("POST", "/v1/x?secret", "{}", 500ms);
    FAIL() << "not thrown";
  } catch (const ConnectionError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr(address), HasSubstr(GetParam().said), HasSubstr("(POST /v1/x)")));
  }
  EXPECT_LT(Clock::now() - start, 5s);
  EXPECT_EQ(client.request("GET", "/").body, "ok");
}

const std::string kOk = "HTTP/1.1 200 OK\r\n";

INSTANTIATE_TEST_SUITE_P(
    All, BadServers,
    ::testing::Values(
        Misdeed{"Silence", "", "", false, "timed out"},
        Misdeed{"Nothing", "", "", true, "Empty reply"},
        Misdeed{"HeadWithoutEnd", kOk, "A: " + std::string(1000, 'a') + "\r\n", true,
                "head has more than 65536 bytes"},
        Misdeed{"LineWithoutEnd", kOk + "A: ", std::string(1000, 'a'), true,
                "head has more than 65536 bytes"},
        Misdeed{"ContinuedWithoutEnd", "", "HTTP/1.1 100 Continue\r\n\r\n", true,
                "head has more than 65536 bytes"},
        Misdeed{"BodyWithoutEnd", kOk + "\r\n", std::string(1000, 'x'), true,
                "more than 1000 bytes"},
        Misdeed{"ChunksWithoutEnd", kOk + "Transfer-Encoding: chunked\r\n\r\n", "5\r\nhello\r\n",
                true, "more than 1000 bytes"},
        Misdeed{"SlowBody", kOk + "Content-Length: 900\r\n\r\n", "x", true, "timed out", false,
                20ms},
        Misdeed{"SlowHead", kOk, "A: a\r\n", true, "timed out", false, 20ms},
        Misdeed{"CutBody", kOk + "Content-Length: 100\r\n\r\nhalf", "", true, "96 bytes remaining"},
        Misdeed{"CutChunk", kOk + "Transfer-Encoding: chunked\r\n\r\n50\r\nhalf", "", true,
                "outstanding read data"},
        Misdeed{"CutHead", kOk + "Content-Le", "", true, "ends in its head"},
        Misdeed{"BadChunk", kOk + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", "", true, "chunk"},
        Misdeed{"BadLength", kOk + "Content-Length: many\r\n\r\n", "", true, "Content-Length"},
        Misdeed{"NoHttp", "SSH-2.0-OpenSSH_9.2\r\n", "", true, "is it https:// instead of http"},
        Misdeed{"TlsToAPlainClient", "\x15\x03\x01\x02\x02\x46", "", true,
                "is it https:// instead of http://?"},
        Misdeed{"PlainToATlsClient", "HTTP/1.1 400 Bad Request\r\n\r\n", "", true,
                "is it http:// instead of https://?", true},
        Misdeed{"SilenceToATlsClient", "", "", false, "timed out", true}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace gnomon

// `gnomon` and a gnomond that speaks TLS, or that wants a token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "tests/cli/program.h"
#include "tests/protocol/http_test_server.h"
#include "tests/support/certificates.h"
#include "tests/support/daemon_process.h"

namespace gnomon::cli {
namespace {

using test::EndedProcess;
using test::HttpReply;
using test::HttpRequest;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class AccessTest : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  test::TemporaryDirectory folder_;
};

TEST_F(AccessTest, CommandsSpeakTls) {
  const test::Authority authority("an authority");
  authority.write(folder_ / "ca.pem");
  authority.issue(folder_.path(), "server");
  write_file_atomically(folder_ / "gnomond.toml",
                        "[tls]\ncertificate = \"server.pem\"\nkey = \"server.key\"\n");
  test::DaemonProcess daemon({"--config", file("gnomond.toml")});
  daemon.speak_tls({.url = {}, .ca_file = file("ca.pem")});
  daemon.start();
  const std::vector<std::string> there = {"--url", daemon.url(), "--ca-file", file("ca.pem")};
  const auto with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), there.begin(), there.end());
    return run_gnomon(arguments);
  };
  EXPECT_THAT(with({"ready"}).output, HasSubstr("ready\n"));
  EXPECT_EQ(with({"ready", "--live"}).status, 0);
  EXPECT_EQ(with({"runs"}).status, 0);
  EXPECT_EQ(with({"audit", "list"}).status, 0);
  const EndedProcess blind = run_gnomon({"ready", "--url", daemon.url()});
  EXPECT_EQ(blind.status, 1);
  EXPECT_THAT(blind.errors, HasSubstr("--ca-file"));
}

TEST_F(AccessTest, AnErrorSaysHowATokenIsGiven) {
  const std::string body = R"({"type":"about:blank","title":"Token missing","status":401})";
  test::HttpTestServer server([&](const HttpRequest& request) {
    const auto sent = request.headers.find("authorization");
    if (request.target == "/version") return HttpReply{200, R"({"name":"gnomond"})"};
    return sent != request.headers.end() && sent->second == "Bearer good" ? HttpReply{200, "[]"}
                                                                          : HttpReply{401, body};
  });
  for (const std::string command : {"runs", "ready"}) {
    const EndedProcess refused = run_gnomon({command, "--url", server.url()});
    EXPECT_NE(refused.status, 0);
    EXPECT_THAT(refused.errors,
                AllOf(HasSubstr("401"), HasSubstr("--token-file"), HasSubstr("GNOMON_TOKEN")));
  }
  write_file_atomically(folder_ / "token", "good\n");
  EXPECT_EQ(run_gnomon({"runs", "--url", server.url(), "--token-file", file("token")}).status, 0);
  write_file_atomically(folder_ / "token", "not good\n");
  const EndedProcess bad =
      run_gnomon({"runs", "--url", server.url(), "--token-file", file("token")});
  EXPECT_EQ(bad.status, 2);
  EXPECT_THAT(bad.errors,
              AllOf(HasSubstr("--token-file = " + file("token")), Not(HasSubstr("not good"))));
  const EndedProcess clear =
      run_gnomon({"runs", "--url", "http://192.0.2.1:7717", "--token-file", file("token")});
  EXPECT_EQ(clear.status, 2);
}

}  // namespace
}  // namespace gnomon::cli

// `gnomon` and what others say: servers that are no gnomond, text that a terminal would obey, an
// environment that says something else than the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "protocol/json.h"
#include "tests/cli/program.h"
#include "tests/controller/registration.h"
#include "tests/protocol/http_test_server.h"
#include "tests/support/certificates.h"
#include "tests/support/daemon_process.h"

namespace gnomon::cli {
namespace {

using test::DaemonProcess;
using test::EndedProcess;
using test::HttpReply;
using test::HttpRequest;
using test::HttpTestServer;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Arguments = std::vector<std::string>;

EndedProcess ask(Arguments arguments, const std::string& url, const Variables& variables = {}) {
  arguments.insert(arguments.end(), {"--url", url});
  return run_gnomon(arguments, variables);
}

TEST(StrangerTest, WhatAnswersMayBeNoGnomond) {
  for (const HttpReply& reply :
       {HttpReply{200, "<html>It works!</html>"}, HttpReply{200, "{}"}, HttpReply{200, "[]"},
        HttpReply{200, R"({"name":"another","version":"1"})"}, HttpReply{404, "not found"},
        HttpReply{302, ""}}) {
    HttpTestServer stranger([&](const HttpRequest&) { return reply; });
    for (const Arguments& arguments : {Arguments{"ready"},
                                       {"ready", "--live"},
                                       {"ready", "--json"},
                                       {"runs"},
                                       {"status", "x"},
                                       {"runs", "delete", "x", "--yes"},
                                       {"override", "x", "pause", "--reason", "r"},
                                       {"audit", "list"},
                                       {"ledger", "backup"}}) {
      const EndedProcess refused = ask(arguments, stranger.url());
      EXPECT_EQ(refused.status, 1) << arguments[0] << refused.output;
      EXPECT_EQ(refused.output, "") << arguments[0];
      EXPECT_THAT(refused.errors,
                  HasSubstr(stranger.url() + " answers, but is not a gnomon daemon"));
    }
  }
}

TEST(StrangerTest, AProbeTellsWhyGnomondRefuses) {
  HttpTestServer busy([&](const HttpRequest&) {
    return HttpReply{503,
                     R"({"type":"about:blank","title":"Busy","status":503,"detail":"too much"})"};
  });
  const EndedProcess refused = ask({"ready"}, busy.url());
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.errors, HasSubstr("Busy: too much"));
  EXPECT_EQ(refused.output, "not ready\n");
}

TEST(StrangerTest, TheOtherSchemeIsTold) {
  test::TemporaryDirectory folder;
  const test::Authority authority("an authority");
  authority.write(folder / "ca.pem");
  authority.issue(folder.path(), "server");
  write_file_atomically(folder / "gnomond.toml",
                        "[tls]\ncertificate = \"server.pem\"\nkey = \"server.key\"\n");
  DaemonProcess secure({"--config", (folder / "gnomond.toml").string()});
  secure.speak_tls({.url = {}, .ca_file = (folder / "ca.pem").string()});
  secure.start();
  DaemonProcess plain;
  plain.start();
  for (const Arguments& arguments : {Arguments{"ready"}, {"runs"}}) {
    const EndedProcess clear = ask(arguments, "http://127.0.0.1:" + std::to_string(secure.port()));
    EXPECT_EQ(clear.status, 1);
    EXPECT_THAT(clear.errors, HasSubstr("speaks TLS; give an https:// URL"));
    const EndedProcess tls = ask(arguments, "https://127.0.0.1:" + std::to_string(plain.port()));
    EXPECT_EQ(tls.status, 1);
    EXPECT_THAT(tls.errors, HasSubstr("is it http:// instead of https://?"));
  }
}

// Speaks like a gnomond whose run, trainer and problems have text that a terminal would obey.
HttpReply hostile(const HttpRequest& request) {
  const std::string text = R"(x\u001b[2J\u009b1m\u202e\ny)";
  if (request.target == "/version") return {200, R"({"name":"gnomond"})"};
  const std::string run = R"({"id":1,"name":")" + text + R"(","job_id":"1","state":")" + text +
                          R"(","registered_at":1,"phase":")" + text + R"(","step":3})";
  if (request.target == "/v1/runs") return {200, "[" + run + "]"};
  if (request.target == "/v1/runs/run-1") return {200, run};
  if (request.target.ends_with("/windows") || request.target.ends_with("/directives")) {
    return {200, "[]"};
  }
  if (request.target.ends_with("/overrides")) {
    return {400, R"({"type":"about:blank","title":")" + text + R"(","status":400,"detail":")" +
                     text + R"("})"};
  }
  return {200, R"([{"decision":1,"time":1,"noticed_at":1,"step":1,"kind":")" + text +
                   R"(","sentence":")" + text + R"(","text":")" + text + R"(","reason":")" + text +
                   R"(","what":")" + text + R"(","principal":")" + text + R"("}])"};
}

TEST(StrangerTest, TextOfOthersDoesNotReachATerminalAsItIs) {
  HttpTestServer server(hostile);
  for (const Arguments& arguments : {Arguments{"runs"},
                                     {"runs", "--json"},
                                     {"status", "run-1", "--json"},
                                     {"decisions", "run-1"},
                                     {"notices", "run-1"},
                                     {"audit", "list"},
                                     {"watch", "run-1"},
                                     {"status", "nobody"},
                                     {"status", "run-1"},
                                     {"override", "run-1", "pause", "--reason", "r"}}) {
    const EndedProcess ended = ask(arguments, server.url());
    const std::string printed = ended.output + ended.errors;
    EXPECT_THAT(printed, HasSubstr("x\\u001b[2J\\u009b1m\\u202e")) << arguments[0];
    for (const char* obeyed : {"\x1b", "\xc2\x9b", "\xe2\x80\xae", "\ny"}) {
      EXPECT_THAT(printed, Not(HasSubstr(obeyed))) << arguments[0];
    }
  }
}

TEST(StrangerTest, OfManyRunsTheNewestAreNamed) {
  DaemonProcess daemon;
  daemon.start();
  HttpClient client = daemon.client();
  RunRegistration run = small_registration();
  for (int i = 1; i <= 12; ++i) {
    run.name = "many" + std::to_string(i);
    client.checked("POST", "/v1/runs", to_json(run));
  }
  const EndedProcess asked = ask({"status", "nobody"}, daemon.url());
  EXPECT_EQ(asked.status, 2);
  EXPECT_THAT(asked.errors, AllOf(HasSubstr("expected many12/1 (run-12), many11/1"),
                                  HasSubstr("many3/1 (run-3) and 2 more")));
  daemon.stop();
  const EndedProcess read =
      run_gnomon({"summary", "--ledger", daemon.ledger().string(), "--run", "nobody"});
  EXPECT_THAT(read.errors, AllOf(HasSubstr("many12/1, many11/1"), HasSubstr("and 2 more")));
}

// The environment is for what a command line leaves open.
TEST(StrangerTest, AnOptionIsStrongerThanTheEnvironment) {
  test::TemporaryDirectory folder;
  std::filesystem::create_directory(folder / "backups");
  write_file_atomically(folder / "gnomond.toml", "[backup]\nfolder = \"backups\"\n");
  DaemonProcess daemon({"--config", (folder / "gnomond.toml").string()});
  daemon.start();
  const std::string ledger = daemon.ledger().string();
  const Variables nowhere = {{"GNOMON_URL", "http://127.0.0.1:1"}};
  const EndedProcess listed = run_gnomon({"audit", "list", "--ledger", ledger}, nowhere);
  EXPECT_EQ(listed.status, 0) << listed.errors;
  const EndedProcess copied = run_gnomon(
      {"ledger", "backup", "--ledger", ledger, "--out", (folder / "copy").string()}, nowhere);
  EXPECT_EQ(copied.status, 0) << copied.errors;
  const Variables there = {{"GNOMON_URL", daemon.url()}};
  EXPECT_EQ(run_gnomon({"audit", "list"}, there).status, 0);
  const EndedProcess made = run_gnomon({"ledger", "backup"}, there);
  EXPECT_EQ(made.status, 0) << made.errors;
  EXPECT_THAT(made.output, HasSubstr("every page checked"));
  EXPECT_THAT(run_gnomon({"audit", "list"}, nowhere).errors, HasSubstr("http://127.0.0.1:1"));
  const EndedProcess both =
      run_gnomon({"audit", "list", "--ledger", ledger, "--url", daemon.url()});
  EXPECT_EQ(both.status, 2);
}

}  // namespace
}  // namespace gnomon::cli

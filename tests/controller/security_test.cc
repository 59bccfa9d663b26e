// A real daemon with tokens, attacked as docs/security.md says. Line numbers of that page's table
// stand in the names of tests there.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <csignal>
#include <map>
#include <memory>
#include <vector>

#include "base/files.h"
#include "base/sha256.h"
#include "controller/auth/tokens.h"
#include "protocol/json.h"
#include "tests/controller/fake_clients.h"
#include "tests/controller/openapi_document.h"
#include "tests/controller/raw_connection.h"
#include "tests/controller/security_fixture.h"
#include "tests/support/daemon_process.h"

namespace gnomon {
namespace {

using test::DaemonProcess;
using test::eventually;
using test::run_gnomond;
using test::TemporaryDirectory;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Every operation of the API, with every role and with none.
TEST_F(SecurityTest, EveryRouteAdmitsTheRolesOfItsDocument) {
  for (const auto& [pattern, item] : test::openapi().at("paths").as_object()) {
    std::string path = pattern;
    for (const char* name : {"{run}", "{lease}", "{number}"}) {
      if (size_t at = path.find(name); at != std::string::npos) {
        path.replace(at, std::string(name).size(), "999");
      }
    }
    if (path == "/v1/events") path += "?run=999";  // which would have no end
    for (const auto& [key, operation] : item.as_object()) {
      if (key == "parameters") continue;
      std::string method = key;
      std::ranges::transform(method, method.begin(), [](char c) { return std::toupper(c); });
      std::vector<std::string> allowed;
      for (const auto& each : operation.at("security").as_array()) {
        allowed.emplace_back(each.at("token").at(0).as_string());
      }
      const bool open = allowed.empty();
      EXPECT_EQ(ask(method, path, "").status == 401, !open) << method << " " << path;
      const bool probe = path == "/livez" || path == "/readyz";
      EXPECT_EQ(ask(method, path, "gnomon_wrong").status, probe ? 200 : 401)
          << method << " " << path;
      for (const auto& [role, secret] : secrets) {
        const int status = ask(method, path, secret).status;
        const bool may = open || std::ranges::find(allowed, role) != allowed.end();
        EXPECT_EQ(status != 403, may) << method << " " << path << " " << role << " " << status;
        EXPECT_THAT(status, Not(AnyOf(0, 401, 500))) << method << " " << path << " " << role;
      }
    }
  }
}

TEST_F(SecurityTest, AnErrorNamesTheMissingCredential) {
  const Answer stranger = ask("GET", "/v1/runs", "");
  EXPECT_EQ(stranger.status, 401);
  EXPECT_THAT(stranger.head, HasSubstr("WWW-Authenticate: Bearer realm=\"gnomon\""));
  EXPECT_THAT(stranger.body, HasSubstr("gnomon token create"));
  const Answer reader = ask("POST", "/v1/backups", secrets["reader"], "{}");
  EXPECT_EQ(reader.status, 403);
  EXPECT_EQ(from_json<Problem>(reader.body).accepted, "a token of the role admin");
  EXPECT_EQ(from_json<Problem>(reader.body).detail, "the token \"reader\" has the role reader");
}

// What a directive's delivery counts as is the trainer's alone.
TEST_F(SecurityTest, OnlyATrainerTakesDirectives) {
  const std::string body = to_json(test_registration());
  EXPECT_EQ(ask("POST", "/v1/runs", secrets["reader"], body).status, 403);
  EXPECT_EQ(ask("POST", "/v1/runs", secrets["trainer"], body).status, 200);
  EXPECT_EQ(ask("GET", "/v1/runs/1/directives", secrets["reader"]).status, 200);
  for (const char* role : {"reader", "verifier", "operator"}) {
    EXPECT_EQ(ask("GET", "/v1/runs/1/directives?after=0", secrets[role]).status, 403) << role;
  }
  EXPECT_EQ(ask("GET", "/v1/runs/1/directives?after=0", secrets["trainer"]).status, 200);
}

TEST_F(SecurityTest, TheAuditLogNamesWhoAsked) {
  begin();
  const std::string order =
      R"({"kind":"pause","owner":"somebody else","reason":"to see who it was"})";
  ASSERT_EQ(ask("POST", "/v1/runs/1/overrides", secrets["operator"], order).status, 200);
  const auto rows = boost::json::parse(ask("GET", "/v1/audit", secrets["reader"]).body).as_array();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].at("what").as_string(), "override");
  EXPECT_EQ(rows[0].at("principal").as_string(), "operator");
}

// A secret is in none of: the log at its most talkative, the ledger, answers, metrics. Neither is a
// token of another service that was sent by mistake.
TEST_F(SecurityTest, NoSecretIsWrittenAnywhere) {
  const std::string foreign = "hf_someOtherServicesToken";
  std::string answers;
  for (const auto& [role, secret] : secrets) {
    answers += ask("GET", "/v1/runs", secret).body + ask("POST", "/v1/runs", secret, "{").body +
               ask("DELETE", "/v1/runs", secret).body + ask("GET", "/v1/runs/7", secret).body;
  }
  answers += ask("GET", "/v1/runs", foreign).body + ask("POST", "/v1/leases", foreign, "{}").body;
  ask("POST", "/v1/runs", secrets["trainer"], to_json(test_registration()));
  answers += ask("GET", "/metrics", secrets["reader"]).body;
  EXPECT_EQ(daemon.stop(), 0);
  EXPECT_THAT(daemon.log(), HasSubstr("a token was not accepted"));
  answers += daemon.log() + read_file(daemon.ledger());
  EXPECT_THAT(answers, Not(HasSubstr(foreign)));
  for (const auto& [role, secret] : secrets) {
    EXPECT_EQ(answers.find(secret), std::string::npos) << role;
    EXPECT_EQ(answers.find(secret.substr(7, 20)), std::string::npos) << role << ", a part of it";
    EXPECT_EQ(answers.find(sha256_hex(secret)), std::string::npos) << role << ", its hash";
  }
}

TEST_F(SecurityTest, ARevokedTokenIsRefusedWithinSecondsAndItsLongPollGetsNothing) {
  begin();
  RawConnection poll(daemon.port());
  poll.send(request("GET", "/v1/runs/1/directives?after=0&wait=30s", secrets["trainer"]));
  const std::string second = add("second", Role::kOperator);
  revoke("trainer");
  EXPECT_TRUE(eventually([&] { return ask("GET", "/v1/runs", secrets["trainer"]).status == 401; }));
  EXPECT_EQ(ask("GET", "/v1/runs", second).status, 200) << "and a new one is known";
  const std::string order = R"({"kind":"pause","owner":"me","reason":"a directive"})";
  ASSERT_EQ(ask("POST", "/v1/runs/1/overrides", second, order).status, 200);
  EXPECT_THAT(poll.read_until("never"), Not(HasSubstr("\"pause\"")));
  const auto rows = boost::json::parse(ask("GET", "/v1/runs/1/directives", second).body).as_array();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].at("state").as_string(), "pending") << "nothing was delivered";
}

TEST_F(SecurityTest, WhatWaitsInTheNameOfARevokedTokenEndsThen) {
  begin();
  RawConnection poll(daemon.port());
  RawConnection other(daemon.port());
  const std::string target = "/v1/runs/1/directives?after=0&wait=8s";
  poll.send(request("GET", target, secrets["trainer"]));
  other.send(request("GET", target, secrets["admin"]));
  const auto begun = std::chrono::steady_clock::now();
  revoke("trainer");
  EXPECT_THAT(poll.read_until("never"), HasSubstr("\"directives\":[]"));
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(5));
  EXPECT_THAT(other.read_until("never"), HasSubstr("\"directives\":[]"));
  EXPECT_GT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(7));
}

TEST_F(SecurityTest, TokensThatCannotBeReadChangeNothing) {
  write_file_atomically(folder / "tokens.toml", "[[token]]\nname = 1\n");
  EXPECT_TRUE(
      eventually([&] { return daemon.log().find("last good ones stay") != std::string::npos; }));
  EXPECT_EQ(ask("GET", "/v1/runs", secrets["reader"]).status, 200);
  EXPECT_TRUE(eventually([&] {
    return ask("GET", "/metrics", secrets["reader"])
               .body.find("gnomon_auth_last_reload_successful 0") != std::string::npos;
  }));
  daemon.signal(SIGHUP);
  EXPECT_TRUE(eventually([&] {
    return daemon.log().find("the configuration was not read again") != std::string::npos;
  }));
  EXPECT_EQ(ask("GET", "/v1/runs", secrets["reader"]).status, 200);
}

TEST_F(SecurityTest, AFileOfTokensThatIsGoneIsSaidAndTheLastGoodOnesStay) {
  std::filesystem::remove(folder / "tokens.toml");
  EXPECT_TRUE(
      eventually([&] { return daemon.log().find("last good ones stay") != std::string::npos; }));
  EXPECT_EQ(ask("GET", "/v1/runs", secrets["reader"]).status, 200);
}

TEST_F(SecurityTest, ProbesAreAnsweredWhateverTokenTheySend) {
  for (const char* path : {"/livez", "/readyz"}) {
    EXPECT_EQ(ask("GET", path, "").status, 200);
    EXPECT_EQ(ask("GET", path, "gnomon_nobodys").status, 200);
    EXPECT_EQ(ask("GET", std::string(path) + "?verbose=1", "gnomon_nobodys").status, 400);
  }
  EXPECT_EQ(ask("GET", "/version", "gnomon_nobodys").status, 401);
}

TEST_F(SecurityTest, ThePageIsOpenAndMayBeFramedByNobody) {
  for (const char* path : {"/", "/page.js"}) {
    const Answer page = ask("GET", path, "");
    EXPECT_EQ(page.status, 200) << path;
    EXPECT_THAT(page.head, HasSubstr("Content-Security-Policy: default-src 'self'"));
    EXPECT_THAT(page.head, HasSubstr("frame-ancestors 'none'"));
    EXPECT_THAT(page.head, HasSubstr("X-Content-Type-Options: nosniff"));
    EXPECT_THAT(page.body, Not(HasSubstr("<script>")));
  }
}

TEST_F(SecurityTest, AnotherSitesPageCannotOrder) {
  const std::string order = R"({"kind":"pause","owner":"me","reason":"a directive"})";
  EXPECT_EQ(ask("POST", "/v1/runs/1/overrides", secrets["operator"], order,
                "Origin: https://evil.example\r\n")
                .status,
            403);
  EXPECT_EQ(ask("POST", "/v1/runs/1/overrides", secrets["operator"], order,
                "Origin: http://localhost\r\n")
                .status,
            404)
      << "the run is unknown, the page is its own";
}

TEST_F(SecurityTest, ReadinessDetailsNeedAToken) {
  std::filesystem::rename(daemon.ledger(), daemon.ledger().string() + ".elsewhere");
  const Answer stranger = ask("GET", "/readyz", "");
  EXPECT_EQ(stranger.status, 503);
  EXPECT_THAT(stranger.body, HasSubstr(R"("name":"ledger_write","ok":false)"));
  EXPECT_THAT(stranger.body, Not(HasSubstr(daemon.ledger().filename())));
  EXPECT_THAT(ask("GET", "/readyz", secrets["reader"]).body, HasSubstr(daemon.ledger().filename()));
}

class RateLimitTest : public SecurityTest {
 protected:
  RateLimitTest()
      : SecurityTest(
            "requests_per_second = 5\nrequest_burst = 10\n"
            "stranger_requests_per_second = 5\nstranger_request_burst = 10\n") {}
};

TEST_F(RateLimitTest, AClientOverItsRateGets429AndOthersAreServed) {
  int refused = 0;
  for (int i = 0; i < 40; ++i) {
    const Answer answer = ask("GET", "/v1/runs", secrets["reader"]);
    if (answer.status != 429) continue;
    ++refused;
    EXPECT_THAT(answer.head, HasSubstr("Retry-After: 1"));
    EXPECT_THAT(answer.body, HasSubstr("more than 5 requests a second"));
    EXPECT_EQ(ask("GET", "/v1/runs", secrets["operator"]).status, 200);
    if (refused == 3) break;
  }
  EXPECT_EQ(refused, 3);
  refused = 0;
  for (int i = 0; i < 40 && refused == 0; ++i) refused += ask("GET", "/readyz", "").status == 429;
  EXPECT_EQ(refused, 1) << "health is open, but not without end";
  EXPECT_EQ(ask("GET", "/readyz", secrets["admin"]).status, 200);
}

// Nobody knows whose it is, and each costs a connection.
class MalformedRequestRate : public RateLimitTest,
                             public ::testing::WithParamInterface<const char*> {};

TEST_P(MalformedRequestRate, IsThatOfAStranger) {
  int answered = 0, refused = 0;
  for (int i = 0; i < 40 && refused == 0; ++i) {
    RawConnection connection(daemon.port());
    connection.send(GetParam());
    const std::string answer = connection.read_until("never");
    answered += answer.starts_with("HTTP/1.1 400") ? 1 : 0;
    refused += answer.starts_with("HTTP/1.1 429") ? 1 : 0;
  }
  EXPECT_GE(answered, 10);
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(ask("GET", "/v1/runs", secrets["admin"]).status, 200);
}

INSTANTIATE_TEST_SUITE_P(Requests, MalformedRequestRate,
                         ::testing::Values("GET /livez HTTP/1.1\r\n\r\n",
                                           "no HTTP at all\r\n\r\n"));

class ConnectionRoomTest : public SecurityTest {
 protected:
  ConnectionRoomTest()
      : SecurityTest("requests_per_second = 0\nstranger_requests_per_second = 0\nconnections = 4\n",
                     "[limits]\nconnections = 10\n") {}

  // Without "Connection: close".
  static std::string kept(const std::string& target, const std::string& secret) {
    return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\r\n",
                       target, secret);
  }
  // A connection that has had one answer and is idle now.
  std::unique_ptr<RawConnection> held(const std::string& secret) const {
    auto connection = std::make_unique<RawConnection>(daemon.port());
    connection->send(kept("/v1/runs", secret));
    EXPECT_THAT(connection->read_until("]"), ::testing::StartsWith("HTTP/1.1 200"));
    return connection;
  }
};

TEST_F(ConnectionRoomTest, UnauthenticatedConnectionsDoNotLockOutTokens) {
  begin();
  const std::unique_ptr<RawConnection> trainer = held(secrets["trainer"]);
  RawConnection waits(daemon.port());
  waits.send(kept("/v1/runs/1/directives?after=0&wait=2", secrets["trainer"]));
  std::vector<std::unique_ptr<RawConnection>> strangers;
  for (int i = 0; i < 60; ++i) {
    strangers.push_back(std::make_unique<RawConnection>(daemon.port()));
    // Some say nothing, some never end what they say, some ask for what is open to all.
    if (i % 3 == 1) strangers.back()->send("POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nX: ");
    if (i % 3 == 2) strangers.back()->send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(ask("GET", "/v1/runs", secrets["reader"]).status, 200) << i;
  }
  EXPECT_TRUE(strangers.front()->ended_within(std::chrono::seconds(5)));
  EXPECT_FALSE(trainer->ended_within(std::chrono::milliseconds(100)));
  EXPECT_THAT(waits.read_until("]}"), HasSubstr("HTTP/1.1 200")) << "nor is who waits sent away";
  const std::string metrics = ask("GET", "/metrics", secrets["reader"]).body;
  EXPECT_THAT(metrics, Not(HasSubstr("gnomon_http_connections_evicted_total 0")));
  EXPECT_THAT(metrics, HasSubstr("gnomon_http_connections_refused_total{reason=\"full\"} 0"));
  EXPECT_TRUE(eventually([&] {
    return ask("GET", "/metrics", secrets["reader"])
               .body.find("gnomon_http_connections{sender=\"known\"} 3") != std::string::npos;
  })) << "the trainer's two and this one";
  EXPECT_THAT(daemon.log(), HasSubstr("all 10 connections are taken: those without a known token"));
}

TEST_F(ConnectionRoomTest, OneTokenCannotHoldAllOfThem) {
  std::vector<std::unique_ptr<RawConnection>> readers;
  for (int i = 0; i < 4; ++i) readers.push_back(held(secrets["reader"]));
  for (int i = 0; i < 10; ++i) {
    const Answer fifth = ask("GET", "/v1/runs", secrets["reader"]);
    EXPECT_EQ(fifth.status, 429);
    EXPECT_THAT(fifth.head, HasSubstr("Retry-After: 1"));
    EXPECT_THAT(fifth.body, HasSubstr("\\\"reader\\\" has 4 connections open"));
  }
  RawConnection kept_alive(daemon.port());
  kept_alive.send(kept("/v1/runs", secrets["reader"]));
  EXPECT_THAT(kept_alive.read_until("never"), HasSubstr("Connection: close"));
  EXPECT_EQ(ask("GET", "/v1/runs", secrets["operator"]).status, 200);
  readers.pop_back();
  EXPECT_TRUE(eventually([&] { return ask("GET", "/v1/runs", secrets["reader"]).status == 200; }));
  EXPECT_THAT(ask("GET", "/metrics", secrets["admin"]).body,
              HasSubstr("gnomon_http_connections_refused_total{reason=\"token\"}"));
}

TEST_F(ConnectionRoomTest, ConnectionsOfARevokedTokenMakeRoom) {
  std::vector<std::unique_ptr<RawConnection>> readers;
  for (const char* role : {"reader", "verifier", "operator"}) {
    for (int i = 0; i < (role == std::string("operator") ? 2 : 4); ++i) {
      readers.push_back(held(secrets[role]));
    }
  }
  EXPECT_EQ(ask("GET", "/v1/runs", secrets["admin"]).status, 503) << "all ten are somebody's";
  revoke("reader");
  EXPECT_TRUE(eventually([&] {
    readers.front()->send(kept("/v1/runs", secrets["reader"]));
    return ask("GET", "/v1/runs", secrets["admin"]).status == 200;
  }));
}

class CheckpointRootsTest : public SecurityTest {
 protected:
  CheckpointRootsTest()
      : SecurityTest("requests_per_second = 0\n",
                     "[checkpoints]\nroots = [\"/data/checkpoints\", \"/scratch/a/\"]\n") {}
};

TEST_F(CheckpointRootsTest, ACheckpointElsewhereIsRefused) {
  begin();
  const auto status = [&](const std::string& uri, int64_t step) {
    CheckpointReport report = test_checkpoint(step);
    report.uri = uri;
    return ask("POST", "/v1/runs/1/checkpoints", secrets["trainer"], to_json(report)).status;
  };
  EXPECT_EQ(status("/data/checkpoints/run/step-5", 5), 200);
  EXPECT_EQ(status("/scratch/a/step-10", 10), 200);
  for (const char* uri :
       {"/etc", "/data", "/data/checkpoints", "/data/checkpoints/", "/data/checkpoints/../secrets",
        "/data/checkpoints/./a", "/data/checkpoints-of-others/a", "data/checkpoints/a", "a",
        "file:///data/checkpoints/a"}) {
    EXPECT_EQ(status(uri, 15), 400) << uri;
  }
}

class ListenBeyondTest : public ::testing::Test {
 protected:
  TemporaryDirectory folder;
};

TEST_F(ListenBeyondTest, ADaemonThatEverybodyCouldReachDoesNotStart) {
  const auto refused = [&](const std::string& config) {
    write_file_atomically(folder / "gnomond.toml", config);
    for (const char* listen : {"0.0.0.0:0", "[::]:0", "192.0.2.1:0"}) {
      const test::EndedProcess ended =
          run_gnomond({"--config", (folder / "gnomond.toml").string(), "--listen", listen,
                       "--ledger", (folder / "ledger.sqlite").string()});
      EXPECT_EQ(ended.status, 2) << listen;
      EXPECT_THAT(ended.output, HasSubstr("both [tls] and [auth] tokens"));
    }
    EXPECT_FALSE(std::filesystem::exists(folder / "ledger.sqlite"));
  };
  refused("");
  edit_tokens(folder / "tokens.toml", [](std::vector<Token>& tokens) {
    tokens.push_back({"a", Role::kAdmin, sha256_hex("a"), 1, 0});
  });
  refused("[auth]\ntokens = \"tokens.toml\"\n");
}

TEST_F(ListenBeyondTest, TokensThatCannotBeReadAreABadConfiguration) {
  write_file_atomically(folder / "gnomond.toml", "[auth]\ntokens = \"tokens.toml\"\n");
  const std::string file = (folder / "gnomond.toml").string();
  EXPECT_THAT(run_gnomond({"check-config", file}).output, HasSubstr("auth.tokens"));
  write_file_atomically(folder / "tokens.toml", "[[token]]\nname = \"a\"\nrole = \"root\"\n");
  const test::EndedProcess ended = run_gnomond({"check-config", file});
  EXPECT_EQ(ended.status, 2);
  EXPECT_THAT(ended.output, HasSubstr("tokens.toml:3"));
}

}  // namespace
}  // namespace gnomon
